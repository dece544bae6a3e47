"""The forms of what commands print as JSON where they say more than one function of the library returns."""

from __future__ import annotations

from typing import Annotated, Any

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
from clusim.nccltests.perfjson import CrossoverJson
from clusim.replays.replayjson import ReplayJson
from clusim.results.diagnosis import VerdictJson
from clusim.results.resultjson import ResultJson
from clusim.simulation.expected import ErrorClass, ExpectedJson, UnknownErrorJson
from clusim.studies.sweep.points import Cell
from clusim.topology.check_links import Finding
from clusim.training.stepjson import (
    EndedStepsJson,
    EstimatedStepJson,
    LayersJson,
    ScaledStepJson,
    SimulatedStepJson,
)
from clusim.validation.collectives.scorejson import ExplainedJson, ValidationJson
from clusim.validation.steps.validate import StepReportJson

CongestionSaidJson = CongestionJson | HistoryJson
PathSaidJson = PathJson | EstimateJson
ValidateJson = ValidationJson | ExplainedJson | StepReportJson


class DoubtedJson(TypedDict):
    """Keys of a system that may come from a file of another tool.

    Attributes
    ----------
    doubts : list of str
        What was assumed of the machine that every answer depends on, and what settles it.
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
        What was typed to make it.
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
"""A step, or what is known of steps that were ended; with --layers its layers, with --scaling a list of steps."""


class ExplainSaidJson(ExplainJson, DoubtedJson):
    """NCCL's decisions on a system."""


class CrossoverSaidJson(CrossoverJson, DoubtedJson):
    """The best algorithm of every size."""


class CallsJson(TypedDict):
    """Of how many calls."""

    calls: int


class UnknownCallsJson(UnknownErrorJson, CallsJson):
    """Calls of which no error is known to expect."""


class ReplaySaidJson(ReplayJson):
    """A recorded job again.

    Attributes
    ----------
    expected_errors : list
        Errors to expect of its calls, each once; `calls` is of how many.
    """

    expected_errors: list[
        Annotated[dict[str, Any], FieldsOf(ErrorClass, CallsJson)] | UnknownCallsJson
    ]


class SweepJson(TypedDict):
    """Points of a grid.

    Attributes
    ----------
    axes : list of str
        What the grid lists.
    known, outdated, failed : int
        Rows that were there already, that ran again because clusim or their files have changed, and without a result.
    rows : list
        A row per point by the columns of the table (docs/sweeps.md): the words of the grid, then what came of them.
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
        How many, and their size [bytes].
    cleared : bool
        Whether they were removed now.
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
    """Names that TOPOLOGY accepts besides files.

    Attributes
    ----------
    generators : list of str
        Machines made from words: ``fat-tree:k=8``.
    """

    presets: list[PresetJson]
    generators: list[str]


class NodeJson(TypedDict):
    """A node.

    Attributes
    ----------
    kind, what : str
        ``gpu``, ``nic``, ``switch`` ..., and its chip or model.
    rank : int or None
        None where it takes part in nothing.
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
        The nodes.
    count : int
        How many.
    rate_GBps : float
        Of one in each direction [10^9 bytes/s].
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
        Where its figures come from.
    """

    name: str
    description: str
    ranks: int
    nodes: list[NodeJson]
    links: list[LinkJson]
    sources: dict[str, str]


class CheckedJson(TypedDict):
    """A topology that can be simulated, and what there is to know about it.

    Attributes
    ----------
    ranks, nodes, wires : int
        How many it has.
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
    """Something that a file does not say: what was taken, and the reason."""

    where: str
    what: str
    why: str


class ImportedJson(TypedDict):
    """Content of a file of another tool.

    Attributes
    ----------
    kind, title : str
        What the file is.
    output : str or None
        The topology file that was written.
    counts : dict
        What it holds, by kind of node and link.
    """

    file: str
    kind: str
    title: str
    output: str | None
    counts: dict[str, int]
    assumptions: list[AssumedJson]
