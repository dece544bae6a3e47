"""The functions of `clusim`: each says what its command says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import clusim
from clusim_cli.main import cli

TRACES = Path(__file__).parents[2] / "traces"


def out(*words: str) -> str:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_collective_is_that_of_the_command() -> None:
    words = ("run", "dgx-h100", "--collective", "broadcast", "--size", "64K", "--ranks", "1,3-5")
    told = (
        "--root",
        "3",
        "--env",
        "NCCL_PROTO=LL",
        "--nccl-version",
        "2.23",
        "--fault",
        "rank 3 slow x2",
    )
    shown = json.loads(out(*words, *told, "--json", "--no-progress"))
    result = clusim.collective(
        *("dgx-h100", "broadcast", "64K"),
        ranks=(1, 3, 4, 5),
        root=3,
        env={"NCCL_PROTO": "LL"},
        version="2.23",
        faults=["rank 3 slow x2"],
    )
    assert f"{result.fingerprint:016x}" == shown["fingerprint"]
    assert result.provenance.faults == tuple(shown["faults"])


def test_a_fabric_and_its_name_are_the_same() -> None:
    fabric = clusim.load("dgx-a100")
    by_name, by_fabric = (
        clusim.collective(what, "allreduce", 1 << 16, algorithm="nccl").fingerprint
        for what in ("dgx-a100", fabric)
    )
    assert by_name == by_fabric


def test_traffic_is_that_of_the_command() -> None:
    shown = json.loads(
        out(
            "traffic",
            "fat-tree:k=4",
            "--pattern",
            "uniform",
            "--duration",
            "20us",
            "--json",
            "--no-progress",
        )
    )
    result = clusim.traffic("fat-tree:k=4", "uniform", duration="20us")
    assert f"{result.fingerprint:016x}" == shown["fingerprint"]


def test_nccl_tests_is_the_table_of_the_command() -> None:
    words = ("nccl-tests", "all_gather_perf", "a100x4-mesh", "--jobs", "1")
    flags = "-b 1K -e 64K -f 8 -c 0"
    table = clusim.nccl_tests("all_gather_perf", "a100x4-mesh", flags, jobs=1)
    assert out(*words, *flags.split()) == table.text() + "\n"
    assert [line.size for line in table.lines] == [1 << 10, 8 << 10, 64 << 10]
    with pytest.raises(clusim.ClusimError, match="-q: not a flag"):
        clusim.nccl_tests("all_gather_perf", "a100x4-mesh", "-q 1")


def test_replay_is_that_of_the_command() -> None:
    log = str(TRACES / "ring-4.goal")
    shown = json.loads(out("replay", log, "--topology", "a100x4-mesh", "--json", "--no-progress"))
    # What errors to expect is the command's to say.
    assert shown.pop("expected_errors")
    found = clusim.replay(log, "a100x4-mesh")
    found.diagnose()
    assert found.to_json() == shown


def test_train_is_that_of_the_command() -> None:
    words = ("train", "bert-parameter-server", "--steps", "1", "--granularity", "1MiB", "--json")
    shown = json.loads(out(*words, "--no-progress"))
    found = clusim.train("bert-parameter-server", steps=1, granularity=1 << 20)
    assert f"{found.result.fingerprint:016x}" == shown["fingerprint"]


def test_no_function_writes_over_what_it_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    source = Path(__file__).parents[2] / "topologies" / "a100x4-mesh.yaml"
    path.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    fabric = clusim.load(path)
    schedule = clusim.collectives.build(fabric, "allreduce", "ring", 1 << 14)
    before = path.read_bytes()
    with pytest.raises(clusim.ClusimError, match="is an input and would be replaced"):
        clusim.simulate(fabric, schedule, trace_out=path)
    with pytest.raises(clusim.ClusimError, match="is an input and would be replaced"):
        clusim.collective(path, "allreduce", 1 << 14, trace_out=path)
    with pytest.raises(clusim.ClusimError, match="is an input and would be replaced"):
        clusim.traffic(str(path), "permutation", 4096, trace_out=path)
    log = tmp_path / "job.goal"
    log.write_bytes((TRACES / "ring-4.goal").read_bytes())
    with pytest.raises(clusim.ClusimError, match="is an input and would be replaced"):
        clusim.replay(log, "a100x4-mesh", trace_out=log)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", clusim.__all__)
def test_every_public_name_is_there_and_explained(name: str) -> None:
    if name != "__version__":
        assert getattr(clusim, name).__doc__, name
