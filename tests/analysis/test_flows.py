"""Flows with rate control in traces: held flows, their wires, and their curves, against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import clusim
from clusim.analysis.critical import open_traced
from clusim.analysis.flows import FlowUse, flow_use
from clusim.report.flowcurves import Band, FlowCurves, flows_svg
from clusim.results.flows import FLOW_COLUMNS, Flows
from clusim.results.trace.reader import read_result

US = 1_000_000
NIC = "n1/nic0->leaf0.0.0"


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of two flows of two senders to one NIC, with Swift; bins and histories are set by hand.

    Four bins of 1 us: the first flow sends 10, 20, 20 and 0 kB, the second 0, 10, 10 and 10 kB. The first has a full
    window in its second and third bin, the second a lower rate in its last.
    """
    path = tmp_path_factory.mktemp("flows") / "run.h5"
    table = path.with_suffix(".csv")
    rows = ["source,destination,bytes,start", "8,0,256KiB,0", "16,0,256KiB,0"]
    table.write_text("\n".join(rows), encoding="utf-8")
    clusim.traffic(
        "hgx-h20", nodes=3, flows=table, policy="sender=swift", trace_out=path, confirm=False
    )
    zero, line = [0, 0, 0, 0], 50 * 10**9
    histories = {
        "sent": [[10_000, 20_000, 20_000, 0], [0, 10_000, 10_000, 10_000]],
        "marked": [[0, 20_000, 0, 0], [0, 0, 0, 10_000]],
        "rate": [[line] * 4, [line, line, line, line // 2]],
        "window": [[-1, 8192, 8192, 8192], [-1] * 4],
        "in_flight": [[4096, 8192, 12288, 0], zero],
        "rtt": [[-1, 3 * US, 5 * US, 5 * US], [-1, -1, 4 * US, 4 * US]],
    }
    with h5py.File(path, "r+") as file:
        file["/meta"].attrs["time_ps"] = 4 * US
        file["/meta/progress"][:2] = 4 * US, 4
        file["/messages/end"][:] = 4 * US
        for group in ("wires", "hbm", "flows"):
            for name, item in file[group].items():
                if name == "time":
                    item.resize(4, axis=0)
                    item[:] = [0, US, 2 * US, 3 * US]
                elif isinstance(item, h5py.Dataset) and item.ndim == 2:
                    item.resize(4, axis=1)
                    item[:] = 0
        for name, values in histories.items():
            file[f"/flows/{name}"][:] = values
        wires = file["/wires/wire"].asstr()[:].tolist()
        file["/wires/busy"][wires.index("leaf0.0->n0/nic0.0")] = [US // 4, US // 2, US, 0]
        file["/wires/busy"][wires.index(NIC)] = [US // 2, 0, 0, 0]
        file["/wires/queue"][wires.index("leaf0.0->n0/nic0.0")] = [1, 2, 3, 4]
    return path


def test_a_flow_is_held_by_a_full_window_or_a_low_rate(traffic: Path) -> None:
    use = FlowUse(open_traced(traffic))
    assert use.flows.names == ["n1/gpu0->n0/gpu0", "n2/gpu0->n0/gpu0"]
    assert use.active.tolist() == [[True, True, True, False], [False, True, True, True]]
    assert use.held.tolist() == [[False, True, True, False], [False, False, False, True]]
    # The wire to the receiver is half and completely busy in the held bins of the first flow, idle in the second's.
    assert use.fullest.tolist() == [0.75, 0.0]
    # Two of three bins of the first flow are held, one of three of the second.
    assert use.held_flows.tolist() == [0]
    assert use.busy_while_held(use.held_flows) == 0.75


def test_the_time_lost_to_held_flows_is_that_of_idle_wires(traffic: Path) -> None:
    """Bins 1 and 2: one of two flows leaves a quarter of its wire idle; bin 3: the only flow leaves it all."""
    use = FlowUse(open_traced(traffic))
    assert use.lost_ps == {"swift": US // 4 + US}


def test_flows_have_a_row_each_and_a_summary(traffic: Path) -> None:
    table = flow_use(traffic)
    first, second = table.rows()
    assert (first["sent_bytes"], second["sent_bytes"]) == (50_000, 30_000)
    assert first["rate_GBps"] == pytest.approx(50 / 3)
    assert first["line"] == pytest.approx(1 / 3, rel=0.01)
    assert (first["held"], second["held"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert (first["marked"], second["marked"]) == (0.4, pytest.approx(1 / 3))
    assert (first["rtt_ps"], first["window_bytes"]) == (4 * US, 8192)
    assert (second["rtt_ps"], second["window_bytes"]) == (4 * US, None)
    assert first["wire"] == "leaf0.0->n0/nic0.0"
    assert first["busy"] == pytest.approx(1.75 / 3)
    assert table.notes == [
        "2 flows with rate control (swift): median 13.33 GB/s, 10 GB/s to 16.67 GB/s, Jain's index 0.94",
        "rate control holds 1 of 2 flows; their fullest wires are then 75% busy",
        "37.5% of their payload was marked; round trip: median 4 us, least 3 us",
    ]


def test_curves_have_rates_queues_marks_and_round_trips(traffic: Path) -> None:
    curves = FlowCurves.of(read_result(traffic))
    assert curves is not None
    assert curves.edge_ps.tolist() == [0, US, 2 * US, 3 * US, 4 * US]
    assert curves.rate_GBps.tolist() == [[10, 20, 20, 0], [0, 10, 10, 10]]
    assert curves.marked.tolist() == [0, pytest.approx(2 / 3), 0, 1]
    assert {name: queue.tolist() for name, queue in curves.queues.items()} == {
        "leaf0.0->n0/nic0.0": [1, 2, 3, 4]
    }
    assert np.nanmax(curves.rtt_us, axis=1).tolist() == [5, 4]
    # A flow before its first and after its last payload is not in the band.
    assert Band.of(curves.active_GBps).median.tolist() == [10, 15, 15, 10]
    page = flows_svg(curves).html
    assert page.count('class="flow"') == 2
    assert "n1/gpu0-&gt;n0/gpu0" in page
    assert page.count("<polygon") == 2


def test_a_run_without_rate_control_has_no_flows(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    traffic = clusim.Traffic("permutation", 4096, 4096)
    clusim.simulate_traffic(clusim.load("fat-tree:k=4"), traffic, trace_out=path, confirm=False)
    with h5py.File(path) as file:
        assert "flows" not in file
    assert FlowCurves.of(read_result(path)) is None
    assert flow_use(path).notes == ["no flow with rate control sent payload"]


@pytest.mark.parametrize(("policy", "name"), [("", "DCQCN"), ("sender=swift", "swift")])
def test_a_trace_has_the_payload_of_the_flows_of_a_collective(
    policy: str, name: str, tmp_path: Path
) -> None:
    """Bins of a flow add up to its payload, in a file as in memory; both engines write the same histories."""
    files = {}
    for engine in ("c", "reference"):
        path = tmp_path / f"{engine}.h5"
        options = {
            "nodes": 2,
            "ranks": (0, 8),
            "policy": policy,
            "trace_out": path,
            "confirm": False,
        }
        result = clusim.collective(
            "hgx-h20", "sendrecv", "8KiB", engine=engine, granularity="packet", **options
        )
        read = read_result(path).bins.flows
        assert set(read.control) == {name}
        assert set(read.tables) == set(FLOW_COLUMNS)
        assert read.tables["sent"].sum() == result.bins.flows.tables["sent"].sum() > 0
        files[engine] = read
    assert _columns(files["c"]) == _columns(files["reference"])


def _columns(flows: Flows) -> dict[str, list[list[int]]]:
    return {name: table.tolist() for name, table in flows.tables.items()}
