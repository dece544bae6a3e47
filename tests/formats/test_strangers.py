"""Files that other people posted, with the answer that is right, or that the file must be refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusim.base.errors import ClusimError
from clusim.base.terms.operations import Algorithm
from clusim.formats.logs.jobranks import job_ranks
from clusim.formats.logs.log import read_logs
from clusim.formats.topologies import import_file
from clusim.nccl import Version, communicator, parse_env
from clusim.nccl.system_paths import direct_rdma
from clusim.nccl.topology import build_system
from clusim.replays.machine_match import infer_machine
from clusim.topology.arrays import arrays_of
from clusim.topology.loading import join_nodes
from clusim.topology.rails import Rails
from clusim_cli.main import run

FOLDER = Path(__file__).with_name("strangers")


def chips(name: str, **given: str) -> set[str]:
    nodes = import_file(FOLDER / name, **given).data["nodes"].values()  # type: ignore[arg-type]
    return {node["chip"] for node in nodes if node["kind"] == "gpu"}


def shown(args: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert run(args) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "given", "chip", "counts"),
    [
        ("gb300_tray_4vf.xml", {}, "gb300", {"gpus": 4, "nics": 4, "cpus": 2, "c2c_links": 4}),
        ("gb300_2tray_bad.xml", {}, "gb300", {"gpus": 8, "nvlink_links": 7 * 18}),
        ("spark_twonic.xml", {}, "gb10", {"gpus": 1, "nics": 2, "c2c_links": 1}),
        ("gb10_wifi.xml", {}, "gb10", {"gpus": 1, "nics": 2}),
        ("t4_four.txt", {"chip": "t4"}, "t4", {"gpus": 4, "cpus": 2}),
        ("r6000d_topo.txt", {"chip": "rtx-pro-6000-server"}, "rtx-pro-6000-server", {"nics": 8}),
    ],
)
def test_a_topology_has_the_hardware_of_its_file(
    name: str, given: dict[str, str], chip: str, counts: dict[str, int]
) -> None:
    assert chips(name, **given) == {chip}
    found = import_file(FOLDER / name, **given).counts  # type: ignore[arg-type]
    assert {key: found.get(key) for key in counts} == counts


def test_an_accelerator_of_an_unknown_vendor_is_refused_unless_a_chip_is_given() -> None:
    with pytest.raises(ClusimError, match="PCI device 1d94:55b7: not a GPU of NVIDIA or"):
        import_file(FOLDER / "dcu.xml")
    assert chips("dcu.xml", chip="mi100") == {"mi100"}


@pytest.mark.parametrize("release", [Version(2, 27, 7), Version(2, 29)])
def test_the_nics_of_a_superchip_write_to_its_gpus(release: Version) -> None:
    """Measured: 175 GB/s over four functions of 200 Gb/s each, their line rate."""
    tray = join_nodes(import_file(FOLDER / "gb300_tray_4vf.xml").fabric(), 2)
    system = build_system(tray, release, parse_env({"NCCL_NVLS_ENABLE": "0"}))
    assert all(
        direct_rdma(system, gpu, net) for gpu, net in zip(system.gpus, system.adapters, strict=True)
    )
    rails = Rails(arrays_of(tray))
    assert all(rails.direct(rank, rank) for rank in range(4))


def test_a_gpu_of_a_rack_without_links_leaves_one_ring_and_no_nvls() -> None:
    """Measured: 33 to 52 GB/s in place of some 700."""
    comm = communicator(import_file(FOLDER / "gb300_2tray_bad.xml").fabric(), Version(2, 29))
    ring = comm.graphs[Algorithm.RING]
    assert (ring.num_channels, ring.intra_GBps) == (1, 0.1)
    assert (comm.num_channels, comm.nvls_channels) == (2, 0)


def test_gpus_of_a_table_are_at_their_nics_and_cpus() -> None:
    found = import_file(FOLDER / "r6000d_topo.txt", chip="rtx-pro-6000-server", cpu="epyc-turin")
    rails = Rails(arrays_of(found.fabric()))
    assert [rails.nearest_rails(rank) for rank in range(8)] == [(rank,) for rank in range(8)]


@pytest.mark.parametrize(
    ("rules", "operation", "algorithm", "note"),
    [
        ("tuner_numbers.csv", "allreduce", "ring", "uses Ring Simple"),
        ("tuner_alltoall.csv", "alltoall", "p2p", "alltoall does not use the tuner"),
    ],
)
def test_a_file_of_a_tuner_is_obeyed(
    rules: str, operation: str, algorithm: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = f"NCCL_TUNER_CONFIG_FILE={FOLDER / rules}"
    args = ["run", "dgx-h100", "-c", operation, "--size", "2MiB", "--env", env, "--json"]
    result = shown(args, capsys)
    assert result["algorithm"] == algorithm
    assert note in " ".join(result["notes"])


def test_the_platform_of_the_plugin_is_the_system() -> None:
    log = read_logs([str(FOLDER / "p4d_pods.log")])
    assert infer_machine(log, job_ranks(log)).topology == "aws-p4d"


def test_the_command_line_above_a_table_sets_variables() -> None:
    log = read_logs([str(FOLDER / "r6000d_alltoall.txt")])
    assert [list(one.sizes) for one in log.runs] == [[1024, 1 << 20, 1 << 24, 1 << 28]]
    values = {name: next(iter(found)) for name, found in log.facts.environment.items()}
    assert values["NCCL_IB_QPS_PER_CONNECTION"] == "4"
    assert values["NCCL_IB_HCA"].count(",") == 7


def test_a_table_without_ranks_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "summary", str(FOLDER / "mi300x_228.txt")]) == 0
    assert "Measured: all_reduce, ? ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mi350_algoproto.txt", "no line of NCCL, RCCL or nccl-tests"),
        ("p4_nodes_col.txt", "no line of"),
    ],
)
def test_a_table_that_lacks_times_or_has_other_columns_is_refused(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "summary", str(FOLDER / name)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "topology", "nodes"),
    [("inspector_float.log", "dgx-h100", 3), ("inspector_231_algo.log", "dgx-h100", 2)],
)
def test_records_of_the_inspector_are_replayed(
    name: str, topology: str, nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", str(FOLDER / name), topology, "--nodes", str(nodes)]) == 0
    assert "allreduce" in capsys.readouterr().out


def test_a_record_without_the_name_of_its_communicator_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["replay", str(FOLDER / "accl.jsonl"), "mi300x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
