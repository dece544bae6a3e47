"""Registry of the calibration rows of every calibrated parameter.

These rows must not be scored as predictions. A figure marked ``calibrated`` names the measurement sets
that it was taken from or fitted to. A set selects rows of a table of collectives by columns, so that
`clusim validate` can score them separately; other measurements (a data sheet's benchmark, timings of
single primitives) have no selector. Sets are conservative: if any size of a curve was inspected, the
complete curve is calibration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Value = str | int
"""Value of a column of a measurement."""

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Selector:
    """Filter of rows; every named column must have one of the listed values.

    Attributes
    ----------
    columns : mapping
        Column -> values; `source` matches each of the names joined by ``+``.
    sizes : (int, int)
        Least and greatest size [bytes].
    """

    columns: Mapping[str, tuple[Value, ...]]
    sizes: tuple[int, int] = (0, 1 << 62)

    def matches(self, row: Mapping[str, Value]) -> bool:
        """Return True if the selector matches a row with its columns and `size_bytes`."""
        low, high = self.sizes
        return low <= int(row["size_bytes"]) <= high and all(
            _holds(name, values, row) for name, values in self.columns.items()
        )


def _holds(name: str, values: tuple[Value, ...], row: Mapping[str, Value]) -> bool:
    result = row.get(name, "")
    if name == "source":
        return any(part in values for part in str(result).split("+"))
    return result in values


def _rows(sizes: tuple[int, int] = (0, 1 << 62), **columns: Value | tuple[Value, ...]) -> Selector:
    return Selector(
        {name: item if isinstance(item, tuple) else (item,) for name, item in columns.items()},
        sizes,
    )


@dataclass(frozen=True, slots=True)
class RowSet:
    """Set of measurements used to calibrate figures.

    Attributes
    ----------
    text : str
        Description.
    selectors : tuple of Selector
        Selectors of rows in a table of collectives; empty selects no rows.
    """

    name: str
    text: str
    selectors: tuple[Selector, ...] = ()

    def has(self, row: Mapping[str, Value]) -> bool:
        """Return True if a row of a table belongs to the set, by its columns."""
        return any(selector.matches(row) for selector in self.selectors)


_SETS = (
    RowSet(
        "simllm-a100",
        "collectives on 2 and 4 A100 in a mesh, a process each (simllm)",
        (_rows(source="simllm", system="a100x4-mesh"),),
    ),
    RowSet(
        "simllm-gh200",
        "collectives on 2 and 4 GH200 in a mesh, a process each (simllm)",
        (_rows(source="simllm", system="gh200x4-mesh"),),
    ),
    RowSet(
        "superbench-a100",
        "collectives on 8 A100 with -g 8 (superbench)",
        (_rows(source="superbench", system="dgx-a100"),),
    ),
    RowSet(
        "azure-a100",
        "all-reduce on 8 A100 with -g 8 (Azure's guide)",
        (_rows(source="AI-benchmarking-guide", system="dgx-a100"),),
    ),
    RowSet(
        "azure-hopper",
        "all-reduce on 8 H100 and 8 H200 with -g 8 (Azure's guide), and NVLS of 8 H100 with -t 8"
        " (aiconfigurator), checked as well",
        (
            _rows(source="AI-benchmarking-guide", system=("dgx-h100", "dgx-h200")),
            _rows(
                (2 * MIB, 1 << 62),
                source="aiconfigurator",
                system="dgx-h100",
                n_gpus=8,
                collective="all_reduce",
            ),
        ),
    ),
    RowSet(
        "wayne-h100",
        "collectives on 2, 4 and 6 H100 with -g, forced algorithms and protocols (waynehacking8)",
        (_rows(source="wayne"),),
    ),
    RowSet(
        "aiconfigurator-b200",
        "collectives on 2 and 8 B200 (aiconfigurator)",
        (_rows(source="aiconfigurator", system="hgx-b200"),),
    ),
    RowSet(
        "xxrjun-sendrecv",
        "sends and receives of 32 to 256 MiB on 4 and 8 H100 of a machine, on 4 to 16 channels (xxrjun)",
        (
            _rows(
                (32 * MIB, 256 * MIB),
                source="xxrjun",
                system="hgx-h100-ndr",
                n_nodes=1,
                collective="sendrecv",
            ),
        ),
    ),
    RowSet(
        "p5en-1-channel",
        "all-reduce on 4 p5en nodes with one channel, and LL and LL128 up to 8 KiB with any (ncclgauge)",
        (
            _rows(source="ncclgauge", system="aws-p5en", n_nodes=4, channels=1),
            # Sizes that use no further channel: the same measurement again.
            _rows(
                (0, 8 * KIB),
                source="ncclgauge",
                system="aws-p5en",
                n_nodes=4,
                protocol=("ll", "ll128"),
            ),
        ),
    ),
    RowSet(
        "p5en-8-channels",
        "Ring Simple all-reduce on 4 p5en nodes with 8 channels (ncclgauge)",
        (
            _rows(
                source="ncclgauge",
                system="aws-p5en",
                n_nodes=4,
                algorithm="ring",
                protocol="simple",
                channels=8,
            ),
        ),
    ),
    RowSet(
        "p5en-16-channels",
        "Ring LL128 all-reduce on 4 p5en nodes with 16 channels (ncclgauge)",
        (
            _rows(
                source="ncclgauge",
                system="aws-p5en",
                n_nodes=4,
                algorithm="ring",
                protocol="ll128",
                channels=16,
            ),
        ),
    ),
    RowSet(
        "alps-2",
        "all-reduce below 1 MiB on 2 Alps nodes (CSCS)",
        (_rows((0, MIB - 1), source="alps", system="alps-gh200", n_nodes=2),),
    ),
    RowSet(
        "dgx-spark-2",
        "all-reduce below 1 MiB on 2 DGX Spark, NCCL 2.31 (dgx-spark-playbooks)",
        (_rows((0, MIB - 1), system="dgx-spark", n_nodes=2, collective="all_reduce"),),
    ),
    RowSet(
        "polaris-2",
        "all-reduce below 1 MiB on 2 Polaris nodes, NCCL 2.18 (ALCF)",
        (
            _rows(
                (0, MIB - 1),
                source="alcf",
                system="polaris",
                n_nodes=2,
                collective="all_reduce",
                nccl_version="2.18",
            ),
        ),
    ),
    RowSet(
        "vidur",
        "all-reduces of a loop around torch.distributed under a profiler, A100 and H100 (vidur)",
    ),
    RowSet(
        "sglang-kernels",
        "SGLang's all-reduce kernels out of CUDA graphs on A100, H100 and B200 (aiconfigurator)",
    ),
    RowSet("launch-table", "launches and graph nodes on A100 and GH200 (simllm, launch table)"),
    RowSet("npkit-gh200", "timings of single primitives on GH200 (spcl/atlahs, npkit)"),
    RowSet("nccl-tuning", "latencies and rates that NCCL's tuner counts with (tuning.cc, topo.h)"),
    RowSet("copy-benchmarks", "copies and reads of memory, of links and of PCIe by copy engines"),
    RowSet("matrix-benchmarks", "isolated matrix products and attention kernels"),
    RowSet("deepep-h100", "DeepEP's exchanges on 8 H100 with one token, or 4 SMs (aiconfigurator)"),
    RowSet(
        "deepep-low-latency-h100",
        "DeepEP's exchanges for low latency on 8 H100 with one token, or 1,024 (aiconfigurator)",
    ),
    RowSet(
        "matrix-tables",
        "matrix products and attention on A100, H100 and B200, three of four shapes (aiconfigurator)",
    ),
    RowSet(
        "matrix-loops",
        "half of the matrix products in long runs on H100 (vidur) and on B200 (SimuMax)",
    ),
    RowSet(
        "training-runs",
        "iterations of Megatron-LM on A100 (arXiv 2205.05198)",
        (_rows(framework="Megatron-LM 2022"),),
    ),
    RowSet(
        "hosts-vtrain",
        "steps of a GPT of hidden size 1,024 on 2 to 8 A100 with microbatches of one sample in one stage (vTrain)",
        (
            _rows(
                source="VIA-Research/vTrain",
                n_gpus=(2, 4, 8),
                hidden=1024,
                micro_batch=1,
                pipeline=1,
            ),
        ),
    ),
    RowSet(
        "host-operators",
        "times of single operators and launches on hosts (HolisticTraceAnalysis, tritonbench, ocannl, cloudai.pt)",
    ),
    RowSet("mscclpp", "put and get of mscclpp on H100"),
    RowSet("taccl-v100", "fits of TACCL to 8 V100"),
    RowSet("nccl-1807", "NVLS all-reduce on B200 in NVIDIA/nccl thread 1807"),
    RowSet("rccl-mi300x", "all-reduce on 8 MI300X with RCCL"),
    RowSet("slingshot", "latencies of Slingshot (De Sensi et al., SC20)"),
)

ROW_SETS: dict[str, RowSet] = {item.name: item for item in _SETS}
"""Sets of measurements by name."""


def row_sets_of(row: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the names of the sets that a row of a table, by its columns, belongs to."""
    return tuple(item.name for item in _SETS if item.has(row))
