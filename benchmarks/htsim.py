"""Flow completion times of clusim beside those of htsim, the simulator of Ultra Ethernet, on one fat tree.

``python benchmarks/htsim.py PATH/TO/htsim_uec`` prints a table in Markdown. The program is built from
https://github.com/ultraethernet/uet-htsim: ``cmake -S htsim/sim -B build -DCMAKE_BUILD_TYPE=Release`` and
``cmake --build build --target htsim_uec`` leave it in ``build/datacenter``.

Both simulate 16 hosts of 100 Gb/s on three levels of switches with four ports, store-and-forward, 1 us per link,
packets of 4,096 B with headers of 64 B, and marks from 37,350 to 145,250 B, htsim's values for this network. A flow is
complete when its sender has the last acknowledgement: clusim's completions are later by its way back.

Different in htsim: buffers of 1 bandwidth-delay product, whose surplus packets are cut to their headers and sent again
(clusim has no losses, and buffers without end); acknowledgements are packets, and one covers several packets.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import clusim

HOSTS = 16
PACKET_BYTES = 4096
HEADER_BYTES = 64
ACK_US = 6.0
"""Way back of an acknowledgement: six links of 1 us."""

SYSTEM = """
name: htsim-host
description: a host with one port
chips:
  ideal-host: {base: h100-sxm5, write_latency: 1ps, read_latency: 1ps, response_latency: 1ps}
formats:
  bus: {flit: 1B, header: 1B, payload: {sm: 4KiB, ce: 4KiB, nic: 4KiB}}
  frame: {flit: 1B, header: 64B, payload: {sm: 4KiB, ce: 4KiB, nic: 4KiB}}
nodes:
  gpu0: {kind: gpu, chip: ideal-host}
  nic0: {kind: nic, nic: port}
nics:
  port: {latency: 1ps, ports: 1, mtu: 4KiB, rate_control: {policy: POLICY, cnp_delay: 6us}}
link_types:
  bus: {rate: 1000 GB/s, latency: 1ps, format: bus, buffer: 1MiB, class: pcie}
  wire:
    rate: 12.5 GB/s
    latency: 1us
    format: frame
    buffer: 64MiB
    class: roce
    pfc: {xoff: 32MiB}
    ecn: {min: 37350B, max: 145250B, probability: 1.0}
switches:
  ideal-switch: {ports: 4, latency: 1ps, store_and_forward: true}
links:
  - {from: gpu0, to: nic0, type: bus}
network: {kind: fat-tree, unit: 2, link: wire, switch: ideal-switch, radix: 4}
"""


@dataclass(frozen=True)
class Pattern:
    """Flows that start at once: pairs of hosts, and the payload of each [bytes]."""

    name: str
    pairs: list[tuple[int, int]]
    size_bytes: int


def patterns() -> Iterator[Pattern]:
    """Yield the patterns of the comparison."""
    order = np.random.default_rng(1).permutation(HOSTS).tolist()
    cycle = list(zip(order, [*order[1:], order[0]], strict=True))
    yield Pattern("permutation", sorted(cycle), 2_000_000)
    yield Pattern("incast", [(host, 0) for host in range(1, HOSTS)], 500_000)
    others = [(a, b) for a in range(HOSTS) for b in range(HOSTS) if a != b]
    yield Pattern("all-to-all", others, 131_072)


def htsim_us(
    program: Path, pattern: Pattern, algorithm: str, routing: str, seed: int
) -> list[float]:
    """Return the completion times of htsim's flows [us]."""
    lines = [f"Nodes {HOSTS}", f"Connections {len(pattern.pairs)}"]
    lines += [
        f"{a}->{b} start 0 size {pattern.size_bytes}" for a, b in pattern.pairs
    ]
    with tempfile.TemporaryDirectory() as folder:
        matrix = Path(folder) / "flows.cm"
        matrix.write_text("\n".join(lines) + "\n", encoding="ascii")
        command = [str(program.resolve()), "-tm", str(matrix), "-nodes", str(HOSTS)]
        command += [
            "-sender_cc_only",
            "-sender_cc_algo",
            algorithm,
            "-end",
            "100000",
        ]
        command += ["-mtu", str(PACKET_BYTES + HEADER_BYTES), "-seed", str(seed)]
        command += HTSIM_ROUTING[routing]
        output = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, check=True
        )
    found = [
        float(value) for value in re.findall(r"finished at ([\d.]+)", output.stdout)
    ]
    if len(found) != len(pattern.pairs):
        raise SystemExit(
            f"htsim: {len(found)} of {len(pattern.pairs)} flows finished: {command}"
        )
    return found


def clusim_us(pattern: Pattern, policy: str, routing: str, seed: int) -> list[float]:
    """Return the completion times of clusim's flows [us]."""
    with tempfile.TemporaryDirectory() as folder:
        system, table = Path(folder) / "host.yaml", Path(folder) / "flows.csv"
        system.write_text(SYSTEM.replace("POLICY", policy), encoding="ascii")
        rows = [f"{a},{b},{pattern.size_bytes}B,0" for a, b in pattern.pairs]
        table.write_text(
            "\n".join(["source,destination,bytes,start", *rows]), encoding="ascii"
        )
        options: dict[str, Any] = {
            "routing": routing,
            "packet": PACKET_BYTES,
            "seed": seed,
        }
        options["confirm"] = False
        result = clusim.traffic(system, nodes=HOSTS, flows=table, **options)
    messages = result.messages
    assert messages is not None
    ends = np.zeros(len(pattern.pairs))
    np.maximum.at(ends, messages.flow, messages.end_ps / 1e6)
    return [float(end_us) + ACK_US for end_us in ends]


CONTROLS = (
    ("nscc", "nscc"),
    ("dctcp", f"{Path(__file__).with_name('htsim_policies.py')}:PerMark"),
    ("dctcp", "dctcp"),
)
"""Algorithms of htsim, and the policies that they are compared with."""

HTSIM_ROUTING = {"adaptive": ["-strat", "ecmp_ar"], "spray": []}
"""Routing of clusim -> options of htsim: shortest queue at each switch; paths drawn by the sender per packet."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "program", type=Path, help="htsim_uec, built from its source"
    )
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(
        "| pattern | control | routing | htsim: median, last | clusim: median, last | median | last |"
    )
    print("|---|---|---|---:|---:|---:|---:|")
    for pattern in patterns():
        for algorithm, policy in CONTROLS:
            for routing in HTSIM_ROUTING:
                seeds = range(1, options.seeds + 1)
                runs = [
                    [
                        float(part(run))
                        for run in found
                        for part in (np.median, np.max)
                    ]
                    for found in (
                        [
                            htsim_us(options.program, pattern, algorithm, routing, s)
                            for s in seeds
                        ],
                        [clusim_us(pattern, policy, routing, s) for s in seeds],
                    )
                ]
                theirs, ours = (
                    np.array(values).reshape(-1, 2).mean(axis=0) for values in runs
                )
                change = 100 * (ours / theirs - 1)
                cells = [pattern.name, policy.rpartition(":")[2], routing]
                cells += [
                    f"{median:,.0f} us, {last:,.0f} us"
                    for median, last in (theirs, ours)
                ]
                cells += [f"{value:+.1f}%" for value in change]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
