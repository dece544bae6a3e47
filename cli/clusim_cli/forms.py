"""JSON output of commands that combine results of several library functions."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from clusim.analysis.tablejson import (
    CongestionJson,
    EstimateJson,
    HistoryJson,
    LatencyJson,
    LimitsJson,
    PathJson,
)
from clusim.base.json_schema import FieldsOf
from clusim.nccl.explainjson import ExplainJson
from clusim.nccltests.perfjson import CrossoverJson, PerfJson
from clusim.replays.report import ReplayJson
from clusim.results.diagnosis import VerdictJson
from clusim.results.resultjson import ResultJson
from clusim.simulation.expected import ErrorClass, ExpectedJson, UnknownErrorJson
from clusim.studies.sweep.grid import Cell
from clusim.topology.check_links import Finding
from clusim.training.stepjson import (
    EndedStepsJson,
    EstimatedStepJson,
    LayersJson,
    ScaledStepJson,
    SimulatedStepJson,
)
from clusim.validation.collectives.against import AgainstJson
from clusim.validation.collectives.explained import ExplainedJson
from clusim.validation.collectives.validationjson import ValidationJson
from clusim.validation.steps.validate import StepReportJson

CongestionSaidJson = CongestionJson | HistoryJson
PathSaidJson = PathJson | EstimateJson
ValidateJson = ValidationJson | ExplainedJson | StepReportJson


class DoubtedJson(TypedDict):
    """Keys of a system that may be imported from another tool's file.

    Attributes
    ----------
    doubts : list of str
        Assumptions about the system that affect every result, and the remedy for each.
    """

    doubts: list[str]


class RunJson(ResultJson, LimitsJson, DoubtedJson):
    """A collective."""

    verdict: VerdictJson
    expected_error: ExpectedJson


class TrafficJson(ResultJson, LatencyJson, DoubtedJson):
    """Synthetic traffic.

    Attributes
    ----------
    pattern : str
        Who sent to whom.
    """

    pattern: str


class ColumnJson(TypedDict):
    """A column of a trace."""

    shape: list[int]
    dtype: str
    units: str


class InfoJson(ResultJson):
    """Content of a trace.

    Attributes
    ----------
    command : str
        Command line that created the trace.
    columns : dict
        By name: shape, type and unit.
    """

    verdict: VerdictJson
    command: str
    columns: dict[str, ColumnJson]


class SimulatedSaidJson(SimulatedStepJson, DoubtedJson):
    """A simulated training step."""


class EstimatedSaidJson(EstimatedStepJson, DoubtedJson):
    """A training step put together from parts, with --estimate."""


class EndedSaidJson(EndedStepsJson, DoubtedJson):
    """Training steps that --time-limit ended."""


TrainJson = (
    SimulatedSaidJson | EstimatedSaidJson | EndedSaidJson | LayersJson | list[ScaledStepJson]
)
"""A step, or the known part of ended steps; with --layers its layers, with --scaling a list."""


class ExplainSaidJson(ExplainJson, DoubtedJson):
    """NCCL's decisions on a system."""


class CrossoverSaidJson(CrossoverJson, DoubtedJson):
    """The best algorithm of every size."""


class PerfAgainstJson(PerfJson):
    """Output of ``-J``, and the comparison with a measured table."""

    against: NotRequired[AgainstJson]


class CallsJson(TypedDict):
    """Number of calls."""

    calls: int


class UnknownCallsJson(UnknownErrorJson, CallsJson):
    """Calls without a known expected error."""


class ReplaySaidJson(ReplayJson):
    """Replay of a recorded job.

    Attributes
    ----------
    expected_errors : list
        Distinct expected errors of its calls; `calls` is the number of calls for each.
    """

    expected_errors: list[
        Annotated[dict[str, Any], FieldsOf(ErrorClass, CallsJson)] | UnknownCallsJson
    ]


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
    findings: list[Annotated[dict[str, Any], FieldsOf(Finding)]]


CheckedListJson = list[CheckedJson]


class DifferenceJson(TypedDict):
    """A difference."""

    where: str
    what: str


class DifferencesJson(TypedDict):
    """Differences between two topologies."""

    first: str
    second: str
    differences: list[DifferenceJson]


class AssumedJson(TypedDict):
    """Property missing in a file: the assumed value and the reason."""

    where: str
    what: str
    why: str


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
    """

    file: str
    kind: str
    title: str
    output: str | None
    counts: dict[str, int]
    assumptions: list[AssumedJson]
