"""JSON output of commands that combine results of several library functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NotRequired

from typing_extensions import TypedDict

from clusim.analysis.flowrates import FlowRates, LatencySummary
from clusim.analysis.limits import WireTables
from clusim.analysis.tablejson import (
    CongestionJson,
    EstimateJson,
    HistoryJson,
    PathJson,
)
from clusim.base.json_schema import IfKnown, JsonObject
from clusim.formats.topologies.common import Assumption
from clusim.nccl.explainjson import ExplainJson
from clusim.nccltests.perfjson import PerfJson
from clusim.replays.report import Replay
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result
from clusim.results.sensitivity import Sensitivity
from clusim.serving.report import ServedKernel, ServedLoad
from clusim.serving.result import Serving
from clusim.simulation.expected import ErrorClass, MeasuredError, UnknownError
from clusim.simulation.fault_cost import FaultCost
from clusim.studies.crossover import Crossover
from clusim.studies.improve import Improvement
from clusim.studies.plan.clusters import PricedClusters
from clusim.studies.plan.search import PlanSearch
from clusim.studies.plan.serving import ServingPlan
from clusim.studies.shrink import ShrunkSteps
from clusim.studies.sweep.keys import Cell
from clusim.topology.check_links import Finding
from clusim.topology.diff import Difference
from clusim.training.layertable import LayersOfPlan
from clusim.training.proof import EndedSteps
from clusim.training.result import TrainingResult
from clusim.training.sweep import ScaledStep
from clusim.training.uncomposed import StepEstimate
from clusim.validation.collectives.against import Against
from clusim.validation.collectives.explained import Explained
from clusim.validation.collectives.inference import InferenceJson
from clusim.validation.collectives.validationjson import ValidationJson
from clusim.validation.serving.validate import ServingReportJson
from clusim.validation.steps.against import StepAgainst
from clusim.validation.steps.validate import StepReportJson

PlanJson = PlanSearch | PricedClusters | ServingPlan
ServeJson = Serving | list[ServedLoad] | list[ServedKernel]
CongestionSaidJson = CongestionJson | HistoryJson
PathSaidJson = PathJson | EstimateJson
ValidateJson = (
    ValidationJson | Explained | StepReportJson | ServingReportJson | InferenceJson
)


class DoubtedJson(TypedDict):
    """Keys of a system that may be imported from another tool's file.

    Attributes
    ----------
    doubts : list of str
        Assumptions about the system that affect every result, and the remedy for each.
    """

    doubts: list[str]


@dataclass
class RunJson(JsonObject):
    """A collective; with the cost of its faults if simulated, and its derivatives if requested.

    Attributes
    ----------
    unfinished : list of str
        Re-simulations missing because of a time limit.
    """

    KEYS = (
        "*result",
        "*tables",
        "verdict",
        "expected_error",
        "*doubted",
        "fault_cost",
        "sensitivity",
        "improvement",
        "unfinished",
    )

    result: Result
    tables: WireTables
    verdict: Verdict
    expected_error: ErrorClass | UnknownError
    doubted: DoubtedJson
    fault_cost: IfKnown[FaultCost]
    sensitivity: IfKnown[Sensitivity]
    improvement: IfKnown[Improvement]
    unfinished: IfKnown[list[str]]


@dataclass
class TrafficJson(JsonObject):
    """Synthetic traffic.

    Attributes
    ----------
    pattern : str
        Who sent to whom.
    flows : object
        Rates of the flows, only with --flows.
    """

    KEYS = ("*result", "pattern", "*doubted", "*latency", "flows")

    result: Result
    pattern: str
    doubted: DoubtedJson
    latency: LatencySummary
    flows: IfKnown[FlowRates]


class ColumnJson(TypedDict):
    """A column of a trace."""

    shape: list[int]
    dtype: str
    units: str


@dataclass
class InfoJson(JsonObject):
    """Content of a trace.

    Attributes
    ----------
    command : str
        Command line that created the trace.
    columns : dict
        By name: shape, type and unit.
    """

    KEYS = ("*result", "verdict", "command", "columns")

    result: Result
    verdict: Verdict
    command: str
    columns: dict[str, ColumnJson]


@dataclass
class SimulatedSaidJson(JsonObject):
    """A simulated training step."""

    KEYS = ("*step", "*doubted")

    step: TrainingResult
    doubted: DoubtedJson


@dataclass
class EstimatedSaidJson(JsonObject):
    """A training step put together from parts, with --estimate."""

    KEYS = ("*step", "*doubted")

    step: StepEstimate
    doubted: DoubtedJson


@dataclass
class EndedSaidJson(JsonObject):
    """Training steps that --time-limit ended."""

    KEYS = ("*steps", "*doubted")

    steps: EndedSteps
    doubted: DoubtedJson


TrainJson = (
    SimulatedSaidJson
    | EstimatedSaidJson
    | EndedSaidJson
    | LayersOfPlan
    | ShrunkSteps
    | StepAgainst
    | list[ScaledStep]
)
"""A step, or the known part of ended steps; with --layers its layers, with --lose a job, with --scaling a list, with
--against the comparison with measured steps."""


class ExplainSaidJson(ExplainJson, DoubtedJson):
    """NCCL's decisions on a system."""


@dataclass
class CrossoverSaidJson(JsonObject):
    """The best algorithm of every size."""

    KEYS = ("*crossover", "*doubted")

    crossover: Crossover
    doubted: DoubtedJson


class PerfAgainstJson(PerfJson):
    """Output of ``-J``, and the comparison with a measured table."""

    against: NotRequired[Against]


@dataclass
class KnownCallsJson(JsonObject):
    """Errors of a class of rows."""

    KEYS = ("*error", "calls", "found")

    error: ErrorClass
    calls: int
    found: IfKnown[MeasuredError | None]


@dataclass
class UnknownCallsJson(JsonObject):
    """Calls without a known expected error."""

    KEYS = ("*error", "calls", "found")

    error: UnknownError
    calls: int
    found: IfKnown[MeasuredError | None]


@dataclass
class ReplaySaidJson(JsonObject):
    """Replay of a recorded job.

    Attributes
    ----------
    expected_errors : list
        Distinct expected errors of its calls; `calls` is the number of calls for each, `found` their error if they
        were measured.
    """

    KEYS = ("*replay", "expected_errors")

    replay: Replay
    expected_errors: list[KnownCallsJson | UnknownCallsJson]


class SweepJson(TypedDict):
    """Points of a grid.

    Attributes
    ----------
    axes : list of str
        Axes of the grid.
    known, outdated, failed : int
        Numbers of existing rows, of rows re-run because clusim or their files changed, and of rows without a
        result.
    rows : list
        A row per point by the columns of the table (docs/sweeps.md): the words of the grid, then the results.
    """

    grid: str
    axes: list[str]
    known: int
    outdated: int
    failed: int
    rows: list[dict[str, Cell]]


class CacheJson(TypedDict):
    """Cached estimates on disk.

    Attributes
    ----------
    parts, bytes : int
        Number of parts, and their size [bytes].
    cleared : bool
        True if this command removed them.
    """

    folder: str
    parts: int
    bytes: int
    cleared: bool


class GpuFiguresJson(TypedDict):
    """Replacements of a GPU's parameters.

    Attributes
    ----------
    memory_efficiency, sustained : float
        Parts of the memory's rate, and of the clock in a long run.
    """

    memory_efficiency: float
    sustained: float
    kernel_floor_us: float


class CalibrateJson(TypedDict):
    """Measurements of a GPU.

    Attributes
    ----------
    mark, source : str
        Of its figures.
    file : str
        The file of kernels.
    """

    chip: str
    architecture: str
    mark: str
    source: str
    figures: GpuFiguresJson
    file: str


class PresetJson(TypedDict):
    """A preset."""

    name: str
    ranks: int
    description: str


class TopologiesJson(TypedDict):
    """Names that TOPOLOGY accepts in addition to files.

    Attributes
    ----------
    generators : list of str
        Generated systems:``fat-tree:k=8``.
    """

    presets: list[PresetJson]
    generators: list[str]


class NodeJson(TypedDict):
    """Graph node of a topology.

    Attributes
    ----------
    kind, what : str
        ``gpu``, ``nic``, ``switch`` ..., and its chip or model.
    rank : int or None
        None if it does not participate in collectives.
    """

    name: str
    kind: str
    what: str
    rank: int | None


class LinkJson(TypedDict):
    """Duplex links between two nodes.

    Attributes
    ----------
    a, b : str
        The graph nodes.
    count : int
        Number of links.
    rate_GBps : float
        Rate of one link per direction [10^9 bytes/s].
    """

    a: str
    b: str
    count: int
    type: str
    rate_GBps: float
    latency_ps: int


class MachineJson(TypedDict):
    """A topology.

    Attributes
    ----------
    sources : dict
        Sources of the figures.
    """

    name: str
    description: str
    ranks: int
    nodes: list[NodeJson]
    links: list[LinkJson]
    sources: dict[str, str]


class CheckedJson(TypedDict):
    """Valid topology and its properties.

    Attributes
    ----------
    ranks, nodes, wires : int
        Counts.
    """

    topology: str
    ranks: int
    nodes: int
    wires: int
    findings: list[Finding]


CheckedListJson = list[CheckedJson]


class DifferencesJson(TypedDict):
    """Differences between two topologies."""

    first: str
    second: str
    differences: list[Difference]


class ImportedJson(TypedDict):
    """Content of a file of another tool.

    Attributes
    ----------
    kind, title : str
        Format of the file, and its title.
    output : str or None
        The topology file that was written.
    counts : dict
        Counts by kind of graph node and link.
    findings : list
        Errors and warnings of ``topo check``.
    """

    file: str
    kind: str
    title: str
    output: str | None
    counts: dict[str, int]
    assumptions: list[Assumption]
    findings: list[Finding]
