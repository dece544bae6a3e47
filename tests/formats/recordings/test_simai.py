"""Workloads of SimAI and AICB: groups of every suffix, order, exact times, what is left out, damage."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim.base.errors import InputError
from clusim.formats.recordings import Recording
from clusim.formats.recordings.kinds import kind_of
from clusim_cli.main import run
from clusim_formats.recordings.simai import read
from formats.recordings.layertables import layer, rank_events, table, total, whole
from support.covering import examples

SAMPLE = Path(__file__).resolve().parents[3] / "traces" / "gpt-tp8-dp2.simai.txt"
HEAD = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
US = 1_000_000


def head(tp: int = 8, ep: int = 1, pp: int = 1, gpus: int = 16, more: str = "") -> str:
    return (
        f"{HEAD} model_parallel_NPU_group: {tp} ep: {ep} pp: {pp} vpp: 4 ga: 2 all_gpus: {gpus}"
        f" checkpoints: 0 checkpoint_initiates: 0{more}"
    )


def make(path: Path, first: str, *layers: str) -> Recording:
    return read(table(path, first, *layers))


def groups(found: Recording, name: str) -> set[tuple[int, ...]]:
    return {group.ranks for group in found.groups if group.name == name}


def every(word: str, size: int = 4096) -> str:
    """Return a layer with a communication in all three parts."""
    return layer(word, f=(word, size), i=(word, size), w=(word, size))


def test_the_sample_is_read_as_it_says() -> None:
    found = read(str(SAMPLE))
    assert kind_of(str(SAMPLE)) == "simai"
    assert (found.num_ranks, found.assumed, found.skipped) == (16, [], {})
    assert groups(found, "tp") == {tuple(range(8)), tuple(range(8, 16))}
    assert groups(found, "dp") == {(i, i + 8) for i in range(8)}
    own = [event for event in found.events if event.rank == 5]
    assert [e.name for e in own if e.kind == "collective" and e.stream == "dp"] == [
        "grad_param_comm weight gradient",
        "grad_gather weight gradient",
    ]
    assert sum(e.duration_ps for e in own if e.kind == "compute") == 631_010 * 1000
    gather = next(e for e in own if e.operation == "all_gather")
    assert (gather.bytes, gather.sequence) == (393_216, 1)


def test_parts_and_suffixes_choose_the_group(tmp_path: Path) -> None:
    found = make(
        tmp_path,
        head(tp=2, ep=2, gpus=16),
        every("ALLREDUCE"),
        every("ALLTOALL_EP"),
        every("REDUCESCATTER_DP_EP"),
    )
    calls = {(e.name, e.stream) for e in found.events if e.kind == "collective"}
    assert calls == {
        ("ALLREDUCE forward", "tp"),
        ("ALLREDUCE input gradient", "tp"),
        ("ALLREDUCE weight gradient", "dp"),
        *((f"ALLTOALL_EP {part}", "ep") for part in ("forward", "input gradient", "weight gradient")),
        *((f"REDUCESCATTER_DP_EP {part}", "dp_ep") for part in ("forward", "input gradient", "weight gradient")),
    }  # fmt: skip
    assert groups(found, "tp") == {(i, i + 1) for i in range(0, 16, 2)}
    assert groups(found, "dp") == {tuple(range(i, 16, 2)) for i in range(2)}
    assert groups(found, "ep") == {(i, i + 2) for i in (0, 1, 4, 5, 8, 9, 12, 13)}
    assert groups(found, "dp_ep") == {tuple(range(i, 16, 4)) for i in range(4)}


@pytest.mark.parametrize("policy", ["HYBRID_TRANSFORMER", HEAD])
@pytest.mark.parametrize(
    "first",
    [
        "model_parallel_NPU_group: 2 ep: 2 all_gpus: 8",
        "ep: 2 model_parallel_NPU_group: 2 all_gpus: 8",
    ],
)
def test_both_transformer_policies_have_experts(policy: str, first: str, tmp_path: Path) -> None:
    name = table(tmp_path, f"{policy} {first}", every("ALLGATHER_DP_EP"), every("ALLREDUCE_TP"))
    assert kind_of(name) == "simai"
    found = whole(name)
    assert found.ranks == 8
    read_alone = read(name)
    assert groups(read_alone, "dp_ep") == {(i, i + 4) for i in range(4)}
    assert read_alone.skipped == {"communications without a group: ALLREDUCE_TP": 3}


def test_a_transformer_without_experts_and_ranks_is_one_of_astra_sim(tmp_path: Path) -> None:
    name = table(tmp_path, "HYBRID_TRANSFORMER model_parallel_NPU_group: 4", every("ALLREDUCE"))
    assert kind_of(name) == "astra"


def test_stages_have_their_own_groups_and_what_is_missing_is_said(tmp_path: Path) -> None:
    found = make(tmp_path, head(tp=2, pp=2, more=" pp_comm: 8192.0"), every("ALLREDUCE"))
    assert groups(found, "dp") == {(0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15)}
    (said,) = found.assumed
    assert "8192 bytes" in said
    assert "50% with 2 micro-batches" in said


def test_sizes_are_those_of_whole_buffers(tmp_path: Path) -> None:
    words = ("ALLGATHER", "REDUCESCATTER", "ALLTOALL", "ALLREDUCE")
    found = make(tmp_path, head(), *(layer(word, w=(word, 4096)) for word in words))
    assert [(e.operation, e.bytes) for e in found.events if e.rank == 9] == [
        ("allreduce", 4096),
        ("alltoall", 4096),
        ("reduce_scatter", 4096),
        ("all_gather", 4096),
    ]


def test_the_order_is_that_of_a_transformer(tmp_path: Path) -> None:
    reduce = ("ALLREDUCE", 4096)
    found = make(
        tmp_path,
        head(),
        layer("a", 1, 2, 3, f=reduce, i=reduce, w=reduce),
        layer("b", 4, 5, 6, f=reduce, i=reduce, update=100),
    )
    assert rank_events(found) == [
        "a forward",
        "a forward tp <- 0",
        "b forward <- 1",
        "b forward tp <- 2",
        "b update <- 3",
        "b input gradient <- 4",
        "b input gradient tp <- 5",
        "b update <- 6",
        "b weight gradient <- 7",
        "a input gradient <- 8",
        "a input gradient tp <- 9",
        "a weight gradient <- 10",
        "a weight gradient dp <- 11",
    ]


def test_a_step_takes_its_computing_and_what_it_waits_for(tmp_path: Path) -> None:
    reduce = ("ALLREDUCE", 1 << 15)
    alone = tmp_path / "alone"
    alone.mkdir()
    each = total(table(alone, head(tp=8, gpus=8), layer("a", f=reduce)))
    layers = [
        layer(n, 10_000, 20_000, 30_000, f=reduce, i=reduce, w=reduce, update=100) for n in "ab"
    ]
    tensor = total(table(tmp_path, head(tp=8, gpus=8), *layers))
    assert tensor == pytest.approx(120 * US + 4 * each + 4 * 100_000, rel=1e-4)
    # Weight gradients of b hide behind the computing of a, from which they take some SMs.
    data = total(table(tmp_path, head(tp=1, gpus=8), *layers))
    assert 120 * US + each < data < 120 * US + 1.1 * each + 100_000


def test_old_files_take_the_ranks_of_the_topology(tmp_path: Path) -> None:
    name = table(
        tmp_path, f"{HEAD}\tmodel_parallel_NPU_group: 8 checkpoints: 0", every("ALLREDUCE")
    )
    found = whole(name)
    assert found.ranks == 8
    assert "no all_gpus in the file: all 8 GPUs of the topology are used" in found.notes
    with pytest.raises(InputError, match="no all_gpus; set --topology"):
        read(name)


def test_what_is_unknown_is_counted(tmp_path: Path) -> None:
    found = make(
        tmp_path,
        head(more="").replace("checkpoints: 0 checkpoint_initiates: 0", "checkpoints: 1 0"),
        layer("norm", 5, f=("BROADCAST", 16384)),
        every("ALLREDUCE_XX"),
        every("ALLTOALL_EP"),
    )
    assert found.skipped == {
        "checkpoints: SimAI runs no layers again": 1,
        "communications BROADCAST": 1,
        "communications without a group: ALLREDUCE_XX": 3,
        "communications in groups of one rank": 3,
    }
    assert {e.kind for e in found.events} == {"compute"}


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (head(tp=3), "model_parallel_NPU_group 3 x pp 1: must divide the 16 ranks"),
        (head(tp=8, pp=4), "x pp 4: must divide"),
        (head(tp=4, ep=3), "ep 3: must divide the 4 data-parallel ranks"),
        (head(gpus=999_999_999), "all_gpus: '999999999': must be 0.."),
        (head().replace("16", "x"), "all_gpus: 'x'"),
        (f"{HEAD} ep:", "ep: '': must be"),
        (
            "MICRO",
            "begins with HYBRID_TRANSFORMER_FWD_IN_BCKWD or HYBRID_TRANSFORMER (--kind astra",
        ),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, first: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read(table(tmp_path, first, layer("a", 5)), num_ranks=16)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


WORDS = ["", "-1", "x", "1e300", "ALLREDUCE_EP", "ALLTOALL", "99999999999999999999", "0"]


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 10**6), how=st.sampled_from(["drop", "cut", "shuffle", "mutate"]))
def test_damage_is_refused_or_invents_nothing(seed: int, how: str) -> None:
    rng = random.Random(seed)
    lines = SAMPLE.read_text().splitlines()
    at = rng.randrange(len(lines))
    if how == "drop":
        del lines[at]
    elif how == "cut":
        lines[at:] = [lines[at][: rng.randrange(len(lines[at]) + 1)]]
    elif how == "shuffle":
        rng.shuffle(lines)
    else:
        words = lines[at].split("\t")
        words[rng.randrange(len(words))] = rng.choice(WORDS)
        lines[at] = "\t".join(words)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_text("\n".join(lines) + "\n")
        try:
            found = read(str(path), num_ranks=16)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
            return
    if how != "mutate":
        known = {(e.kind, e.name, e.bytes) for e in read(str(SAMPLE)).events}
        assert {(e.kind, e.name, e.bytes) for e in found.events} <= known


def test_the_sample_is_replayed_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(SAMPLE), "--topology", "dgx-h100"]) == 0
    shown = capsys.readouterr().out
    assert "16 ranks on 2 nodes" in shown
    assert "computing 631.01 us" in shown
    assert "36 calls, 890.9 us" in shown  # computing + 9 x 15.01 + 9.167 + 42.0 + 72.5 + 1.1 us
    assert "reduce_scatter" in shown


CSV = "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count"


def rows(path: Path, *lines: str) -> str:
    name = path / "workload.csv"
    full = [
        f"CommType.{line},None,None,,{'' if 'comp' in line else 'None,None,None,1'}"
        for line in lines
    ]
    name.write_text("\n".join([CSV, *full]) + "\n")
    return str(name)


def test_what_aicb_runs_itself_is_one_after_the_other(tmp_path: Path) -> None:
    name = rows(
        tmp_path,
        "broadcast,CommGroup.tp_group,2,40,init",
        "epoch_end,None,None,0,",
        "all_gather,CommGroup.dp_group,4,4096,forward",
        'computation,None,None,"((128, 2, 256), (256, 512))",gemm',
        "all_reduce,CommGroup.pp_group,1,8,forward",
        "barrier,None,None,0,end",
    )
    assert kind_of(name) == "simai"
    found = read(name)
    assert found.num_ranks == 8
    assert rank_events(found) == ["init tp", "forward dp <- 0", "gemm <- 1", "end all ranks <- 2"]
    assert [(e.bytes, e.root, e.flops) for e in found.events[:3]] == [
        (40, 0, 0),
        (4096, -1, 0),
        (0, -1, 2 * 128 * 2 * 256 * 512),
    ]
    assert found.skipped == {"communications in groups of one rank": 1}
    assert groups(found, "dp") == {(0, 2, 4, 6), (1, 3, 5, 7)}


def test_what_aicb_runs_itself_is_replayed(tmp_path: Path) -> None:
    name = rows(
        tmp_path,
        "all_reduce,CommGroup.dp_group,8,4096,forward",
        'computation,None,None,"((128, 2, 256), (256, 512))",gemm',
    )
    found = whole(name)
    assert (found.ranks, found.total_calls) == (8, 1)
    assert found.total_ps > found.calls[0].time_ps


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("isend,CommGroup.pp_group,2,8,f",), "messages of a pipeline are not read"),
        (
            ("all_reduce,CommGroup.tp_group,2,8,f", "all_reduce,CommGroup.tp_group,4,8,f"),
            "it had 2",
        ),
        (("all_reduce,CommGroup.tp_group,2,-8,f",), "msg_size '-8'"),
        (("all_reduce,CommGroup.tp_group,x,8,f",), "comm_group_size 'x'"),
        (("all_reduce,CommGroup.xp_group,2,8,f",), "1 x communications of groups 'xp_group'"),
        (('all_reduce,"CommGroup',), "not a line of a CSV file"),
    ],
)
def test_csv_nonsense_is_refused(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as error:
        read(rows(tmp_path, *lines))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


OLD = "comm_type,comm_group,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count"


def test_ranks_above_the_titles(tmp_path: Path) -> None:
    name = rows(
        tmp_path,
        "all_reduce,CommGroup.dp_group,4,4096,forward",
        "all_gather,CommGroup.tp_group,2,4096,forward",
        "all_to_all,CommGroup.tp_group,None,4096,forward",
        "all_reduce,CommGroup.dp_group,4,0,step",
    )
    path = Path(name)
    path.write_text("[rank0 ~ rank7]\n" + path.read_text())
    assert kind_of(name) == "simai"
    found = read(name)
    assert (found.num_ranks, len(found.events)) == (8, 24)
    assert found.skipped == {"communications of 0 bytes": 1}
    path.write_text(path.read_text().replace("rank7", "rank9"))
    with pytest.raises(InputError, match="the 10 ranks of its first line"):
        read(name)


def test_files_without_sizes_of_groups(tmp_path: Path) -> None:
    path = tmp_path / "Llama_tp2_pp1.csv"
    path.write_text(
        f"{OLD}\nCommType.all_reduce,CommGroup.dp_group,4096,warmup,None,None,,None,None,None,1\n"
        "CommType.all_reduce,CommGroup.tp_group,4096,warmup,None,None,,None,None,None,1\n"
    )
    assert kind_of(str(path)) == "simai"
    with pytest.raises(InputError, match="no column comm_group_size; set --topology"):
        read(str(path))
    found = read(str(path), num_ranks=8)
    assert groups(found, "dp") == {(0, 2, 4, 6), (1, 3, 5, 7)}
    assert groups(found, "tp") == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert "from the name of the file" in found.assumed[0]
    assert whole(str(path)).total_calls == 6
