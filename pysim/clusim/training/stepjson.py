"""JSON forms of training steps: a step, layers of a plan, steps of several sizes."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from clusim.analysis.tablejson import BrokenWireJson
from clusim.base.json_schema import FieldsOf
from clusim.results.diagnosis import VerdictJson
from clusim.results.resultjson import EndedJson
from clusim.training.expected import StepClass


class MeshJson(TypedDict):
    """Number of GPUs of every dimension of parallelism."""

    tensor: int
    context: int
    expert: int
    data: int
    pipeline: int


class SwitchedSideJson(TypedDict):
    """GPU costs of collectives per step: mean SMs; traffic and bytes sent [bytes]; time [s]."""

    sms: float
    memory_bytes: int
    sent_bytes: int
    alone_s: float


class InSwitchJson(TypedDict):
    """In-switch collectives of a step, per GPU: number, cost, and cost as rings.

    Attributes
    ----------
    collectives : float
        Their number.
    """

    collectives: float
    switch: SwitchedSideJson
    ring: SwitchedSideJson


class RankJson(TypedDict):
    """Time of a rank in the last step; the parts add up to the step."""

    rank: int
    compute_s: float
    exposed_comm_s: float
    host_wait_s: float
    bubble_s: float
    idle_s: float


class SavedStepJson(TypedDict):
    """Additional time of a step with a checkpoint.

    Attributes
    ----------
    bytes : int
        Size of the complete checkpoint [bytes].
    stall_s : float
        Additional time of the step [s].
    step_s, mean_step_s : float, float or None
        The step with it, and the mean over all steps, if the workload sets the interval [s].
    """

    bytes: int
    most_bytes_per_gpu: int
    copy_s: float
    write_s: float
    stall_s: float
    step_s: float
    every_steps: int | None
    mean_step_s: float | None


class GoodputJson(TypedDict):
    """Goodput of a job whose GPUs fail.

    Attributes
    ----------
    goodput, checkpoints, restarts, redone : float
        Shares of the time: useful steps, checkpoints, restarts, and repeated work.
    young_interval_s, daly_interval_s : float
        Between checkpoints, by Young's and Daly's formulas [s].
    days : float
        Period [days].
    failures, useful_steps : float
        In this period.
    """

    goodput: float
    checkpoints: float
    restarts: float
    redone: float
    job_mtbf_s: float
    checkpoint_bytes: int
    checkpoint_stall_s: float
    checkpoint_write_s: float
    interval_steps: int
    interval_s: float
    young_interval_s: float
    daly_interval_s: float
    days: float
    failures: float
    useful_steps: float


class MemoryShareJson(TypedDict):
    """Memory of a GPU of a stage [GiB].

    Attributes
    ----------
    weights, gradients, optimizer, activations, transient, buffers : float
        Memory of the step by use [GiB].
    libraries, fragments : float
        Context, code and workspaces of libraries; memory held by the allocator between blocks (assumed) [GiB].
    total, capacity, missing : float
        Sum, capacity of the chip (0 if unknown), and shortfall [GiB].
    microbatches_in_flight : int
        Microbatches with activations in memory.
    fits : bool
        True if the shortfall is 0.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    transient: float
    buffers: float
    libraries: float
    fragments: float
    total: float
    capacity: float
    missing: float
    microbatches_in_flight: int
    fits: bool


class StepJson(TypedDict):
    """A training step; times are means over ranks of the last one.

    Attributes
    ----------
    parameters : int
        Of the model.
    stage_gpus : list of int
        Replicas of every stage of the pipeline.
    placement : dict
        Placement of each dimension's groups: ``none``, ``inside`` a node or ``across``.
    steps_s : list of float
        Time of every simulated step [s].
    samples_per_s, tokens_per_s : float
        Throughput, in the unit of the model.
    tflops_per_gpu : float
        Of the model's operations [10^12/s].
    mfu, hfu : float
        Model and executed FLOP/s over the peak FLOP/s of all ranks.
    exposed_comm_s, communication_s : float
        Exposed and total communication [s].
    kernel_slowdown_s : float
        Time that kernels lose to communication, which uses their SMs and memory [s].
    communication_sms : float
        Mean SMs held by communication while it runs.
    bubble_fraction : float
        Share of the step.
    memory_GiB, memory_by_stage_GiB : object, list
        Of the fullest stage, and of all [GiB].
    volume_bytes_per_gpu, collectives_per_step : dict
        By dimension of parallelism: bytes sent per GPU and step [bytes], and collectives per step.
    error_bound : float or None
        Error limit of the step due to its granularity, as a share; None if unknown.
    wall_s : float
        Wall time of the engine [s].
    """

    workload: str
    model: str
    parameters: int
    fabric: str
    gpus: int
    mesh: MeshJson
    stage_gpus: list[int]
    placement: dict[str, str]
    microbatches: int
    step_time_s: float
    verdict: VerdictJson
    expected_error: Annotated[dict[str, Any], FieldsOf(StepClass)] | None
    expected_error_text: str
    steps_s: list[float]
    samples_per_s: NotRequired[float]
    tokens_per_s: NotRequired[float]
    tflops_per_gpu: float
    mfu: float
    hfu: float
    compute_s: float
    exposed_comm_s: float
    communication_s: float
    host_wait_s: float
    bubble_s: float
    idle_s: float
    kernel_slowdown_s: float
    communication_sms: float
    in_switch: InSwitchJson | None
    bubble_fraction: float
    ranks: list[RankJson]
    checkpoint: SavedStepJson | None
    goodput: GoodputJson | None
    memory_GiB: MemoryShareJson
    memory_by_stage_GiB: list[MemoryShareJson]
    volume_bytes_per_gpu: dict[str, int]
    collectives_per_step: dict[str, int]
    faults: list[str]
    notes: list[str]
    error_bound: float | None
    wall_s: float


class BusyWireJson(TypedDict):
    """A wire and the share of the run in which it was busy."""

    wire: str
    busy: float


class FoldedJson(TypedDict):
    """Replicated blocks of work.

    Attributes
    ----------
    simulated, folded : int
        Simulated blocks, and blocks replicated from them, which run as pauses.
    alone, proved_identical : int
        Replicated blocks without other work of their ranks, and the part verified identical to the simulated block.
    disturbed_share : float
        Share of the replicated time with other work of the same ranks.
    """

    simulated: int
    folded: int
    alone: int
    proved_identical: int
    disturbed_share: float
    skew_ps: int


class SimulatedStepJson(StepJson):
    """A simulated training step."""

    busiest_wires: list[BusyWireJson]
    folded: FoldedJson
    broken_wires: list[BrokenWireJson]
    granularity: str
    tasks: int
    fingerprint: str


class WholeStepsJson(TypedDict):
    """Steps that were simulated to their end: times [s], granularity, and replicated blocks."""

    steps_s: list[float]
    granularity: str
    folded: FoldedJson


class EndedStepsJson(EndedJson):
    """Partial result of training steps.

    Attributes
    ----------
    steps : int
        Requested steps.
    steps_s : list of float
        Times of the completed steps [s].
    under_way_s : float
        Simulated time of the step in progress [s].
    granularity : str
        Granularity of the run in progress.
    blocks_folded : int
        Number of its replicated blocks.
    before : object or None
        Earlier run that was completed: coarser, with more blocks replicated, or without a checkpoint.
    """

    workload: str
    model: str
    fabric: str
    gpus: int
    steps: int
    steps_s: list[float]
    under_way_s: float
    granularity: str
    blocks_folded: int
    before: WholeStepsJson | None


class PartsJson(TypedDict):
    """Number of parts of the step, and number simulated for this estimate.

    Attributes
    ----------
    parts_followed : int
        Number of parts extrapolated from runs on fewer nodes.
    followed_error_s : float
        Resulting error limit of the step [s].
    """

    parts: int
    parts_simulated: int
    parts_followed: int
    followed_error_s: float


class EstimatedStepJson(StepJson):
    """A training step composed of simulated parts."""

    estimate: PartsJson


class ScaledStepJson(TypedDict):
    """A training step on some replicas.

    Attributes
    ----------
    samples_per_s, tokens_per_s : float
        Throughput, in the unit of the model.
    mfu : float
        Model FLOP/s over the peak FLOP/s of all ranks.
    efficiency : float
        Throughput per GPU relative to the first row.
    """

    replicas: int
    gpus: int
    step_time_s: float
    samples_per_s: NotRequired[float]
    tokens_per_s: NotRequired[float]
    mfu: float
    exposed_comm_s: float
    efficiency: float
    expected_error: Annotated[dict[str, Any], FieldsOf(StepClass)] | None
    expected_error_text: str
    faults: list[str]
    notes: list[str]


class LayerRowJson(TypedDict):
    """A layer, for one microbatch on one GPU.

    Attributes
    ----------
    count : int
        Number of equal layers in the stage.
    forward_flops, input_flops, weight_flops : int
        Operations forwards, and backwards towards the gradients of inputs and of weights.
    forward_hbm_bytes, input_hbm_bytes, weight_hbm_bytes : int
        Memory traffic [bytes].
    activation_bytes : int
        Activations kept for the backward pass [bytes].
    memory_bound : float
        Share of the time in which kernels are limited by memory rather than arithmetic.
    collectives : dict
        Forwards and backwards, in words.
    """

    stage: int
    layer: str
    count: int
    parameters: int
    forward_flops: int
    input_flops: int
    weight_flops: int
    forward_hbm_bytes: int
    input_hbm_bytes: int
    weight_hbm_bytes: int
    forward_s: float
    input_s: float
    weight_s: float
    activation_bytes: int
    memory_bound: float
    collectives: dict[str, list[str]]


class OptimizerRowJson(TypedDict):
    """The step of the optimiser of a stage on one GPU."""

    stage: int
    parameters: int
    hbm_bytes: int
    step_s: float


class LayersJson(TypedDict):
    """Work of every layer, before any simulation.

    Attributes
    ----------
    peak_flops : float
        Peak of the chip at the workload's precision [1/s].
    gemm_fraction, attention_fraction : float
        Largest share of the peak that matrix products and fused attention reach.
    sustained : float
        Share of the clock in long runs.
    """

    workload: str
    model: str
    chip: str
    peak_flops: float
    gemm_fraction: float
    attention_fraction: float
    memory_Bps: float
    sustained: float
    microbatches: int
    layers: list[LayerRowJson]
    optimizer: list[OptimizerRowJson]
