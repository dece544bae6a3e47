"""What is fuzzed: for every reader its samples and a function that does with a file what the commands do."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusim.topology import Fabric
from fuzz import texts, traces

if TYPE_CHECKING:
    from clusim.jobs.emitter import NcclEmitter

__all__ = ["TARGETS", "Target", "read_kineto"]

Samples = list[dict[str, bytes]]

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "traces"


@dataclass(frozen=True, slots=True)
class Target:
    """A reader.

    Attributes
    ----------
    make : callable
        Returns contents of good files by the name each must have: only those of readers that are tried are made.
    use : callable
        Reads the file, or the folder of files, at a path and does everything else with what it got.
    codes : tuple of int
        Exit codes of errors that are right.
    traced : bool
        Whether the samples are traces and no texts.
    read : callable or None
        Only reads, without what costs many times as much; that is done with one mutation of `each`.
    """

    make: Callable[[], Samples]
    use: Callable[[Path], object]
    codes: tuple[int, ...] = (2,)
    traced: bool = False
    read: Callable[[Path], object] | None = None
    each: int = 8

    @property
    def samples(self) -> Samples:
        """Return the samples."""
        return _made(self.make)

    def way(self, seed: int) -> Callable[[Path], object]:
        """Return what is tried with a mutation."""
        return self.use if self.read is None or seed % self.each == 0 else self.read

    def mutated(self, seed: int) -> dict[str, bytes]:
        """Return sample files with one of them changed."""
        chance = random.Random(seed)
        if self.traced:
            turn, sample = divmod(seed, len(self.samples))
            ((name, data),) = self.samples[sample].items()
            return {name: traces.mutate(data, chance, turn)}
        files = dict(chance.choice(self.samples))
        name = chance.choice(sorted(files))
        other = chance.choice(sorted(chance.choice(self.samples).items()))[1]
        files[name] = texts.mutate(files[name], chance, other)
        return files


@cache
def _made(make: Callable[[], Samples]) -> Samples:
    return make()


def _alone(*paths: Path) -> Callable[[], Samples]:
    """Return what makes samples of one file each."""
    return lambda: [{path.name: path.read_bytes()} for path in paths]


def _together(folder: Path) -> Callable[[], Samples]:
    """Return what makes one sample of all files of a folder."""
    return lambda: [{path.name: path.read_bytes() for path in sorted(folder.iterdir())}]


def _only(path: Path) -> Path:
    """Return the file of a sample of one file."""
    return next(iter(sorted(path.iterdir())))


@cache
def _machine(name: str) -> Fabric:
    import clusim

    return clusim.load(name)


def _read_log(path: Path) -> Any:
    from clusim.formats.logs import read_logs

    return read_logs([str(_only(path))])


def _log(path: Path) -> object:
    from clusim.formats.logs import report, summarize

    log = _read_log(path)
    return report(log, everything=True), json.dumps(summarize(log), allow_nan=False)


def _replay(path: Path, **options: object) -> object:
    from clusim.replays.api import replay
    from clusim.replays.placing import ReplayRequest
    from clusim.replays.replayreport import replay_report

    files = sorted(str(file) for file in path.iterdir())
    asked = {"calls": 3, "topology": "dgx-h100", "granularity": 1 << 18, **options}
    found = replay(ReplayRequest(tuple(files[:1]), **asked))  # type: ignore[arg-type]
    return replay_report(found), json.dumps(found.to_json(), allow_nan=False)


def _whole(path: Path) -> object:
    return _replay(path, whole=True)


@cache
def _emitter(num_ranks: int) -> NcclEmitter:
    """Return what writes schedules of so many ranks: two channels are as good as all of them to try a reader."""
    from clusim.jobs.emitter import NcclEmitter
    from clusim.nccl.choice import Communicators
    from clusim.nccl.env import parse_env

    machine, few = _machine("dgx-a100"), parse_env({"NCCL_MAX_NCHANNELS": "2"})
    return NcclEmitter(machine, range(num_ranks), Communicators(machine, settings=few))


def read_kineto(folder: Path) -> object:
    """Read the profiles in a folder, and make no schedule of them."""
    from clusim.formats.recordings.kinds import reader

    return reader("kineto")(str(folder))


def _recording(
    make: Callable[[], Samples], kind: str, *, folder: bool = False, **options: int
) -> Target:
    def read(path: Path) -> Any:
        from clusim.formats.recordings.kinds import kind_of, reader

        where = str(path if folder else _only(path))
        kind_of(where)
        return reader(kind)(where, **options)

    def use(path: Path) -> object:
        from clusim.jobs.read import job_of
        from clusim.jobs.write import to_schedule

        recording = read(path)
        if recording.num_ranks > _machine("dgx-a100").num_ranks:
            return recording
        return to_schedule(job_of(recording), _emitter(recording.num_ranks))

    return Target(make, use, read=read)


def _plan(module: str) -> Callable[[Path], object]:
    def use(path: Path) -> object:
        return import_module(module).load(_only(path), _machine("a100x4-mesh"), 1 << 16)

    return use


def _import(path: Path) -> Any:
    from clusim.formats.topologies import import_text
    from clusim.topology.validate import read_text

    file = _only(path)
    return import_text(read_text(file, file.name), file.name)


def _imported(path: Path) -> object:
    return _import(path).fabric()


def _measured_paths(path: Path) -> object:
    from clusim_formats.topologies.nvbandwidth import compare_tests, read_nvbandwidth

    return compare_tests(_machine("dgx-a100"), read_nvbandwidth(_only(path)))


def _topology(path: Path) -> object:
    import clusim

    return clusim.load(_only(path))


def _workload(path: Path) -> object:
    from clusim.workload.workload_file import load_workload

    return load_workload(_only(path))


def _model(path: Path) -> object:
    from clusim.workload.models.huggingface import read_config

    return read_config(_only(path))


def _measurements(path: Path) -> object:
    from clusim.validation.collectives.measurements import groups, read_measurements
    from clusim.validation.collectives.systems import setup_of

    rows = read_measurements([_only(path)], system="dgx-a100")
    return [setup_of(group) for group in groups(rows)]


_SMALL_TOPOLOGY = b"""name: pair
architecture: hopper
nodes:
  gpu0..3: {kind: gpu, chip: h100-sxm5}
  nvs0..1: {kind: switch}
links:
  - {from: gpu0..3, to: nvs0..1, count: 2, type: nvlink4}
window: 64KiB
"""
_MODEL = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "tie_word_embeddings": False, "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "hidden_act": "silu",
    },
    indent=1,
).encode()  # fmt: skip
_TABLE = b"""\
# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20
# nccl-tests version 2.13
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
          64            16     float     sum      -1    11.50    1.25    1.25       0    12.50    1.15    1.15      0
     1048576        262144     float     sum      -1    31.50   11.25   11.25       0    32.50   11.15   11.15      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 1.5
"""
_GOLDEN = ROOT / "tests/nccltests/all_reduce_golden.txt"
_MEASURED = b"""\
system,n_nodes,n_gpus,collective,algorithm,protocol,channels,nccl_version,size_bytes,time_us
dgx-a100,1,8,all_reduce,ring,simple,4,2.18,1048576,40.5
dgx-a100,1,8,all_reduce,ring,simple,4,2.18,1073741824,8000
dgx-a100,2,16,all_gather,auto,auto,,,1024,27.25
"""


def _logs() -> Samples:
    from formats.logs.samples import ALL

    folder = ROOT / "tests/formats/logs/texts"
    found = _alone(*sorted(folder.iterdir()))()
    job = "".join(ALL.values()).encode()
    return [*found, {"job.log": job}, {"table.txt": _TABLE}, {"both.log": job + _TABLE}]


def _job_log() -> Samples:
    """Return a log of two ranks that can be replayed."""
    from formats.logs.samples import begin, call

    lines = [
        begin(0),
        begin(1),
        *(call(r, i, count=1 << (4 + i)) for i in range(3) for r in (0, 1)),
    ]
    data = (TRACES / "nccl-8xh100.log").read_bytes()
    return [{"job.log": "\n".join(lines).encode() + b"\n"}, {"nccl.log": data}]


def _topologies() -> Samples:
    names = ("dgx-a100", "dgx-1v", "polaris", "aws-p5")
    named = [ROOT / f"topologies/{name}.yaml" for name in names]
    return [{"pair.yaml": _SMALL_TOPOLOGY}, *_alone(*named)()]


def _measured() -> Samples:
    return [{"measured.csv": _MEASURED}, *_alone(_GOLDEN)()]


def _targets() -> Iterator[tuple[str, Target]]:
    yield (
        "trace",
        Target(lambda: traces.samples()[1:], traces.use, traced=True, read=traces.read, each=6),
    )
    yield "log", Target(_logs, _log, read=_read_log, each=3)
    yield "replay", Target(_job_log, _replay)
    yield "replay-whole", Target(_job_log, _whole)
    yield "kineto", _recording(_together(TRACES / "kineto-2ranks"), "kineto", folder=True)
    yield "profiler", _recording(_together(TRACES / "profiler-2ranks"), "profiler", folder=True)
    yield "chakra", _recording(_together(TRACES / "chakra-4ranks"), "chakra", folder=True)
    yield "flight", _recording(_together(TRACES / "flight-2ranks"), "flight", folder=True)
    yield "nsys", _recording(_together(TRACES / "nsys-2ranks"), "nsys", folder=True)
    yield "deepspeed", _recording(_alone(TRACES / "zero3.deepspeed.log"), "deepspeed", num_ranks=8)
    yield "chakra-json", _recording(_alone(TRACES / "step.chakra.json"), "chakra", num_ranks=8)
    yield "inspector", _recording(_alone(TRACES / "inspector-8ranks.jsonl"), "inspector")
    yield "comma", _recording(_together(TRACES / "comma-4ranks"), "jsonl", folder=True)
    yield "minimal", _recording(_alone(TRACES / "minimal-2ranks.jsonl"), "jsonl")
    yield "goal", _recording(_alone(TRACES / "ring-4.goal"), "goal")
    yield "hlo", _recording(_alone(TRACES / "mlp-tp4.hlo.txt"), "hlo", num_ranks=8)
    yield "goal-binary", _recording(_alone(TRACES / "ring-4.goal.bin"), "goal")
    layers = _alone(TRACES / "resnet-data-8.astra.txt")
    yield "astra", _recording(layers, "astra", num_ranks=8)
    yield "simai", _recording(_alone(TRACES / "gpt-tp8-dp2.simai.txt"), "simai")
    yield (
        "msccl",
        Target(_alone(TRACES / "allpairs-4.xml"), _plan("clusim.formats.algorithms.msccl"), (1, 2)),
    )
    yield (
        "mscclpp",
        Target(
            _alone(TRACES / "allpairs-4.mscclpp.json"),
            _plan("clusim_formats.algorithms.mscclpp"),
            (1, 2),
        ),
    )
    samples = sorted((ROOT / "tests/formats/topologies/samples").iterdir())
    yield "import", Target(_alone(*samples), _imported, read=_import, each=4)
    yield "nvbandwidth", Target(_alone(TRACES / "nvbandwidth-8xa100.json"), _measured_paths)
    yield "topology", Target(_topologies, _topology)
    yield "workload", Target(_alone(*sorted(TRACES.glob("*.yaml"))), _workload)
    yield "model", Target(lambda: [{"config.json": _MODEL}], _model)
    yield "measurements", Target(_measured, _measurements)


TARGETS = dict(_targets())
"""Readers by name."""
