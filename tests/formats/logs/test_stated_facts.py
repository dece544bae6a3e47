"""Facts that lines beside NCCL's state: command lines, the platform of a plugin, multi-node NVLink."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.formats.logs.jobranks import job_ranks
from clusim.formats.logs.log import Log, read_logs
from clusim.formats.logs.messages import command_line
from clusim.replays.machine_match import infer_machine

HEADER = (
    "# nThread 1 nGpus 1 minBytes 1024 maxBytes 1024 step: 2(factor) warmup iters: 1 iters: 20\n"
)


def logged(tmp_path: Path, text: str) -> Log:
    path = tmp_path / "job.log"
    path.write_text(text)
    return read_logs([str(path)])


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        # Public alltoall of two nodes with eight RTX 6000D (NVIDIA/nccl).
        (
            r"mpirun -npernode 8 -x NCCL_DEBUG=WARN -x NCCL_IB_HCA=mlx5_2\,mlx5_3 -x NCCL_P2P_DISABLE=1 ./x",
            {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "mlx5_2,mlx5_3", "NCCL_P2P_DISABLE": "1"},
        ),
        ("mpirun -x NCCL_DEBUG -x NCCL_ALGO=Ring ./all_reduce_perf -b 8", {"NCCL_ALGO": "Ring"}),
        ("$ NCCL_PROTO=Simple ./build/all_reduce_perf -b 8 -e 1G", {"NCCL_PROTO": "Simple"}),
        ("mpiexec.hydra -genv NCCL_ALGO 'Tree,Ring' -n 8 x", {"NCCL_ALGO": "Tree,Ring"}),
        ("srun --export=ALL,NCCL_NVLS_ENABLE=0 ./a.out", {"NCCL_NVLS_ENABLE": "0"}),
        ("We saw that NCCL_ALGO=Ring is faster", {}),
    ],
)
def test_a_pasted_command_line_sets_variables(line: str, settings: dict[str, str]) -> None:
    assert command_line(line) == settings


def test_variables_of_a_command_line_are_settings_of_the_job(tmp_path: Path) -> None:
    log = logged(tmp_path, f"mpirun -np 2 -x NCCL_ALGO=Ring ./all_reduce_perf -b 1K\n{HEADER}")
    assert log.facts.environment == {"NCCL_ALGO": {"Ring": set()}}


def comm(host: str, rank: int, more: str, ranks: int = 4) -> str:
    head = f"{host}:{100 + rank}:{100 + rank} [0] NCCL INFO "
    init = f"comm 0x5{rank} rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 101d0"
    return (
        f"{head}ncclCommInitRankConfig {init} commId 0xb1 - Init START\n"
        f"{head}comm 0x5{rank} rank {rank} nRanks {ranks} {more}\n"
        f"{head}ncclCommInitRankConfig {init} commId 0xb1 - Init COMPLETE\n"
    )


@pytest.mark.parametrize(
    ("platform", "preset"), [("p4d.24xlarge", "aws-p4d"), ("p6-b200.48xlarge", "aws-p6-b200")]
)
def test_the_platform_of_the_network_plugin_is_the_system(
    tmp_path: Path, platform: str, preset: str
) -> None:
    ofi = f"h0:100:100 [0] NCCL INFO NET/OFI Running on {platform} platform, topology file /x.xml\n"
    text = ofi + comm("h0", 0, "nNodes 4 localRanks 1 localRank 0 MNNVL 0")
    log = logged(tmp_path, text)
    assert infer_machine(log, job_ranks(log)).topology == preset
    log = logged(tmp_path, text.replace(platform, "x1e.32xlarge"))
    with pytest.raises(InputError, match="unknown system"):
        infer_machine(log, job_ranks(log))


@pytest.mark.parametrize(("mnnvl", "local", "nodes"), [(1, 4, 1), (0, 2, 2), (1, 2, 2)])
def test_hosts_that_multi_node_nvlink_joins_are_one_node(
    tmp_path: Path, mnnvl: int, local: int, nodes: int
) -> None:
    more = f"nNodes {4 // local} localRanks {local} localRank {{}} MNNVL {mnnvl}"
    text = "".join(
        comm(f"tray{rank // 2}", rank, more.format(rank % local)).replace(
            "101d0", f"{rank % 2 + 1}01d0"
        )
        for rank in range(4)
    )
    assert len(job_ranks(logged(tmp_path, text)).machines) == nodes


def test_a_table_that_a_web_page_renders_is_read(tmp_path: Path) -> None:
    """Without the signs of comments, and with single blanks or bars in place of columns."""
    titles = "time algbw busbw #wrong"
    heads = f"size count type redop root {titles} {titles}"
    row = "1024 256 float sum -1 53.88 0.02 0.04 0 54.23 0.02 0.04 0"
    for separator in (" ", "\t", " | "):
        text = f"{heads}\n{row}".replace(" ", separator)
        sizes = logged(tmp_path, text).runs[0].sizes
        assert list(sizes) == [1024]
