"""Rules of tuner plugins: forms of the file, its first matching line, and every command that plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusim import topology
from clusim.base.errors import InputError
from clusim.base.terms.operations import Collective
from clusim.nccl import LATEST, parse_env
from clusim.nccl.choice import Communicators
from clusim.nccl.communicator import Communicator
from clusim_cli.main import run

HEAD = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n"
MiB = 1 << 20


def planned(tmp_path: Path, *lines: str, preset: str = "dgx-a100") -> Communicator:
    """Return the communicator of a node whose tuner reads these lines."""
    path = tmp_path / "tuner.csv"
    path.write_text(HEAD + "\n".join(lines))
    settings = parse_env({"NCCL_TUNER_CONFIG_FILE": str(path)})
    return Communicators(topology.load(preset), LATEST, settings).of(None).comm


def choice(comm: Communicator, size: int = 4 * MiB) -> tuple[str, str, int]:
    chosen = comm.select(Collective.ALLREDUCE, size)
    return chosen.algorithm.value, chosen.protocol.value, chosen.threads.num_channels


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("allreduce,0,67108864,tree,ll128,8,1,8", ("Tree", "LL128", 8)),
        ("allreduce,0,67108864,tree,ll128,8,-1,-1,-1,-1", ("Tree", "LL128", 8)),
        (" allreduce , 0 , 67108864 , ring , ll , 3 , 1 , 8 , 1 , 0 ", ("Ring", "LL", 3)),
        ("allreduce,0,67108864,ring,ll128,5,1,8,-1,-1,spx,-1", ("Ring", "LL128", 5)),
        ("allreduce,0,67108864,0,2,7,1,8,-1,-1", ("Ring", "Simple", 7)),  # the plugin's defaults
    ],
)
def test_a_line_sets_algorithm_protocol_and_channels(
    tmp_path: Path, line: str, expected: tuple[str, str, int]
) -> None:
    assert choice(planned(tmp_path, line)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "allreduce,0,4194303,tree,ll,1,1,8",  # a byte too small
        "allreduce,0,67108864,tree,ll,1,2,8",
        "allreduce,0,67108864,tree,ll,1,1,16",
        "allreduce,0,67108864,tree,ll,1,1,8,4,-1",  # grouped
        "allreduce,0,67108864,tree,ll,1,1,8,-1,1",  # registered buffers
        "allgather,0,67108864,ring,ll,1,1,8",
        "alltoall,0,67108864,none,none,16,1,8,-1,-1",
        "allreduce,0,67108864,nvls,simple,1,1,8",  # not supported by this system
        "allreduce,0,67108864,tree,ll,1",
    ],
)
def test_a_line_for_another_call_leaves_the_choice_to_nccl(tmp_path: Path, line: str) -> None:
    assert choice(planned(tmp_path, line)) == choice(
        planned(tmp_path, "reduce,0,1,ring,simple,1,1,8")
    )


def test_the_first_supported_line_counts_and_minus_one_keeps_the_channels(tmp_path: Path) -> None:
    lines = ("allreduce,0,9999999,nvls,simple,1,-1,-1", "allreduce,0,9999999,tree,simple,-1,-1,-1")
    algorithm, protocol, channels = choice(planned(tmp_path, *lines, "allreduce,0,9,ring,ll,1,1,8"))
    assert (algorithm, protocol) == ("Tree", "Simple")
    assert channels > 1


def test_rccl_skips_a_line_with_unknown_words(tmp_path: Path) -> None:
    line = "allreduce,0,67108864,0,2,7,1,8,-1,-1"
    given = planned(tmp_path, line, preset="mi300x")
    assert choice(given) == choice(planned(tmp_path, "reduce,0,1,ring,ll,1,1,8", preset="mi300x"))
    ruled = planned(tmp_path, line.replace("0,2,7", "ring,ll,7"), preset="mi300x")
    assert choice(ruled) == ("Ring", "LL", 7)


def test_more_channels_than_the_communicator_has_are_all_of_them(tmp_path: Path) -> None:
    comm = planned(tmp_path, "allreduce,0,67108864,ring,simple,64,-1,-1")
    assert choice(comm) == ("Ring", "Simple", comm.num_channels)


def test_skipped_lines_and_missing_files_are_named(tmp_path: Path) -> None:
    comm = planned(tmp_path, "alltoall,0,9,none,none,16,1,8,-1,-1", "allreduce,0,x,ring,ll,1,1,8")
    notes = " ".join(comm.notes)
    assert "line 2 of tuner.csv skipped: alltoall does not use the tuner" in notes
    assert "line 3 of tuner.csv skipped: 8 to 12 columns with numbers are needed" in notes
    with pytest.raises(InputError, match="no such file"):
        parse_env({"NCCL_TUNER_CONFIG_FILE": str(tmp_path / "none.csv")})
    (tmp_path / "empty.csv").write_text("# nothing\n")
    with pytest.raises(InputError, match="no line 'collective,min,max"):
        parse_env({"NCCL_TUNER_CONFIG_FILE": str(tmp_path / "empty.csv")})


def test_run_nccl_tests_and_replay_obey_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.csv"
    rules.write_text("allreduce,0,4294967295,tree,ll,-1,-1,-1\n")
    env = ["--env", f"NCCL_TUNER_CONFIG_FILE={rules}"]
    assert run(["run", "a100x4-mesh", "--size", "64KiB", "--json", *env]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"] == "tree"
    table = ["nccl-tests", "all_reduce_perf", "a100x4-mesh", "-b", "64K", "-e", "64K", "-g", "4"]
    assert run([*table, *env]) == 0
    ruled = capsys.readouterr().out
    assert run(table) == 0
    assert ruled != capsys.readouterr().out
    assert run([*table, "--env", "NCCL_ALGO=Tree", "--env", "NCCL_PROTO=LL"]) == 0
    assert ruled.splitlines()[-4:] == capsys.readouterr().out.splitlines()[-4:]
    assert run(["explain", "a100x4-mesh", "--size", "64KiB", "--json", *env]) == 0
    assert "line 1 of rules.csv" in capsys.readouterr().out
    measured = tmp_path / "measured.txt"
    measured.write_text(ruled)
    assert run(["replay", str(measured), "a100x4-mesh", *env]) == 0
    assert "Tree LL" in capsys.readouterr().out
