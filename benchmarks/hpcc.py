"""Flow completion times of clusim beside those of HPCC's simulator, on flows like those of three of its figures.

``python benchmarks/hpcc.py PATH/TO/third`` prints a table in Markdown. The program is ``scratch/third.cc`` of
https://github.com/alibaba-edu/High-Precision-Congestion-Control (ns-3; ``./waf build`` in ``simulation``), its settings
are those of ``run.py`` for 100 Gb/s.

Both simulate 32 hosts of 100 Gb/s under eight leaves with one link of 400 Gb/s each to a spine (so no flow has a choice
of paths), store-and-forward, 1 us per link and packets with 1,000 B of payload. Flows are between leaves. A flow is
complete when its sender has the last acknowledgement: clusim's completions are later by its way back. Both mark packets
that leave a long queue.

Different in HPCC's simulator: acknowledgements are packets of 60 to 100 B that share the wires.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import clusim

LEAVES, HOSTS_PER_LEAF = 8, 4
HOSTS = LEAVES * HOSTS_PER_LEAF
PAYLOAD_BYTES = 1000
SEEDS = 5
"""Runs of clusim, whose flows are in one distribution: chance decides on the first mark of a short flow."""

ACK_US = 4.0
"""Way back of an acknowledgement: four links of 1 us."""

WEB_SEARCH = (
    (0, 0),
    (10_000, 15),
    (20_000, 20),
    (30_000, 30),
    (50_000, 40),
    (80_000, 53),
    (200_000, 60),
    (1_000_000, 70),
    (2_000_000, 80),
    (5_000_000, 90),
    (10_000_000, 97),
    (30_000_000, 100),
)
"""Sizes [bytes] and their cumulative shares [%]: *published* in ``traffic_gen/WebSearch_distribution.txt``."""

CONFIG = """
ENABLE_QCN 1
USE_DYNAMIC_PFC_THRESHOLD 1
PACKET_PAYLOAD_SIZE 1000
TOPOLOGY_FILE topology.txt
FLOW_FILE flow.txt
TRACE_FILE trace.txt
TRACE_OUTPUT_FILE mix.tr
FCT_OUTPUT_FILE fct.txt
PFC_OUTPUT_FILE pfc.txt
SIMULATOR_STOP_TIME 3.0
CLAMP_TARGET_RATE 0
ALPHA_RESUME_INTERVAL 1
RATE_DECREASE_INTERVAL 4
RP_TIMER 300
EWMA_GAIN 0.00390625
FAST_RECOVERY_TIMES 1
MIN_RATE 1000Mb/s
DCTCP_RATE_AI 1000Mb/s
ERROR_RATE_PER_LINK 0.0
L2_CHUNK_SIZE 4000
L2_ACK_INTERVAL 1
L2_BACK_TO_ZERO 0
GLOBAL_T 1
U_TARGET 0.95
MI_THRESH 0
MULTI_RATE 0
SAMPLE_FEEDBACK 0
PINT_LOG_BASE 1.01
PINT_PROB 1.0
RATE_BOUND 1
LINK_DOWN 0 0 0
ENABLE_TRACE 0
KMAX_MAP 2 100000000000 1600 400000000000 6400
KMIN_MAP 2 100000000000 400 400000000000 1600
PMAX_MAP 2 100000000000 0.20 400000000000 0.20
BUFFER_SIZE 32
QLEN_MON_FILE qlen.txt
QLEN_MON_START 2900000000
QLEN_MON_END 2900000001
"""

CONTROLS = {
    "hpcc": """
CC_MODE 3
RATE_AI 40Mb/s
RATE_HAI 40Mb/s
HAS_WIN 1
VAR_WIN 1
FAST_REACT 1
INT_MULTI 4
ACK_HIGH_PRIO 0
""",
    "dcqcn": """
CC_MODE 1
RATE_AI 20Mb/s
RATE_HAI 200Mb/s
HAS_WIN 0
VAR_WIN 0
FAST_REACT 0
INT_MULTI 1
ACK_HIGH_PRIO 1
""",
}
"""Settings of ``run.py`` that differ between the controls."""

POLICIES = {
    "hpcc": (
        90,
        "{policy: hpcc, constants: {most_steps: 0}, min_rate: 1Gb/s, cnp_delay: 4us}",
    ),
    "dcqcn": (
        48,
        f"{{policy: '{Path(__file__).with_name('hpcc_policies.py')}:NicDcqcn', min_rate: 1Gb/s, cnp_delay: 4us}}",
    ),
}
"""Bytes of headers, and the rate control of the NICs."""


@dataclass(frozen=True)
class Flow:
    """A flow: hosts, payload [bytes], start [ns]."""

    source: int
    destination: int
    size_bytes: int
    start_ns: int


def long_and_short() -> list[Flow]:
    """Return a long flow, and a short one to the same host that begins 1 ms later."""
    return [Flow(0, 31, 30_000_000, 0), Flow(4, 31, 1_000_000, 1_000_000)]


def incast() -> list[Flow]:
    """Return a long flow into a host, and 16 senders of 500 kB that begin 0.5 ms later."""
    burst = [Flow(host, 31, 500_000, 500_000) for host in range(4, 20)]
    return [Flow(0, 31, 10_000_000, 0), *burst]


def web_search(load: float = 0.5, end_ns: int = 4_000_000) -> list[Flow]:
    """Return flows with the sizes of web search that begin at random at a share of the hosts' rate."""
    draws = np.random.default_rng(2019)
    sizes, shares = np.array(WEB_SEARCH, float).T
    mean_bytes = np.sum(np.diff(shares) / 100 * (sizes[1:] + sizes[:-1]) / 2)
    between_ns = mean_bytes / (load * HOSTS * 12.5)
    flows = []
    at_ns = draws.exponential(between_ns)
    while at_ns < end_ns:
        source, destination = (
            int(host) for host in draws.choice(HOSTS, 2, replace=False)
        )
        if source // HOSTS_PER_LEAF != destination // HOSTS_PER_LEAF:
            size = int(np.interp(100 * draws.random(), shares, sizes)) + 1
            flows.append(Flow(source, destination, size, int(at_ns)))
            at_ns += draws.exponential(between_ns)
    return flows


FIGURES = {
    "long and short (9a)": long_and_short,
    "incast (9c)": incast,
    "web search (11)": web_search,
}


def published_us(program: Path, flows: list[Flow], control: str) -> list[float]:
    """Return the completion times of HPCC's simulator [us]."""
    switches = range(HOSTS, HOSTS + LEAVES + 1)
    wires = [
        f"{host} {HOSTS + host // HOSTS_PER_LEAF} 100Gbps 0.001ms 0"
        for host in range(HOSTS)
    ]
    wires += [f"{leaf} {switches[-1]} 400Gbps 0.001ms 0" for leaf in switches[:-1]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        head = f"{HOSTS + len(switches)} {len(switches)} {len(wires)}"
        names = " ".join(map(str, switches))
        (folder / "topology.txt").write_text("\n".join([head, names, *wires, ""]))
        rows = [
            f"{flow.source} {flow.destination} 3 100 {flow.size_bytes} {2 + (flow.start_ns + 0.5) / 1e9:.10f}"
            for flow in flows
        ]
        (folder / "flow.txt").write_text("\n".join([str(len(rows)), *rows, ""]))
        (folder / "trace.txt").write_text("0\n")
        (folder / "config.txt").write_text(CONFIG + CONTROLS[control])
        subprocess.run(
            [program.resolve(), "config.txt"],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        table = [
            line.split() for line in (folder / "fct.txt").read_text().splitlines()
        ]
    # Addresses are 0b00HHHH01 with the number of the host.
    times = {
        (int(row[0][2:6], 16), int(row[1][2:6], 16), int(row[4]), int(row[5])): int(
            row[6]
        )
        / 1e3
        for row in table
    }
    return [
        times[
            flow.source,
            flow.destination,
            flow.size_bytes,
            2_000_000_000 + flow.start_ns,
        ]
        for flow in flows
    ]


def system(control: str) -> str:
    """Return the topology file of the hosts and switches."""
    header_bytes, rate_control = POLICIES[control]
    lines = [
        "name: hpcc",
        "chips:",
        "  ideal-host: {base: h100-sxm5, write_latency: 1ps, read_latency: 1ps, response_latency: 1ps}",
        "formats:",
        "  bus: {flit: 1B, header: 1B, payload: {sm: 1000B, ce: 1000B, nic: 1000B}}",
        f"  frame: {{flit: 1B, header: {header_bytes}B, payload: {{sm: 1000B, ce: 1000B, nic: 1000B}}}}",
        "nics:",
        f"  port: {{latency: 1ps, ports: 1, mtu: 1000B, rate_control: {rate_control}}}",
        "switches:",
        "  ideal: {ports: 64, latency: 1ps, store_and_forward: true}",
        "link_types:",
        "  bus: {rate: 1000 GB/s, latency: 1ps, format: bus, buffer: 8KiB, class: pcie}",
    ]
    for name, times in (("wire", 1), ("uplink", 4)):
        marks = f"{{min: {400_000 * times}B, max: {1_600_000 * times}B, probability: 0.2, at: departure}}"
        lines.append(
            f"  {name}: {{rate: {12.5 * times} GB/s, latency: 1us, format: frame, buffer: 64MiB, class: roce,"
            f" pfc: {{xoff: 32MiB}}, ecn: {marks}}}"
        )
    lines += ["nodes:"]
    for host in range(HOSTS):
        lines.append(f"  gpu{host}: {{kind: gpu, chip: ideal-host, zone: {host}}}")
        lines.append(f"  nic{host}: {{kind: nic, nic: port, zone: {host}}}")
    lines.append(f"  leaf0..{LEAVES - 1}: {{kind: switch, switch: ideal, zone: -1}}")
    lines += ["  spine0: {kind: switch, switch: ideal, zone: -1}", "links:"]
    for host in range(HOSTS):
        lines.append(f"  - {{from: gpu{host}, to: nic{host}, type: bus}}")
        lines.append(
            f"  - {{from: nic{host}, to: leaf{host // HOSTS_PER_LEAF}, type: wire}}"
        )
    lines += [
        f"  - {{from: leaf{leaf}, to: spine0, type: uplink}}"
        for leaf in range(LEAVES)
    ]
    return "\n".join([*lines, ""])


def clusim_us(flows: list[Flow], control: str, seed: int = 0) -> list[float]:
    """Return the completion times of clusim's flows [us]."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "hpcc.yaml").write_text(system(control))
        rows = [
            f"{flow.source},{flow.destination},{flow.size_bytes}B,{flow.start_ns}ns"
            for flow in flows
        ]
        table = folder / "flows.csv"
        table.write_text("\n".join(["source,destination,bytes,start", *rows, ""]))
        options: dict[str, Any] = {
            "packet": PAYLOAD_BYTES,
            "confirm": False,
            "seed": seed,
        }
        result = clusim.traffic(folder / "hpcc.yaml", flows=table, **options)
    messages = result.messages
    assert messages is not None
    ends = np.zeros(len(flows))
    np.maximum.at(ends, messages.flow, messages.end_ps / 1e6)
    return [
        float(end_us) + ACK_US - flow.start_ns / 1e3
        for end_us, flow in zip(ends, flows, strict=True)
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path, help="third, built from its source")
    options = parser.parse_args()
    print(
        "| flows | control | part | HPCC: median, 95% | clusim: median, 95% | median | 95% |"
    )
    print("|---|---|---|---:|---:|---:|---:|")
    for figure, make_flows in FIGURES.items():
        flows = make_flows()
        sizes = np.array([flow.size_bytes for flow in flows])
        for control in CONTROLS:
            theirs = np.array(published_us(options.program, flows, control))
            ours = np.array(
                [clusim_us(flows, control, seed) for seed in range(SEEDS)]
            )
            for which, chosen in groups(sizes).items():
                pair = [
                    np.percentile(times[..., chosen], (50, 95))
                    for times in (theirs, ours)
                ]
                cells = [figure, f"`{control}`", which]
                cells += [
                    f"{median:,.1f} us, {late:,.1f} us" for median, late in pair
                ]
                cells += [
                    f"{change:+.1f}%" for change in 100 * (pair[1] / pair[0] - 1)
                ]
                print(f"| {' | '.join(cells)} |", flush=True)


def groups(sizes: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which flows a row of the table is about: by size."""
    if len(sizes) < 100:
        largest = sizes == sizes.max()
        return {"the long flow": largest, "others": ~largest}
    small, large = sizes < 100_000, sizes >= 1_000_000
    return {
        "below 100 kB": small,
        "100 kB to 1 MB": ~small & ~large,
        "from 1 MB": large,
    }


if __name__ == "__main__":
    main()
