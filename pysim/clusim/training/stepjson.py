"""The forms of training steps in JSON: a step, layers of a plan, steps of several sizes."""

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
    """GPU costs of collectives: mean SMs; traffic, bytes sent and time in isolation, per step [bytes, s]."""

    sms: float
    memory_bytes: int
    sent_bytes: int
    alone_s: float


class InSwitchJson(TypedDict):
    """Collectives that switches did in a step, per GPU: how many, what they cost, and what rings would.

    Attributes
    ----------
    collectives : float
        How many.
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
        Of the whole checkpoint [bytes].
    stall_s : float
        How much longer the step takes [s].
    step_s, mean_step_s : float, float or None
        The step with it, and the mean over all steps, if the workload says how often [s].
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
        Shares of the time: steps that count, checkpoints, restarts, and what is done again.
    young_interval_s, daly_interval_s : float
        Between checkpoints, by Young's and Daly's formulas [s].
    days : float
        Over which is counted [days].
    failures, useful_steps : float
        In these days.
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
        What the step needs for what [GiB].
    libraries, fragments : float
        Context, code and workspaces of libraries; what the allocator holds between blocks (assumed) [GiB].
    total, capacity, missing : float
        All of it, what the chip has (0 if that is not known), and what it lacks [GiB].
    microbatches_in_flight : int
        Of which activations are held.
    fits : bool
        Whether nothing is missing.
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
        Where the groups of each dimension are: ``none``, ``inside`` a machine or ``across``.
    steps_s : list of float
        Time of every step that was simulated [s].
    samples_per_s, tokens_per_s : float
        Throughput, in the unit of the model.
    tflops_per_gpu : float
        Of the model's operations [10^12/s].
    mfu, hfu : float
        The model's operations, and those that ran, against the peak of all ranks.
    exposed_comm_s, communication_s : float
        Communication that nothing hides, and all of it [s].
    kernel_slowdown_s : float
        What kernels lose to communication, which takes their SMs and memory [s].
    communication_sms : float
        SMs that it holds while it runs, in the mean.
    bubble_fraction : float
        Share of the step.
    memory_GiB, memory_by_stage_GiB : object, list
        Of the fullest stage, and of all [GiB].
    volume_bytes_per_gpu, collectives_per_step : dict
        By dimension of parallelism: what a GPU sends in a step [bytes], and how many collectives it takes part in.
    error_bound : float or None
        By how much its grain may move the step at most, as a share; None where no bound is known.
    wall_s : float
        Time on the wall that the engine took [s].
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
    """Blocks of work that were not simulated one by one.

    Attributes
    ----------
    simulated, folded : int
        Blocks that were, and that stand for themselves as pauses.
    alone, proved_identical : int
        Of the folded: at whose ranks nothing else was under way, and those of them that are as the simulated one.
    disturbed_share : float
        Part of the folded time in which something else was under way at the same ranks.
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
    """Steps that were simulated to their end: their times [s], how finely, and what was folded."""

    steps_s: list[float]
    granularity: str
    folded: FoldedJson


class EndedStepsJson(EndedJson):
    """Training steps that were ended before their end.

    Attributes
    ----------
    steps : int
        That were asked for.
    steps_s : list of float
        Times of those that were done [s].
    under_way_s : float
        Time simulated of the step that was under way [s].
    granularity : str
        How finely the run that was under way is simulated.
    blocks_folded : int
        Blocks of work that pauses stand for in it.
    before : object or None
        What was simulated to its end before: more coarsely, with more blocks folded, or without a checkpoint.
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
    """Parts that the step is made of, and those of them that had to be simulated now.

    Attributes
    ----------
    parts_followed : int
        Those whose time was followed from runs on fewer machines.
    followed_error_s : float
        By how much the step may be off for that, at most [s].
    """

    parts: int
    parts_simulated: int
    parts_followed: int
    followed_error_s: float


class EstimatedStepJson(StepJson):
    """A training step made of parts that were simulated before."""

    estimate: PartsJson


class ScaledStepJson(TypedDict):
    """A training step on some replicas.

    Attributes
    ----------
    samples_per_s, tokens_per_s : float
        Throughput, in the unit of the model.
    mfu : float
        The model's operations against the peak of all ranks.
    efficiency : float
        Throughput per GPU against that of the first row.
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
        How many like it the stage has.
    forward_flops, input_flops, weight_flops : int
        Operations forwards, and backwards towards the gradients of inputs and of weights.
    forward_hbm_bytes, input_hbm_bytes, weight_hbm_bytes : int
        Traffic of memory [bytes].
    activation_bytes : int
        What is kept for the backward pass [bytes].
    memory_bound : float
        Part of the time in which kernels wait for memory rather than for arithmetic.
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
    """Work of every layer, before anything is simulated.

    Attributes
    ----------
    peak_flops : float
        Of the chip at the workload's precision [1/s].
    gemm_fraction, attention_fraction : float
        Of which products and fused attention reach at most.
    sustained : float
        Of the clock, in long runs.
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
