"""GOAL schedules: what waits for what, which receive gets which message, cpus, rendezvous, damage."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim.base.errors import InputError
from clusim.formats.recordings import Event, Recording
from clusim.formats.recordings.kinds import kind_of
from clusim.replays import replay
from clusim.replays.placing import ReplayRequest
from clusim_cli.main import run
from clusim_formats.recordings.goal import EAGER_BYTES, read
from support.covering import examples

SAMPLE = Path(__file__).resolve().parents[3] / "traces" / "ring-4.goal"
US = 1_000_000
START = 1
"""What a kernel takes beyond its computing [ps]."""


def schedule(path: Path, *ranks: str) -> Recording:
    """Read a schedule; every argument is the operations of a rank, separated by ``;``."""
    path = path / "sample.goal" if path.is_dir() else path
    path.write_text(text_of(*ranks))
    return read(str(path))


def text_of(*ranks: str) -> str:
    text = f"num_ranks {len(ranks)}\n"
    for number, operations in enumerate(ranks):
        lines = "\n".join(part.strip() for part in operations.split(";"))
        text += f"rank {number} {{\n{lines}\n}}\n"
    return text


def named(found: Recording, rank: int, name: str) -> Event:
    (event,) = [e for e in found.events if (e.rank, e.name) == (rank, name)]
    return event


def after(found: Recording, event: Event) -> set[str]:
    return {found.events[d].name for d in event.deps}


def total(path: Path, *ranks: str) -> int:
    schedule(path, *ranks)
    name = str(path / "sample.goal" if path.is_dir() else path)
    return replay(ReplayRequest((name,), topology="dgx-h100")).total_ps


def test_the_sample_is_read_as_it_says() -> None:
    found = read(str(SAMPLE))
    assert (found.num_ranks, len(found.events)) == (4, 24)
    assert not found.assumed
    assert not found.skipped
    assert found.groups[0].ranks == (0, 1, 2, 3)
    send, recv = named(found, 2, "b"), named(found, 3, "c")
    assert (send.kind, send.peer, send.bytes, send.tag) == ("send", 3, 1 << 20, 7)
    assert (recv.kind, recv.peer, recv.tag, recv.sequence) == ("recv", 2, 7, send.sequence)
    assert named(found, 0, "a").duration_ps == 20 * US
    assert after(found, send) == {"a"}
    assert after(found, recv) == {"a"}  # irequires b: what b waits for
    assert named(found, 0, "d").where.endswith("ring-4.goal:8")


def test_a_small_send_does_not_hold_its_rank_and_a_large_one_does(tmp_path: Path) -> None:
    for size, expected in ((EAGER_BYTES, {"a"}), (EAGER_BYTES + 1, {"s"})):
        found = schedule(
            tmp_path,
            f"a: calc 10; s: send {size}b to 1; c: calc 5; s requires a; c requires s",
            f"recv {size}b from 0",
        )
        assert after(found, named(found, 0, "c")) >= expected
        assert ("s" in after(found, named(found, 0, "c"))) == (size > EAGER_BYTES)


def test_a_cpu_does_one_calc_at_a_time_and_cpus_run_side_by_side(tmp_path: Path) -> None:
    one = total(tmp_path, "calc 30000; calc 20000", "calc 1000")
    two = total(tmp_path, "calc 30000 cpu 0; calc 20000 cpu 1", "calc 1000")
    assert (one, two) == (50 * US + 2 * START, 30 * US + START)
    found = schedule(tmp_path, "a: calc 30; b: calc 20; c: calc 10; c requires b", "calc 1")
    assert found.assumed == [
        "calcs that share a cpu without a requires between them run in the order of readiness: 1"
    ]


def test_the_calc_that_is_ready_first_has_the_cpu_first(tmp_path: Path) -> None:
    found = schedule(
        tmp_path,
        "late: calc 10; r: recv 8b from 1; late requires r; early: calc 40; next: calc 5; next requires early",
        "w: calc 20; s: send 8b to 0; s requires w",
    )
    assert [e.name for e in found.events if e.rank == 0 and e.kind == "compute"] == [
        "early",
        "late",
        "next",
    ]


def test_a_chain_over_ranks_takes_the_sum_of_its_parts(tmp_path: Path) -> None:
    message = total(tmp_path, "send 1000000b to 1", "recv 1000000b from 0")
    chain = total(
        tmp_path,
        "a: calc 20000; s: send 1000000b to 1; s requires a",
        "r: recv 1000000b from 0; c: calc 15000; c requires r",
    )
    assert chain == 35 * US + 2 * START + message


def test_messages_of_a_pair_and_tag_match_in_the_order_in_which_they_start(tmp_path: Path) -> None:
    found = schedule(
        tmp_path,
        "late: send 100b to 1 tag 3; early: send 200b to 1 tag 3; late requires early",
        "x: recv 200b from 0 tag 3; y: recv 100b from 0 tag 3; y requires x",
    )
    assert named(found, 0, "early").sequence == named(found, 1, "x").sequence == 0
    assert named(found, 0, "late").sequence == named(found, 1, "y").sequence == 1


def test_a_receive_of_any_rank_and_tag_gets_the_first_message(tmp_path: Path) -> None:
    found = schedule(
        tmp_path,
        "x: recv 8b from -1 tag -1; y: recv 8b from -1 tag 5; y requires x",
        "w: calc 50; s: send 8b to 0 tag 5; s requires w",
        "w: calc 10; s: send 8b to 0 tag 9; s requires w",
    )
    first, second = named(found, 0, "x"), named(found, 0, "y")
    assert (first.peer, first.tag) == (2, 9)
    assert (second.peer, second.tag) == (1, 5)
    assert not found.assumed


def test_large_sends_in_a_circle_are_let_go_and_said(tmp_path: Path) -> None:
    ring = [
        f"s: send 1000000b to {(r + 1) % 3}; r: recv 1000000b from {(r - 1) % 3}; r requires s"
        for r in range(3)
    ]
    found = schedule(tmp_path, *ring)
    assert "wait for each other forever" in found.assumed[0]
    assert total(tmp_path, *ring) > 0


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (("a: calc 1; b: calc 1; a requires b; b requires a", "calc 1"), "3: calc a of rank 0 never gets done"),
        (tuple(f"r: recv 8b from {r}; s: send 8b to {r}; s requires r" for r in (1, 0)), "3: recv r of rank 0 never"),
        (("calc 5; a requires b", "calc 1"), "4: rank 0 has no operation a"),
        (("a: calc 5; a: calc 6", "calc 1"), "label a occurs twice"),
        (("send 8b to 2", "calc 1"), "must be a rank of 0..1"),
        (("send 8b to -1", "calc 1"), "must be a rank"),
        (("recv 8b to 1", "calc 1"), "recv Nb from R"),
        (("send 8b to 1 tag -1", "calc 1"), "at least 0"),
        (("send 9999999999999b to 1", "calc 1"), "at most 1 TiB"),
        (("calc 9999999999999999", "calc 1"), "at most"),
        (("calculate 5", "calc 1"), "expected calc T"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_its_line(
    tmp_path: Path, ranks: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=r"sample\.goal:\d+: ") as error:
        schedule(tmp_path, *ranks)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_ranks 2\nrank 0 {\ncalc 5\n", "no closing '}'"),
        ("num_ranks 0\n", "must be there once"),
        ("num_ranks 2\nrank 2 {\n}\n", "num_ranks is 2"),
        ("num_ranks 2\nrank 0 {\n}\nrank 0 {\n}\n", "occurs twice"),
        ("num_ranks 2\nrank 0 {\n}\n", "no operations to simulate"),
        ("rank 0 {\n}\n", "num_ranks is 0"),
        ("\n", "no num_ranks"),
    ],
)
def test_a_broken_frame_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.goal"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read(str(path))
    assert message in str(error.value)


def test_messages_without_another_end_are_counted(tmp_path: Path) -> None:
    found = schedule(
        tmp_path,
        "s: send 100000b to 1; c: calc 5; c requires s; q: recv 8b from 1; d: calc 2; d requires c; d requires q",
        "calc 1",
    )
    assert found.assumed[0].startswith("2 messages have only one end")
    assert {e.name for e in found.events} == {"s", "c", "q", "d", "calc"}
    found = schedule(tmp_path, "x: recv 8b from -1; d: calc 2; d requires x", "calc 1")
    assert found.skipped == {"receives from any rank without a send": 1}
    assert [e.name for e in found.events] == ["calc", "d"]


def test_messages_of_a_rank_to_itself_only_order_things(tmp_path: Path) -> None:
    found = schedule(
        tmp_path,
        "a: calc 10 cpu 1; s: send 99999b to 0; s requires a; r: recv 99999b from 0; b: calc 5; b requires r",
        "c: calc 1",
    )
    assert [e.name for e in found.events if e.rank == 0] == ["a", "b"]
    assert after(found, named(found, 0, "b")) == {"a"}
    assert found.assumed == ["sends and receives of a rank with itself need no time: 2"]


def test_comments_and_one_line_ranks_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.goal"
    path.write_text("/* two\nlines */ num_ranks 2 // two\nrank 0 { calc 5 }\nrank 1 {\ncalc 7\n}\n")
    assert [e.duration_ps for e in read(str(path)).events] == [5000, 7000]
    assert kind_of(str(path)) == "goal"


def test_endless_schedules_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusim_formats.recordings.goal.MOST_EVENTS", 5)
    with pytest.raises(InputError, match="more than 5 operations"):
        schedule(tmp_path, "calc 1; calc 1; calc 1", "calc 1; calc 1; calc 1")


def test_many_operations_of_one_cpu_are_read_in_a_moment(tmp_path: Path) -> None:
    found = schedule(tmp_path, "; ".join(["calc 5"] * 20_000), "calc 1")
    assert len(found.events) == 20_001


WORDS = ["requires", "irequires", "calc", "send", "-1", "99999", "}", "{", "\0", "rank 1 {", "tag"]


@settings(max_examples=examples(25))
@given(seed=st.integers(0, 10**6), how=st.sampled_from(["drop", "cut", "swap", "mutate"]))
def test_damage_is_refused_or_invents_nothing(seed: int, how: str) -> None:
    rng = random.Random(seed)
    lines = SAMPLE.read_text().splitlines()
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    if how == "drop":
        del lines[at]
    elif how == "cut":
        lines[at:] = [lines[at][: rng.randrange(len(lines[at]) + 1)]]
    elif how == "swap":
        lines[at], lines[other] = lines[other], lines[at]
    else:
        words = lines[at].split(" ")
        words[rng.randrange(len(words))] = rng.choice(WORDS)
        lines[at] = " ".join(words)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.goal"
        path.write_text("\n".join(lines) + "\n")
        try:
            found = read(str(path))
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
            return
    if how in ("drop", "cut"):
        known = {(e.rank, e.kind, e.name, e.bytes, e.peer) for e in read(str(SAMPLE)).events}
        assert {(e.rank, e.kind, e.name, e.bytes, e.peer) for e in found.events} <= known


def test_the_sample_is_replayed_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(SAMPLE), "--topology", "dgx-h100"]) == 0
    shown = capsys.readouterr().out
    assert "goal" in shown
    assert "computing 35 us" in shown
    assert "8 calls" in shown


@pytest.mark.parametrize("comment", ["/**/", "<!---->", "// \n", "# \n", " "])
def test_a_file_of_comments_is_told_apart_in_a_moment(tmp_path: Path, comment: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(comment * 5000 + "x\n")
    assert kind_of(str(path)) == "nccl-log"
    path.write_text(f"{comment * 500}num_ranks 2\n" if "-" not in comment else f"{comment} <algo x")
    assert kind_of(str(path)) == ("goal" if "-" not in comment else "msccl")
