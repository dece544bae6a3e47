"""HLO modules: groups in both forms, sizes, background, loops, damage."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings import Recording
from clusim.formats.recordings.kinds import kind_of
from clusim_formats.recordings import hlo
from clusim_formats.recordings.hlo import read
from clusim_formats.recordings.hlo_text import HloTensor, replica_groups

SAMPLE = Path(__file__).resolve().parents[3] / "traces" / "mlp-tp4.hlo.txt"
GROUPS = ("{{0,1},{2,3}}", "{{0,1}}", "{{0,1},{2,3}}")
MIB = 1 << 20


def module(path: Path, *body: str, header: str = "num_partitions=4", more: str = "") -> Recording:
    lines = "\n".join(f"  {line}" for line in body)
    text = f"HloModule m, is_scheduled=true, {header}\n\n{more}\nENTRY %main (p: f32[256]) -> f32[256] {{\n"
    path = path / "m.txt"
    path.write_text(f"{text}  %p = f32[256]{{0}} parameter(0)\n{lines}\n}}\n")
    return read(str(path))


def calls(found: Recording, rank: int = 0) -> list[tuple[str, int, tuple[int, ...]]]:
    return [
        (e.operation, e.bytes, found.groups[e.group].ranks)
        for e in found.events
        if e.rank == rank and e.kind == "collective"
    ]


@pytest.mark.parametrize("kind", ["pjit", "shard_map"])
def test_a_compiled_program_of_jax_reduces_outputs_in_nodes_and_gradients_among_them(
    kind: str, tmp_path: Path
) -> None:
    """A data shard has 8192 of the tokens; a tensor shard has an eighth of both weights."""
    pytest.importorskip("jax")
    script = Path(__file__).resolve().parents[3] / "docs" / "examples" / "jax_step.py"
    subprocess.run([sys.executable, script, kind], cwd=tmp_path, check=True, timeout=300)
    found = read(str(tmp_path / f"{kind}.hlo"))
    assert found.num_ranks == 64
    output, gradients = 65536 // 8 * 4096 * 4, 2 * (4096 * 16384 // 8) * 4
    # The transposed sum of shard_map is a sum.
    reductions = 2 if kind == "shard_map" else 1
    for rank in (0, 13):
        nodes = tuple(range(rank // 8 * 8, rank // 8 * 8 + 8))
        inside = [("allreduce", output, nodes)] * reductions
        assert calls(found, rank) == [
            *inside,
            ("allreduce", gradients, tuple(range(rank % 8, 64, 8))),
        ]
    products = [event.flops for event in found.events if event.rank == 13 and event.flops]
    # Two products forward, and two for the weights' gradients; one for the gradient of the hidden layer.
    assert sum(products) == 5 * 2 * 8192 * 4096 * 2048


def test_the_sample_is_what_it_says() -> None:
    assert kind_of(str(SAMPLE)) == "hlo"
    found = read(str(SAMPLE))
    assert found.num_ranks == 4
    own = [event for event in found.events if event.rank == 2]
    assert [event.kind for event in own] == [
        "collective", *["compute", "compute", "collective"] * 3, "compute", "send", "recv",
    ]  # fmt: skip
    assert calls(found, 2) == [
        ("all_gather", 16 * MIB, (2, 3)),
        *[("allreduce", 16 * MIB, (0, 1, 2, 3))] * 3,
    ]
    gather, dot, gelu = own[:3]
    assert (gather.stream, gather.dtype, gather.deps) == ("background", "bfloat16", ())
    assert (dot.flops, dot.mem_bytes) == (2 * 2048 * 4096 * 4096, (16 + 32 + 16) * MIB)
    assert (gelu.flops, gelu.mem_bytes) == (0, 32 * MIB)
    last = own[-3]  # adds what was gathered to what the loop made
    assert sorted(found.events[d].operation for d in last.deps) == ["all_gather", "allreduce"]
    send, recv = own[-2:]
    assert (send.peer, recv.peer, send.bytes, send.bunch) == (3, 1, 16 * MIB, recv.bunch)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}, x", [(0, 2), (1, 3)]),
        ("replica_groups={}", [(0, 1, 2, 3)]),
        ("channel_id=1", [(0, 1, 2, 3)]),
        ("replica_groups=[2,2]<=[4]", [(0, 1), (2, 3)]),
        ("replica_groups=[2,2]<=[2,2]T(1,0), x", [(0, 2), (1, 3)]),
        ("replica_groups=[1,4]<=[4]", [(0, 1, 2, 3)]),
        ("replica_groups=[4,2]<=[2,2,2]T(0,2,1)", [(0, 2), (1, 3), (4, 6), (5, 7)]),
        ("replica_groups=[3,2]<=[4]", None),
        ("replica_groups=[2,2]<=[2,2]T(0,0)", None),
        ("replica_groups={{0,1},{1,2}}", None),
        ("replica_groups={{0,9}}", None),
    ],
)
def test_groups(text: str, groups: list[tuple[int, ...]] | None) -> None:
    assert replica_groups(text, 4) == groups


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%r = f32[256]{0} all-reduce(%p), replica_groups={{0,1},{2,3}}, to_apply=%add", ("allreduce", 1024, (0, 1))),
        ("%r = f32[1024]{0} all-gather(f32[256]{0} %p), dimensions={0}", ("all_gather", 4096, (0, 1, 2, 3))),
        ("%r = f32[64]{0} reduce-scatter(%p), replica_groups=[1,4]<=[4]", ("reduce_scatter", 1024, (0, 1, 2, 3))),
        ("%r = (f32[64]{0}, f32[64]{0}, /*index=2*/f32[64]{0}, f32[64]{0}) all-to-all(%p, %p, %p, %p)",
         ("alltoall", 1024, (0, 1, 2, 3))),
        ("ROOT r.1 = (bf16[8]{0:T(128)}, f32[8]{0}) all-reduce(p, p), replica_groups={}",
         ("allreduce", 48, (0, 1, 2, 3))),
        ("%r = pred[9]{0} all-reduce(%p)", ("allreduce", 9, (0, 1, 2, 3))),
    ],
)  # fmt: skip
def test_sizes(tmp_path: Path, line: str, expected: tuple[str, int, tuple[int, ...]]) -> None:
    assert calls(module(tmp_path, line)) == [expected]


def test_calls_of_a_group_are_counted_whoever_else_takes_part(tmp_path: Path) -> None:
    found = module(
        tmp_path,
        *(f"%r{n} = f32[256] all-reduce(%p), replica_groups={g}" for n, g in enumerate(GROUPS)),
    )  # fmt: skip
    numbers = [[e.sequence for e in found.events if e.rank == rank] for rank in range(4)]
    assert numbers == [[0, 1, 2], [0, 1, 2], [0, 1], [0, 1]]


def test_what_is_in_the_background(tmp_path: Path) -> None:
    wrapped = "%wrap (q: f32[256]) -> f32[64] {\n  %q = f32[256] parameter(0)\n"
    wrapped += "  ROOT %rs = f32[64] reduce-scatter(%q), replica_groups={{0,1,2,3}}\n}\n"
    found = module(
        tmp_path,
        "%s = ((f32[256]{0}), f32[64]{0}) async-start(%p), calls=%wrap",
        "%n = f32[256]{0} negate(%p)",
        "%d = f32[64]{0} async-done(%s)",
        '%g = (f32[64], f32[256]) all-gather-start(%d), backend_config={"is_sync":true}',
        more=wrapped,
    )
    first, compute, last = (event for event in found.events if event.rank == 0)
    assert (first.stream, compute.stream, last.stream) == ("background", "compute", "compute")
    assert compute.deps == ()
    assert [found.events[d].operation for d in last.deps] == ["reduce_scatter"]
    assert last.bytes == 1024


def test_devices_are_those_of_the_topology_if_nothing_says_them(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text(
        "HloModule m\nENTRY e {\n p = f32[8] parameter(0)\n r = f32[8] all-reduce(p)\n}\n"
    )
    assert read(str(path), num_ranks=8).num_ranks == 8
    with pytest.raises(InputError, match="no event that can be simulated"):
        read(str(path))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (["%r = f32[256] all-reduce %p"], r"m\.txt:6: '%r = f32\[256\] all-reduce %p': must be NAME"),
        (["%r = f32[256] negate(%p)", "nonsense"], r"m\.txt:7: 'nonsense'"),
        (["%r = f32[8] call(%p), to_apply=%main"], "no event that can be simulated"),
        (["%w = f32[8] while(%p), body=%main, x={known_trip_count={n:9999999}}"], "a loop of 9999999 turns"),
        (["%r = f32[8] collective-permute(%p), source_target_pairs={{0,1},{0,1}}"], "no event that can be simulated"),
        (["%r = f32[8] all-reduce(%p), replica_groups={{0,999999}}"], "1000000 devices; at most"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_its_place(tmp_path: Path, body: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        module(tmp_path, *body, header="num_partitions=2")


def test_computations_that_call_each_other_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice itself, 32 deep, would be four thousand million."""
    monkeypatch.setattr(hlo, "MOST_EVENTS", 20_000)
    with pytest.raises(InputError, match="computations are run"):
        module(tmp_path, *[f"%c{n} = f32[256] call(%p), to_apply=%main" for n in range(2)])
    loop = "%w = f32[8] while(%p), condition=%b, body=%b, known_trip_count={n:20000}"
    empty = "%b (q: f32[8]) -> f32[8] {\n  ROOT %q = f32[8] parameter(0)\n}\n"
    found = module(tmp_path, loop, "%r = f32[256] all-reduce(%p)", more=empty)
    assert len(found.events) == 4


def test_a_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.txt"
    path.write_text(SAMPLE.read_text()[:-200])
    with pytest.raises(InputError, match="ends inside a computation"):
        read(str(path))
    path.write_text(SAMPLE.read_text() * 2)
    with pytest.raises(InputError, match="computation add occurs twice"):
        read(str(path))
    path.write_text("HloModule m\n")
    with pytest.raises(InputError, match="no ENTRY"):
        read(str(path))


def test_sizes_of_types() -> None:
    sizes = {
        "f32": 4,
        "bf16": 2,
        "s32": 4,
        "u8": 1,
        "pred": 1,
        "f8e4m3fn": 1,
        "c64": 8,
        "s64": 8,
        "f16": 2,
    }
    assert {kind: HloTensor(kind, (10,)).bytes // 10 for kind in sizes} == sizes
    assert HloTensor("s4", (10,)).bytes == 5


@pytest.mark.parametrize("seed", range(120))
def test_damage_is_refused_or_bounded(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(SAMPLE.read_bytes())
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data))
        data[at : at + chance.randint(0, 3)] = bytes(
            chance.choices(b"{}()[]=,%0179 \nabx<", k=chance.randint(0, 3))
        )
    path = tmp_path / "m.txt"
    path.write_bytes(bytes(data))
    try:
        found = read(str(path))
    except InputError:
        return
    assert all(0 <= event.rank < found.num_ranks for event in found.events)


def test_groups_however_they_are_written() -> None:
    pairs = [(0, 1), (2, 3)]
    for text in ("{{0,1},{2,3}}", "{ {0,1}, {2,3} }", "{{0, 1},{2, 3}}", "[2,2]<=[4]"):
        assert replica_groups(f"channel_id=1, replica_groups={text}, x=1", 4) == pairs
    for text in ("", "replica_groups={}"):
        assert replica_groups(text, 4) == [(0, 1, 2, 3)]
    for text in ("{0,1,2,3}", "{{0,1},{2,x}}", "mesh['a'=2]", "{{0,1},{1,2}}"):
        assert replica_groups(f"replica_groups={text}", 4) is None
