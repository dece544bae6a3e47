"""A measured curve against its prediction: rows, misfit, and causes of slow systems by rank."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.nccltests.api import Table, table_of
from clusim.nccltests.options import parse_flags
from clusim.nccltests.sweep import place, program_named
from clusim.simulation.session import Watch
from clusim.simulation.setup import Setup
from clusim.validation.collectives.against import (
    Against,
    Deviation,
    Search,
    compare,
    deviation_of,
)
from clusim.validation.collectives.causes import (
    CauseSearch,
    FoundCauses,
    SimulatedCause,
    misfit_pct,
    rank_causes,
)
from clusim.validation.collectives.hypotheses import hypotheses
from clusim.validation.collectives.measuredcurve import MeasuredCurve, read_curve
from support.covering import THOROUGH

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, MIB, 64 * MIB, 256 * MIB) if THOROUGH else (64 * KIB, 2 * MIB)
SYSTEMS = [
    ("dgx-h100", None, "all_reduce"),
    *(
        [
            ("dgx-a100", None, "all_reduce"),
            ("dgx-1v", None, "all_reduce"),
            ("a100-pcie-x8", None, "all_gather"),
            ("hgx-h100-ndr", 2, "all_reduce"),
            ("hgx-a100-hdr4", 2, "all_gather"),
            ("hgx-h100-ndr", 2, "alltoall"),
        ]
        if THOROUGH
        else []
    ),
]

TABLE = """\
# nThread 1 nGpus 4 minBytes 8 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        524288      half     sum      -1    52.43   20.00   30.00       0    50.00   20.97   31.46       0
    67108864      33554432      half     sum      -1   447.39  150.00  225.00       0   440.00  152.52  228.78       0
"""


def write(path: Path, text: str = TABLE) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_curve_brings_sizes_type_and_launch(tmp_path: Path) -> None:
    curve = read_curve(write(tmp_path / "m.txt"), program_named("all_reduce"))
    assert curve.times_us == {MIB: 52.43, 64 * MIB: 447.39}
    options = curve.apply_to(parse_flags({}))
    assert (options.sizes(), options.datatype, options.ngpus) == ([MIB, 64 * MIB], "half", 4)
    assert curve.notes == ()
    # Given flags have priority.
    given = curve.apply_to(parse_flags({"datatype": "float", "nthreads": "2"}))
    assert (given.datatype, given.ngpus, given.nthreads) == ("float", 1, 2)


def test_flags_select_measured_sizes(tmp_path: Path) -> None:
    curve = read_curve(write(tmp_path / "m.txt"), program_named("all_reduce"))
    assert curve.apply_to(parse_flags({"minbytes": "2M", "maxbytes": "1G"})).sizes() == [64 * MIB]
    with pytest.raises(InputError, match="no row from 1073741824 to"):
        curve.apply_to(parse_flags({"minbytes": "1G", "maxbytes": "2G"}))
    with pytest.raises(InputError, match=r"-f: sizes are read from .*m.txt; select with -b and -e"):
        curve.apply_to(parse_flags({"stepfactor": "2"}))


def test_rows_of_another_type_are_omitted_and_noted(tmp_path: Path) -> None:
    head, rows = TABLE[: TABLE.index("     1048576")], TABLE[TABLE.index("     1048576") :]
    other = rows.replace("half ", "float").replace(" 52.43", " 99.99")
    text = head.replace("# nThread 1 nGpus 4 minBytes 8 maxBytes 67108864", "#") + rows + other
    curve = read_curve(write(tmp_path / "m.txt", text), program_named("all_reduce"))
    assert curve.times_us[MIB] == 52.43
    assert curve.notes == (
        "launch not in the file: set by -g and -t, one process per GPU without",
        "2 rows omitted: not half sum as the first row",
    )


def test_a_csv_table_is_referred_to_validate(tmp_path: Path) -> None:
    path = write(tmp_path / "m.csv", "system,n_gpus,collective,size_bytes,time_us\n")
    with pytest.raises(InputError, match="a CSV table; compare it with `clusim validate"):
        read_curve(path, program_named("all_reduce"))


def test_rows_of_another_program_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.txt")
    with pytest.raises(InputError, match="no rows of alltoall_perf; it has all_reduce"):
        read_curve(path, program_named("alltoall"))
    with pytest.raises(InputError, match="no line of NCCL, RCCL or nccl-tests"):
        read_curve(write(tmp_path / "empty.txt", "nothing\n"), program_named("all_reduce"))


def test_misfit_by_hand() -> None:
    measured = {1: 20.0, 2: 10.0}
    # One size twice as slow, one equal: the mean of ln 2 and 0.
    assert misfit_pct(measured, {1: 10.0, 2: 10.0}, (1, 2)) == pytest.approx(
        100 * (math.sqrt(2) - 1)
    )
    assert misfit_pct(measured, measured, (1, 2)) == 0
    causes = [
        SimulatedCause(("a",), "", {1: 10.0, 2: 10.0}),
        SimulatedCause(("b",), "", {1: 19.0, 2: 10.0}),
    ]
    assert [item.titles[0] for item in rank_causes(causes, measured)] == ["b", "a"]


def test_a_regime_decides_whether_a_system_deviates() -> None:
    predicted = {KIB: 10.0, MIB: 20.0, 64 * MIB: 400.0}
    assert deviation_of({size: 1.05 * us for size, us in predicted.items()}, predicted) is None
    slow = deviation_of({**predicted, 64 * MIB: 500.0}, predicted)
    assert slow == Deviation((KIB, MIB, 64 * MIB), frozenset({KIB, MIB}), slow=True)
    fast = deviation_of({**predicted, MIB: 15.0}, predicted)
    assert fast == Deviation((KIB, MIB, 64 * MIB), frozenset({KIB, 64 * MIB}), slow=False)


def test_hypotheses_are_simulated_at_the_smallest_deviating_sizes() -> None:
    sizes = [1 << power for power in range(20, 34)]
    predicted = {size: float(size) for size in sizes}
    measured = {size: us * (1.5 if size >= 128 * MIB else 1.0) for size, us in predicted.items()}
    found = deviation_of(measured, predicted)
    assert found is not None
    # 1 MiB to 64 MiB agree: one size of their regime, and the one before the smallest deviating size.
    assert found.sizes == (MIB, 64 * MIB, 128 * MIB, 1 << 30)
    assert found.agreeing == {MIB, 64 * MIB}


def test_causes_of_networks_need_several_nodes() -> None:
    one = {item.title for item in hypotheses(Setup("dgx-h100"), 16)}
    two = {item.title for item in hypotheses(Setup("hgx-h100-ndr", 2), 16)}
    assert not any("NIC" in title or "GPUDirect" in title for title in one)
    assert {"one NIC down", "half of the NICs down", "no GPUDirect RDMA"} <= two
    given = Setup("dgx-h100", env=(("NCCL_PROTO", "Simple"),))
    assert "LL128 disabled" not in {item.title for item in hypotheses(given, 16)}


@cache
def table(system: str, nodes: int | None, program: str, faults: tuple[str, ...] = ()) -> Table:
    test, options = program_named(program), replace(parse_flags({}), listed=SIZES)
    where = place(Setup(system, nodes, faults=faults), options)
    return table_of(where, test, options, jobs=1)


def _elsewhere(setup: Setup, title: str) -> tuple[str, ...]:
    """Return a fault's texts at another position than the hypothesis has; empty for changes without position."""
    nics = [node.name for node in setup.fabric.nodes if node.kind == "nic"]
    switches = [node.name for node in setup.fabric.nodes if node.tier == "switch"]
    gpus = setup.fabric.ranks
    return {
        "one NVLink down": (f"link {gpus[3]}:nvl2 down",),
        "one NVSwitch down": (f"plane {switches[-1]} down",) if switches else (),
        "PCIe of one GPU at half of its lanes": (f"lanes {gpus[5]}:pcie 1/2",),
        "CTAs of one GPU slow (x2)": (f"rank {gpus[2]} slow x2",),
        "one NIC down": (f"node {nics[-1]} down",),
        "one NIC at half of its PCIe lanes": (f"lanes {nics[-1]}:pcie 1/2",),
    }.get(title, ())


@pytest.mark.parametrize(("system", "nodes", "program"), SYSTEMS)
def test_causes_of_degraded_systems_are_among_the_first_two(
    system: str, nodes: int | None, program: str
) -> None:
    """The degraded part is another one than the hypothesis has, and times have 3% of noise."""
    random_of = random.Random(7)
    sound = table(system, nodes, program)
    causes = CauseSearch(sound, SIZES).causes(1).causes
    assert len(causes) >= 3
    found = 0
    for cause in causes:
        faults = _elsewhere(sound.where.setup, cause.titles[0])
        times = cause.times_us
        if faults:
            lines = table(system, nodes, program, faults).lines
            times = {line.size: line.halves[0].time_us for line in lines}
        measured = {size: us * math.exp(random_of.gauss(0, 0.03)) for size, us in times.items()}
        found += cause.titles in [item.titles for item in rank_causes(causes, measured)[:2]]
    assert found >= 0.9 * len(causes)


def explained_by(*factors: float, faster: float = 2.0) -> str:
    """Return the text for causes that leave the measurement slower by factors, of a curve twice as slow."""
    sound = table("dgx-h100", None, "all_reduce")
    measured = {line.size: faster * line.halves[0].time_us for line in sound.lines}
    curve = MeasuredCurve("m.txt", measured, "float", "sum", 8, 1)
    causes = tuple(
        SimulatedCause(
            (f"cause {factor}",), "--env A=B", {s: us / factor for s, us in measured.items()}
        )
        for factor in factors
    )
    return "\n".join(Against(curve, sound, FoundCauses(SIZES, causes)).cause_lines())


def test_a_cause_explains_if_it_halves_the_deviation() -> None:
    # 100% without a change; 50% is left by one, 10% by the other.
    assert "none explains" not in explained_by(1.1)
    assert "none explains" not in explained_by(1.5)
    assert "the best leaves 60.0%" in explained_by(1.6)


def test_the_unchanged_system_wins_if_no_cause_is_closer() -> None:
    text = explained_by(1.112, 1.3, faster=1.111)
    assert "no change is closer than the unchanged system" in text
    assert "leaves" not in text
    assert "worse: cause 1.112, cause 1.3" in text
    # A cause that is closer by a tenth of a percent is named, but explains nothing.
    assert "the best leaves 11.0%" in explained_by(1.110, faster=1.111)


def test_a_hypothesis_is_named_once() -> None:
    sound = table("dgx-h100", None, "all_reduce")
    measured = {line.size: 2 * line.halves[0].time_us for line in sound.lines}
    curve = MeasuredCurve("m.txt", measured, "float", "sum", 8, 1)
    near = SimulatedCause(("near",), "", {s: us / 1.1 for s, us in measured.items()})
    far = SimulatedCause(("far",), "", {s: us * 3 for s, us in measured.items()})
    found = FoundCauses(SIZES, (near, far), dropped=("near", "far", "other"))
    text = "\n".join(Against(curve, sound, found).cause_lines())
    assert (text.count("near"), text.count("far")) == (1, 1)
    assert "worse: far, other" in text


def measured_with(env: tuple[tuple[str, str], ...], sizes: tuple[int, ...]) -> MeasuredCurve:
    """Return the curve of a run with variables, with 2% of noise."""
    random_of = random.Random(11)
    test, options = program_named("all_reduce"), replace(parse_flags({}), listed=sizes)
    lines = table_of(place(Setup("dgx-a100", env=env), options), test, options, jobs=1).lines
    times = {x.size: x.halves[0].time_us * math.exp(random_of.gauss(0, 0.02)) for x in lines}
    return MeasuredCurve("m.txt", times, "float", "sum", 1, 1)


CHOICES = [
    ((("NCCL_PROTO", "LL"),), "LL protocol forced"),
    ((("NCCL_ALGO", "Tree"),), "Tree algorithm forced"),
    ((("NCCL_MAX_NCHANNELS", "6"),), "a quarter of the channels"),
]


@pytest.mark.parametrize(("env", "title"), CHOICES if THOROUGH else CHOICES[:2])
def test_a_forced_choice_is_the_first_cause(env: tuple[tuple[str, str], ...], title: str) -> None:
    sizes = (16 * KIB, 2 * MIB, 4 * MIB, 16 * MIB)
    test, options = program_named("all_reduce"), replace(parse_flags({}), listed=sizes)
    sound = table_of(place(Setup("dgx-a100"), options), test, options, jobs=1)
    found = compare(measured_with(env, sizes), sound, Search(jobs=1))
    assert title in found.hypotheses[0].titles, found.hypotheses[0]
    assert found.hypotheses[0].misfit_pct < 4 < found.misfit_pct


TUNED = "allreduce,0,1073741824,ring,ll,4,1,8\n"
"""A tuner's file that makes 4 MiB on 8 H100 five times longer."""


def tuned(folder: Path, *, obeyed: bool) -> Against:
    """Return the comparison of a run that obeyed a tuner's file, or not, with a prediction that does."""
    env = (("NCCL_TUNER_CONFIG_FILE", str(write(folder / "tuner.csv", TUNED))),)
    test, options = program_named("all_reduce"), replace(parse_flags({}), listed=(4 * MIB,))
    predicted, other = (
        table_of(place(Setup("dgx-h100", env=given), options), test, options, jobs=1)
        for given in (env, env if obeyed else ())
    )
    times = {line.size: line.halves[0].time_us for line in other.lines}
    return compare(MeasuredCurve("m.txt", times, "float", "sum", 1, 1), predicted, Search(jobs=1))


def test_a_file_of_a_tuner_is_obeyed_by_the_prediction(tmp_path: Path) -> None:
    same = tuned(tmp_path, obeyed=True)
    assert same.found is None
    assert [round(row.error_pct, 6) for row in same.rows()] == [0.0]


def test_a_variable_that_did_not_reach_the_processes_is_the_first_cause(tmp_path: Path) -> None:
    other = tuned(tmp_path, obeyed=False)
    assert other.rows()[0].error_pct > 300
    first = other.hypotheses[0]
    assert "NCCL_TUNER_CONFIG_FILE not set" in first.titles
    assert first.misfit_pct < 0.1


class _Limit(Watch):
    """Limit that is reached after some looks at it."""

    def __init__(self, looks: int) -> None:
        super().__init__(10**12)
        self.left = looks

    @property
    def over(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_time_limit_keeps_the_hypotheses_simulated_before_it() -> None:
    sound = table("dgx-h100", None, "all_reduce")
    measured = {line.size: 2 * line.halves[0].time_us for line in sound.lines}
    search = CauseSearch(sound, SIZES, measured, watch=_Limit(30))
    found = search.causes(1)
    assert "time limit of 1 s reached" in found.unfinished
    assert found.sizes == SIZES[:1]
    assert 0 < len(found.causes) < len(search.possible)
    complete = CauseSearch(sound, SIZES[:1], measured).causes(1)
    assert complete.unfinished == ""
    assert len(complete.causes) > len(found.causes)


def test_a_fast_curve_has_hypotheses_of_choices_only() -> None:
    sound = table("dgx-h100", None, "all_reduce")
    search = CauseSearch(sound, SIZES, choices_only=True)
    titles = {item.title for item in search.possible}
    assert "LL protocol forced" in titles
    assert not any("down" in title or "slow" in title for title in titles)


def test_a_sound_system_has_no_hypotheses(tmp_path: Path) -> None:
    sound = table("dgx-h100", None, "all_reduce")
    rows = "".join(
        f"{line.size} {line.count} float sum -1 {line.halves[0].time_us:.2f} 1.00 1.00 0 "
        f"{line.halves[0].time_us:.2f} 1.00 1.00 0\n"
        for line in sound.lines
    )
    path = write(tmp_path / "m.txt", TABLE[: TABLE.index("     1048576")] + rows)
    result = compare(read_curve(path, program_named("all_reduce")), sound, Search(jobs=1))
    assert result.found is None
    assert "no hypothesis simulated" in "\n".join(result.lines())
    assert all(abs(row.error_pct) < 0.1 for row in result.rows())
    found = result.to_json()["found_errors"]
    assert sum(item["n"] for item in found) == len(result.rows())  # type: ignore[index]
    text = "\n".join(result.lines())
    assert (text.count("  expected error: "), text.count("    this file: median ")) == (
        len(found),
        len(found),
    )
