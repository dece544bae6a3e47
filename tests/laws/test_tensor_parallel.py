"""What tensor parallelism must communicate, derived by hand, against what layers do.

Unit: an all-gather or reduce-scatter of b*s*h elements, for which every GPU sends and receives b*s*h (N-1)/N of them;
an all-reduce is two. The layer is a GPT block with matrices h x 3h, h x h, h x 4h and 4h x h on N GPUs.

*Paired* (columns, then rows). Behind the rows of a pair outputs are parts of a sum: all-reduce, 2. Backwards the same
is true of the input gradient before the columns: 2. Two pairs: 4 forwards, 4 backwards.

*Along the sequence*. What is between pairs is cut by tokens: gather before a pair 1, scatter its sum 1; backwards
gather the gradient 1, scatter the input gradient 1. Inputs are kept cut, so they are gathered again for the weight
gradient: 1. Two pairs: 4 forwards, 6 backwards.

*Columns only*. Each matrix needs its whole input and makes a part of its output. h -> 3h and h -> 4h get it from
between the blocks; the others must gather it (1 and 4) and hand on a whole output (1 each): 7 forwards. Backwards all
input gradients are parts of sums. Before 3h and 4h the sum is needed whole: 2 each; the others, whose inputs were
gathered, need their part: 1 and 4. The gradients of their outputs are whole, of which a rank takes its part. 9
backwards.

*Rows only*. Each matrix needs a part of its input and makes parts of sums of its whole output. h -> 3h and h -> 4h hand
on parts (3 and 4), the others a whole output (2 each): 11 forwards. Backwards each needs the gradient of its whole
output: 3h and 4h must gather it (3 and 4) and hand on a whole input gradient (1 each): 9.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import pytest

from clusim import topology
from clusim.base.errors import InputError
from clusim.workload import Workload
from clusim.workload.kernels import Kernel
from clusim.workload.layers import Activations, Comm, Gemm, Layer, Shard, Step, Wait
from clusim.workload.models import find_model
from clusim.workload.models.vision import Perceptron
from clusim.workload.parallel.plan import make_plan

Style = Literal["paired", "column", "row"]
HIDDEN, TOKENS, GPUS = 5120, 2048, 4
UNIT = TOKENS * HIDDEN * 2
PARTS = {"allreduce": 2, "all_gather": 1, "reduce_scatter": 1}


def units(steps: Iterable[Step], unit_bytes: int = UNIT) -> float:
    return sum(PARTS[s.operation] * s.bytes / unit_bytes for s in steps if isinstance(s, Comm))


def block(**fields: Any) -> Layer:
    return find_model("gpt3-13b").build(Shard(sequence=TOKENS, **{"tensor": GPUS} | fields))[1]


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize(
    ("fields", "forward", "backward"),
    [
        ({}, 2 + 2, 2 + 2),
        ({"sequence_parallel": True}, 4 * 1, 6 * 1),
        ({"style": "column"}, 1 + 1 + 4 + 1, 2 + 1 + 2 + 4),
        ({"style": "row"}, 3 + 2 + 4 + 2, 3 + 1 + 4 + 1),
    ],
)
def test_a_block_communicates_what_its_scheme_needs(
    fields: dict[str, Any], forward: int, backward: int, gpus: int
) -> None:
    layer = block(tensor=gpus, **fields)
    assert (units(layer.forward), units(layer.backward)) == (forward, backward)


def test_one_gpu_communicates_nothing() -> None:
    for style in ("paired", "column", "row"):
        layer = block(tensor=1, style=style)
        assert not [s for s in (*layer.forward, *layer.backward) if isinstance(s, Comm)]


@pytest.mark.parametrize("style", ["paired", "column", "row"])
def test_every_scheme_computes_a_part_of_each_matrix(style: Style) -> None:
    """Whatever is cut: the operations and parameters of a rank are 1/N of the whole, and each product is a real one."""
    whole, part = block(tensor=1), block(style=style)
    for kind in ("forward", "input", "weight"):
        assert GPUS * part.flops(kind) == whole.flops(kind)  # type: ignore[arg-type]
    assert GPUS * part.parameters == pytest.approx(whole.parameters, rel=1e-3)
    shapes = [k.gemm for k in part.kernels("forward") if isinstance(k.gemm, Gemm)]
    h, n = HIDDEN, GPUS
    first = (
        [(3 * h // n, h), (4 * h // n, h)] if style != "row" else [(3 * h, h // n), (4 * h, h // n)]
    )
    last = [(h, h // n), (h, 4 * h // n)] if style != "column" else [(h // n, h), (h // n, 4 * h)]
    assert [(g.n, g.k) for g in shapes] == [first[0], last[0], first[1], last[1]]


def test_what_is_kept_is_what_the_weight_gradient_needs() -> None:
    """Columns only keeps the two inputs it gathered; rows only keeps parts of the two that were whole."""
    kept = {style: block(style=style).activations for style in ("paired", "column", "row")}
    missing = UNIT * (GPUS - 1) // GPUS
    assert kept["column"].none - kept["paired"].none == (1 + 4) * missing
    assert kept["paired"].none - kept["row"].none == (1 + 1) * missing
    assert kept["column"].full == kept["paired"].full == kept["row"].full == UNIT


@pytest.mark.parametrize(
    ("fields", "overlapped"),
    [
        ({}, 2),
        ({"sequence_parallel": True}, 4),
        ({"style": "column"}, 4),
        ({"style": "row"}, 2),
    ],
)
def test_input_gradients_are_summed_under_the_weight_gradient(
    fields: dict[str, Any], overlapped: int
) -> None:
    """And every sum that was started is waited for."""
    steps = block(**fields).backward
    started = [s.key for s in steps if isinstance(s, Comm) and s.key]
    awaited = [s.key for s in steps if isinstance(s, Wait)]
    assert sorted(started) == sorted(awaited)
    assert len(started) == overlapped
    for at, step in enumerate(steps):
        if isinstance(step, Comm) and step.key and step.operation != "all_gather":
            follower = steps[at + 1]
            assert isinstance(follower, Kernel)
            assert follower.part == "weight"


@pytest.mark.parametrize(
    ("style", "forward", "backward"),
    [
        # whole -> cut -> whole -> cut: sums behind the second, and before the first and third
        ("paired", (0, 2, 0), (2, 0, 2)),
        # the input of all but the first is gathered, its gradient scattered
        ("column", (0, 1, 1), (2, 1, 1)),
        # all outputs are scattered, their gradients gathered; that of the input is whole
        ("row", (1, 1, 1), (2, 1, 1)),
    ],
)
def test_linear_layers_with_nothing_between_them_gather_or_scatter_once(
    style: Style, forward: tuple[int, ...], backward: tuple[int, ...]
) -> None:
    layers = Perceptron("mlp", sizes=(1024, 1024, 1024, 1024)).build(
        Shard(batch=64, tensor=4, style=style)
    )
    unit = 64 * 1024 * 2
    assert tuple(units(layer.forward, unit) for layer in layers) == forward
    assert tuple(units(layer.backward, unit) for layer in layers) == backward
    kept = Activations(none=64 * 2 * (1024 + 256), full=64 * 2 * 1024)
    assert layers[0].activations == (
        kept if style != "row" else Activations(none=64 * 2 * 512, full=64 * 2 * 1024)
    )


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_overlapped_products_move_the_same_bytes_in_pieces(gpus: int) -> None:
    """What is gathered or scattered is N - 1 messages of 1/N of it; each product is N of 1/N of the tokens."""
    plain = block(tensor=gpus, sequence_parallel=True)
    cut = block(tensor=gpus, sequence_parallel=True, overlap=True)
    for one, two in ((plain.forward, cut.forward), (plain.backward, cut.backward)):
        moved = units(one) * UNIT * (gpus - 1) // gpus
        rings = [s for s in two if isinstance(s, Comm) and s.operation == "sendrecv"]
        rest = [s for s in two if isinstance(s, Comm) and s.operation != "sendrecv"]
        assert {s.bytes for s in rings} == {UNIT // gpus}
        assert sum(s.bytes for s in rings) + units(rest) * UNIT * (gpus - 1) // gpus == moved
    # Four forwards: before and behind two pairs. Backwards what comes to the rows, twice; the rest was overlapped.
    assert sum(isinstance(s, Comm) for s in cut.forward) == 4 * (gpus - 1)
    assert sum(isinstance(s, Comm) for s in cut.backward) == 2 * (gpus - 1) + 4
    for part in ("forward", "input", "weight"):
        assert cut.flops(part) == plain.flops(part)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_piece_is_multiplied_while_the_next_one_comes(way: str) -> None:
    """Between the start of a message and its end stands one product of a quarter of the tokens."""
    steps = getattr(block(sequence_parallel=True, overlap=True), way)
    for at, step in enumerate(steps):
        if isinstance(step, Comm) and step.operation == "sendrecv":
            under, wait = steps[at + 1 : at + 3]
            assert isinstance(under, Kernel)
            assert under.gemm is not None
            assert under.gemm.m == TOKENS // GPUS
            assert isinstance(wait, Wait)
            assert wait.key == step.key


def test_overlap_goes_with_what_is_cut_along_the_sequence_only() -> None:
    work = Workload.model_validate(
        {
            "name": "both",
            "model": "gpt3-1.3b",
            "topology": "dgx-a100",
            "batch": {"global": 8},
            "parallel": {"tensor": 8},
            "tensor": {"overlap": True},
        }
    )
    with pytest.raises(InputError, match="set sequence_parallel"):
        make_plan(work, topology.load("dgx-a100"))


def test_sequence_parallelism_goes_with_pairs_only() -> None:
    work = Workload.model_validate(
        {
            "name": "both",
            "model": "gpt3-1.3b",
            "topology": "dgx-a100",
            "batch": {"global": 8},
            "parallel": {"tensor": 8},
            "tensor": {"style": "row", "sequence_parallel": True},
        }
    )
    with pytest.raises(InputError, match=r"row with sequence_parallel: .*; use paired"):
        make_plan(work, topology.load("dgx-a100"))
