"""No command replaces what it reads, harms a file it cannot write whole, or writes a trace that another one writes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

import clusim as library
from clusim.base.errors import InputError, TraceError
from clusim.report.export.tables import write_csv
from clusim.results.trace.reader import read_result
from clusim_cli.main import cli, run
from clusim_cli.outputs import GuardedCommand, OutputFile
from support import traces

PAIR = """
name: pair
architecture: hopper
nodes:
  gpu0..1: {kind: gpu, chip: h100-sxm5}
links:
  - {from: gpu0, to: gpu1, count: 2, type: nvlink4}
"""
CLUSTER = "name: two\ncluster: {node: box.yaml, nodes: 2}\n"
SMI = "\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traces.write_collective(tmp_path_factory.mktemp("traces") / "run.h5")


@pytest.fixture
def here(tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of every kind that commands read."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(trace, "run.h5")
    Path("my.yaml").write_text(PAIR)
    Path("table.csv").write_text("system,time_us\n")
    Path("job.log").write_text("node:1:1 [0] NCCL INFO Bootstrap\n")
    shutil.copy(ROOT / "traces" / "allpairs-4.xml", "plan.xml")
    shutil.copy(ROOT / "traces" / "bert-allreduce.yaml", "small.yaml")
    Path("smi.txt").write_text(SMI)
    return tmp_path


def leaves(here: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in here.iterdir() if path.is_file()}


WRITING = [
    ("my.yaml", "run my.yaml --size 8K --trace-out OUT"),
    ("my.yaml", "traffic my.yaml --trace-out OUT"),
    ("my.yaml", "train small.yaml my.yaml --trace-out OUT"),
    ("small.yaml", "train small.yaml my.yaml --trace-out OUT"),
    ("plan.xml", "run dgx-a100 --ranks 0-3 --algorithm plan.xml --trace-out OUT"),
    ("job.log", "replay job.log --trace-out OUT"),
    ("my.yaml", "topo import my.yaml -o OUT"),
    ("my.yaml.svg", "topo show my.yaml.svg --svg OUT"),
    ("table.csv", "validate table.csv --markdown OUT"),
    ("table.csv.svg", "validate table.csv.svg --plot OUT"),
    ("run.h5", "report run.h5 -o OUT"),
    ("run.h5", "export run.h5 -o OUT"),
    ("run.h5", "export run.h5 --format csv -o OUT"),
    ("run.h5", "export run.h5 --format chrome -o OUT"),
    ("run.h5", "export run.h5 --format kineto -o OUT"),
    ("run.h5", "export run.h5 --format nccl-log -o OUT"),
    ("run.h5.png", "plot run.h5.png heatmap -o OUT"),
    ("my.yaml", "nccl-tests all_reduce_perf my.yaml -b 8 -e 8 -J OUT"),
]


@pytest.mark.parametrize(("name", "words"), WRITING, ids=[words for _, words in WRITING])
@pytest.mark.parametrize("way", ["same", "link", "hard"])
def test_a_command_does_not_replace_its_input(
    name: str, words: str, way: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for like in ("my.yaml", "table.csv", "run.h5"):
        if name.startswith(like) and name != like:
            shutil.copy(like, name)
    target = name if way == "same" else f"other{Path(name).suffix}"
    if way == "link":
        Path(target).symlink_to(name)
    elif way == "hard":
        Path(target).hardlink_to(name)
    before = leaves(here)
    code = run([target if word == "OUT" else word for word in words.split()])
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1), err
    assert "would be replaced; use another output file" in err
    assert leaves(here) == before


def test_files_that_an_input_names_are_inputs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("box.yaml").write_text((ROOT / "topologies" / "dgx-a100.yaml").read_text())
    Path("two.yaml").write_text(CLUSTER)
    before = leaves(here)
    assert run(["run", "two.yaml", "--size", "8K", "--trace-out", "box.yaml"]) == 2
    assert "box.yaml: is an input" in capsys.readouterr().err
    assert leaves(here) == before


def test_what_a_trace_is_written_under_first_is_no_input_either(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.h5.partial").write_text(PAIR)
    assert run(["run", "x.h5.partial", "--size", "8K", "--trace-out", "x.h5"]) == 2
    assert "x.h5.partial: is an input" in capsys.readouterr().err
    assert Path("x.h5.partial").read_text() == PAIR


def test_exports_from_python_do_not_replace_their_trace(here: Path) -> None:
    before = Path("run.h5").read_bytes()
    with pytest.raises(InputError, match="would be replaced"):
        write_csv("run.h5", "tasks", here / "run.h5")
    assert Path("run.h5").read_bytes() == before


def test_two_outputs_are_two_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("b.svg").symlink_to("a.svg")
    assert run(["validate", "table.csv", "--plot", "a.svg", "--markdown", "b.svg"]) == 2
    assert "is written by --plot, too" in capsys.readouterr().err


def commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command)
        else:
            yield command


WRITES = {"errors", "trace_out", "output", "svg", "png", "plot", "markdown", "record", "html"}


def test_every_command_is_guarded() -> None:
    found = set()
    for command in commands(cli):
        assert isinstance(command, GuardedCommand), command.name
        for param in command.params:
            found |= {param.name} if isinstance(param.type, OutputFile) else set()
            if isinstance(param.type, OutputFile):
                assert param.type.trace == (param.name == "trace_out")
            else:
                assert param.name not in WRITES, f"{command.name} {param.name}"
    assert found == WRITES


@pytest.mark.parametrize(
    "words",
    ["report run.h5 -o OUT", "export run.h5 -o OUT", "export run.h5 --format csv --table wires -o OUT",
     "export run.h5 --format chrome -o OUT", "plot run.h5 heatmap -o OUT.png", "plot run.h5 heatmap -o OUT.svg",
     "topo show my.yaml --svg OUT.svg", "topo import smi.txt --chip a100-sxm4-80gb -o OUT",
     "export run.h5 --format kineto -o OUT"],
)  # fmt: skip
def test_a_full_disk_leaves_the_old_file_and_nothing_else(words: str, here: Path) -> None:
    name = next(word for word in words.split() if word.startswith("OUT"))
    if "kineto" not in words:
        Path(name).write_text("old")
    before, names = leaves(here), set(os.listdir())
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))"
    code = f"import sys; sys.dont_write_bytecode = True; {limit}; from clusim_cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "cannot be written: File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert leaves(here) == before
    assert set(os.listdir()) == names


def test_a_bad_table_leaves_the_old_export(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("keep.csv").write_text("good")
    assert run(["export", "run.h5", "--format", "csv", "--table", "bogus", "-o", "keep.csv"]) == 2
    assert "table 'bogus': not in run.h5" in capsys.readouterr().err
    assert Path("keep.csv").read_text() == "good"
    assert not list(here.glob(".clusim*"))


def test_of_two_pictures_none_is_written_if_one_cannot_be(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for second, code in (("b.gif", 2), ("missing/b.png", 1)):
        assert run(["topo", "show", "my.yaml", "--svg", "a.svg", "--png", second]) == code
        assert capsys.readouterr().out == ""
    assert not (here / "a.svg").exists()


def test_figures_of_a_long_validation_have_a_place_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    monkeypatch.setattr("clusim.validation.collectives.measurements.read_measurements", None)
    assert run(["validate", "table.csv", "--markdown", str(here / "no" / "page.md")]) == 1
    assert "no directory" in capsys.readouterr().err


def test_text_for_standard_output_is_alone_there(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ("csv", "nccl-log", "chrome"):
        assert run(["export", "run.h5", "--format", form, "-o", "-"]) == 0
        done = capsys.readouterr()
        assert done.err.startswith("-: ")
        assert "-: " not in done.out
        assert len(done.out) > 100


SLOW = ("run", "dgx-a100", "--size", "1TiB", "--granularity", "packet", "--no-progress")
OFTEN = "from clusim.results.trace import writer; writer.FLUSH_S = 0.0"


def start(code: str, *words: str) -> subprocess.Popen[str]:
    program = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{code}"
    program += "\nprint('begun', flush=True)\nfrom clusim_cli.main import main\nmain()"
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", program, *words], stdout=pipe, stderr=pipe, text=True)  # fmt: skip


STOPS = """
from clusim.simulation import session
def wait(*_):
    print('waiting', flush=True)
    import time
    time.sleep(600)
session.Session.run = wait
"""
"""The run stands still when its trace is open."""


@pytest.fixture
def writing(here: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the trace busy.h5 open, and does not go on."""
    process = start(STOPS, *SLOW, "--trace-out", str(here / "busy.h5"))
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "waiting\n"]
    yield process
    process.kill()
    process.communicate()


def test_one_trace_has_one_writer(
    writing: subprocess.Popen[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path("busy.h5.partial").read_bytes()
    Path("alias.h5").symlink_to("busy.h5")
    for name in ("busy.h5", "alias.h5"):
        assert run(["run", "dgx-a100", "--size", "8K", "--trace-out", name]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert f"{name}: is being written by process {writing.pid}; wait for it" in err
    assert Path("busy.h5.partial").read_bytes() == before
    assert run(["run", "dgx-a100", "--size", "8K", "--trace-out", "other.h5"]) == 0


def test_a_killed_writer_blocks_nobody(
    writing: subprocess.Popen[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writing.kill()
    writing.communicate()
    assert Path("busy.h5.partial.lock").exists()
    assert run(["run", "dgx-a100", "--size", "8K", "--trace-out", "busy.h5"]) == 0
    assert read_result("busy.h5").complete
    assert not list(here.glob("busy.h5.*"))


def test_an_interrupted_writer_keeps_the_old_trace_and_what_it_recorded(
    writing: subprocess.Popen[str], here: Path
) -> None:
    shutil.copy("run.h5", "busy.h5")
    writing.send_signal(signal.SIGINT)
    _, err = writing.communicate(timeout=60)
    assert writing.returncode == 130, err
    assert Path("busy.h5").read_bytes() == Path("run.h5").read_bytes()
    assert sorted(path.name for path in here.glob("busy*")) == ["busy.h5", "busy.h5.partial"]
    assert not read_result("busy.h5.partial").complete


def test_two_writers_in_one_process_exclude_each_other(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusim.simulation.session.SLICE_S", 0.0)
    fabric = library.load("dgx-a100")
    schedule = library.collectives.build(fabric, "allreduce", "ring", 8192)
    messages: list[str] = []

    def progress(_part: float, _now_ps: int) -> None:
        with pytest.raises(InputError) as caught:
            library.simulate(fabric, schedule, trace_out="both.h5")
        messages.append(str(caught.value))

    library.simulate(fabric, schedule, trace_out="both.h5", progress=progress)
    assert messages
    assert f"both.h5: is being written by process {os.getpid()}" in messages[0]
    assert read_result("both.h5").complete
    assert not list(here.glob("both.h5.*"))


def test_a_trace_that_is_read_while_it_is_replaced_is_the_old_one(here: Path) -> None:
    import h5py

    old = read_result("run.h5").fingerprint
    with h5py.File("run.h5") as file:
        assert run(["run", "dgx-a100", "--size", "64K", "--trace-out", "run.h5"]) == 0
        assert int(file["/meta"].attrs["fingerprint"].decode(), 16) == old
    assert read_result("run.h5").fingerprint != old


@pytest.mark.usefixtures("here")
def test_a_run_killed_before_it_began_is_one_clear_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also if it had so much to write that some of it was on the disk."""
    early = (
        "from clusim.results.trace import writer\n"
        "import os; writer.TraceWriter._commit = lambda self: os.kill(os.getpid(), 9)"
    )
    process = start(early, "run", "dgx-a100", "--size", "64K", "--trace-out", "run2.h5")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert Path("run2.h5.partial").stat().st_size > 10_000
    for words in (["info", "run2.h5.partial"], ["report", "run2.h5.partial"]):
        assert run(words) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "run2.h5.partial: empty; its run has not begun" in err
    Path("empty.h5.partial").write_bytes(b"")
    with pytest.raises(TraceError, match=": empty; its run"):
        read_result("empty.h5.partial")


def test_an_old_partial_file_with_another_name_keeps_its_content(here: Path) -> None:
    Path("x.h5.partial").write_text("precious")
    Path("precious").hardlink_to("x.h5.partial")
    assert run(["run", "dgx-a100", "--size", "8K", "--trace-out", "x.h5"]) == 0
    assert Path("precious").read_text() == "precious"


def test_a_trace_that_cannot_take_its_place_keeps_what_was_recorded(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        assert run(["run", "dgx-a100", "--size", "8K", "--trace-out", "x.h5"]) == 1
    assert "the data recorded before are in x.h5.partial" in capsys.readouterr().err
    assert read_result("x.h5.partial").complete
    assert sorted(path.name for path in here.glob("x.h5*")) == ["x.h5.partial"]


SLOW_DISK = """
import os, time
def fsync(_):
    print('waiting', flush=True)
    time.sleep(600)
os.fsync = fsync
"""


@pytest.mark.covering
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("words", ["export run.h5 -o keep", "report run.h5 -o keep"])
def test_a_stopped_command_leaves_the_old_file_and_nothing_else(
    words: str, number: int, code: int, here: Path
) -> None:
    Path("keep").write_text("old")
    names = set(os.listdir())
    process = start(SLOW_DISK, *words.split())
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "waiting\n"]
    assert len(os.listdir()) == len(names) + 1
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert Path("keep").read_text() == "old"
    assert set(os.listdir()) == names


def test_a_terminated_run_keeps_what_it_recorded(
    writing: subprocess.Popen[str], here: Path
) -> None:
    writing.send_signal(signal.SIGTERM)
    _, err = writing.communicate(timeout=60)
    assert writing.returncode == 143
    assert "interrupted by SIGTERM; the partial trace is" in err
    assert [path.name for path in here.glob("busy*")] == ["busy.h5.partial"]
    assert not read_result("busy.h5.partial").complete


POOL = """
import signal, time
from clusim.base.executors import workers
from clusim_cli import main
signal.signal(signal.SIGTERM, main._terminated)
with workers(2, 2) as pool:
    assert pool.outcome(pool.submit(abs, -1)) == 1
    for _ in range(8):
        pool.submit(time.sleep, 600)
    print('begun', flush=True)
    time.sleep(600)
"""


def test_workers_end_with_the_command_that_is_terminated() -> None:
    """A worker holds the other end of the pipe, so that the pipe ends only when all have."""
    process = subprocess.Popen(
        [sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 143
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


SWALLOWED = """
import os, signal, time
from clusim.topology import validate
def describe(*_):
    caught = ""
    try:
        os.kill(os.getpid(), signal.{0})
        time.sleep(60)
    except BaseException as error:
        caught = type(error).__name__
    raise ValueError(caught)
validate.describe = describe
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.usefixtures("here")
def test_a_signal_that_a_library_turns_into_its_own_error(name: str, code: int) -> None:
    """Pydantic's compiled part does so: only the words of its error name the signal's exception."""
    process = start(SWALLOWED.format(name), "topo", "show", "my.yaml")
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err
