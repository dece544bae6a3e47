"""Checkpoints inside steps: bytes by hand, and what they add to a step whose copies are slow, fast or shared."""

from __future__ import annotations

import json

import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.training import TrainingResult, train, training_report
from clusim.training.goodput import goodput_of
from clusim.training.schedules import write_steps
from clusim.workload import Workload
from clusim.workload.host import TO_HOST, host_way
from clusim.workload.parallel.checkpoints import checkpoint_of
from clusim.workload.parallel.plan import make_plan
from support.workloads import ideal, tiny

A100 = clusim.load("dgx-a100")
RATE = host_way(A100).rate_Bps
MOE = "{base: mixtral-8x7b, layers: 4, hidden: 256, heads: 8, kv_heads: 8, head_size: 32, expert_size: 64, vocab: 1024}"


def saved(text: str, checkpoint: str, *, steps: int = 1, **fields: str) -> TrainingResult:
    work = tiny(f"checkpoint: {checkpoint}\n{text}", **fields)
    return train(work, A100, steps=steps, granularity=65536, fold="none")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("parallel: {tensor: 2, pipeline: 2}", {}),
        ("parallel: {pipeline: 4}\npipeline: {schedule: dualpipe}", {"batch": "{global: 16, micro: 1}"}),
        ("data: {kind: fsdp}", {}),
        ("parallel: {expert: 4}", {"model": MOE}),
        ("parallel: {pipeline: 2, expert: 4}", {"model": MOE}),
    ],
)  # fmt: skip
def test_all_ranks_copy_every_state_once(text: str, fields: dict[str, str]) -> None:
    """Adam in mixed precision: 2 bytes of weights and 12 of states of every parameter, over all ranks."""
    plan = make_plan(tiny(f"checkpoint: {{write: 1 GB/s}}\n{text}", **fields), A100)
    own = checkpoint_of(plan)
    assert own is not None
    assert own.bytes == 14 * plan.model.parameters
    each = plan.mesh.size // plan.mesh.pipeline
    assert sum(own.copied) * each == pytest.approx(own.bytes, rel=1e-6)


def test_a_rank_copies_what_its_stage_has() -> None:
    """Two stages of two blocks: the first also has the embedding, whose copy is not saved, the second the norm."""
    plan = make_plan(tiny("checkpoint: {write: 1 GB/s}\nparallel: {pipeline: 2}"), A100)
    own = checkpoint_of(plan)
    assert own is not None
    block = 12 * 256 * 256 + 13 * 256
    embedding = 1024 * 256 + 2048 * 256
    assert own.copied[0] == pytest.approx(14 * (2 * block + embedding) / 4, rel=1e-6)
    assert own.copied[1] == pytest.approx(14 * (2 * block + 2 * 256) / 4, rel=1e-6)


def test_states_on_the_host_are_not_copied() -> None:
    text = "checkpoint: {write: 1 GB/s}\n"
    plan = make_plan(tiny(text + "offload: {optimizer: true}"), A100)
    own = checkpoint_of(plan)
    assert own is not None
    assert own.bytes == 14 * plan.model.parameters
    assert own.copied[0] == pytest.approx(2 * plan.model.parameters / 8, rel=1e-6)


ONE = {"batch": "{global: 2, micro: 1}"}
TWO = "parallel: {data: 2}\ndata: {kind: naive}"


@pytest.mark.parametrize(("write", "written"), [("1 GB/s", True), ("1000 GB/s", False)])
def test_synchronous_writing_takes_the_slower_of_copy_and_storage(
    write: str, written: bool
) -> None:
    found = saved(TWO, f"{{write: {write}}}", **ONE)
    size = 14 * found.plan.model.parameters
    took = size / 1e9 if written else size / 2 / RATE
    assert found.saved is not None
    assert found.saved.stall_s == pytest.approx(took, rel=1e-6)


def test_all_stages_go_on_together() -> None:
    """Storage begins when the last stage is done with its step, so a step is longer by the whole writing."""
    text = "parallel: {pipeline: 2, data: 1}"
    found = saved(text, "{write: 1 GB/s}", **ONE)
    assert found.saved is not None
    assert found.saved.stall_s == pytest.approx(14 * found.plan.model.parameters / 1e9, rel=1e-6)


def test_asynchronous_writing_stops_for_the_copy_only() -> None:
    found = saved(TWO, "{write: 1 MB/s, asynchronous: true}", **ONE)
    assert found.saved is not None
    assert found.saved.stall_s == pytest.approx(
        14 * found.plan.model.parameters / 2 / RATE, rel=1e-6
    )


OVERLAP = "{write: 1 GB/s, asynchronous: true, overlap: true}"


@pytest.mark.parametrize("steps", [1, 2])
def test_short_copies_go_under_the_passes(steps: int) -> None:
    slow = f"{TWO}\nhardware: {{gemm_fraction: 0.01}}"
    found = saved(slow, OVERLAP, steps=steps, **ONE)
    assert found.saved is not None
    assert found.saved.checkpoint.copy_s < found.step_time_s / 2
    assert found.saved.stall_s == 0


def test_long_copies_are_all_there_is_before_the_optimiser() -> None:
    text = "parallel: {data: 1}"
    found = saved(text, OVERLAP, steps=2, batch="{global: 1, micro: 1}")
    plan = found.plan
    optimizer = plan.chip.time_ps(plan.optimizer.kernel(plan.optimizer_parameters(0))) / 1e12
    copy = 14 * plan.model.parameters / RATE
    assert copy > found.step_time_s
    assert found.saved is not None
    assert found.step_time_s + found.saved.stall_s == pytest.approx(copy + optimizer, rel=1e-3)


def test_copies_share_the_way_with_offloaded_activations() -> None:
    """The optimiser waits for all that goes to the host; the way there is never idle, as copies are the slower part."""
    text = "offload: {activations: true}\noptimizer: momentum\nparallel: {data: 1}\n"
    model = "{base: mlp, sizes: [4096, 4096, 4096, 4096, 4096]}"
    found = saved(text, OVERLAP, model=model, batch="{global: 1024, micro: 1024}")
    plan = found.plan
    kept = 3 * plan.stages[0][0][0].activations.none
    optimizer = plan.chip.time_ps(plan.optimizer.kernel(plan.optimizer_parameters(0))) / 1e12
    states = 10 * plan.model.parameters
    assert states > 4 * kept
    assert found.saved is not None
    took = found.step_time_s + found.saved.stall_s
    assert took == pytest.approx((kept + states) / RATE + optimizer, rel=0.02)


def test_activations_find_their_turn_between_pieces() -> None:
    """A checkpoint far shorter than the activations delays the first of them by one piece and not by all of it."""
    text = "offload: {activations: true}\nparallel: {data: 1}\n"
    model = "{base: mlp, sizes: [4096, 4096, 4096, 4096, 4096]}"
    work = tiny(f"checkpoint: {OVERLAP}\n{text}", model=model, batch="{global: 4096, micro: 4096}")
    first = order_of_copies(work)
    # Four layers forwards and backwards are eight pieces; one is sent before the first activations.
    assert first.index("activations to host") == 1
    assert first.count("states to host") == 8
    assert first[-1] == "states to host"


def order_of_copies(work: Workload) -> list[str]:

    _, schedule = write_steps(make_plan(work, A100), None, 1, saved=True)
    return [task.name for task in schedule.tasks if task.stream == TO_HOST]


def test_the_other_steps_are_as_without() -> None:
    """The step that is reported has no checkpoint; what one adds is said beside it, and on average."""
    plain = train(tiny(TWO, **ONE), A100, steps=2, granularity=65536, fold="none")
    found = saved(TWO, "{write: 1 GB/s, every: 50}", steps=2, **ONE)
    assert found.step_ps == plain.step_ps
    data = json.loads(json.dumps(found.to_json()["checkpoint"]))
    assert data["mean_step_s"] == pytest.approx(data["stall_s"] / 50 + found.step_time_s, rel=1e-6)
    assert "one of 50 steps" in training_report(found)
    assert plain.to_json()["checkpoint"] is None


def test_folding_changes_nothing() -> None:
    work = tiny(f"checkpoint: {{write: 1 GB/s}}\n{TWO}", batch="{global: 8, micro: 1}")
    one, two = (train(work, A100, steps=1, granularity=65536, fold=f) for f in ("none", "all"))  # type: ignore[arg-type]
    assert one.saved is not None
    assert two.saved is not None
    assert two.saved.stall_s == pytest.approx(one.saved.stall_s, rel=1e-6)
    assert two.fold.folded


def test_goodput_takes_what_was_simulated() -> None:
    """Copies that go under passes cost nothing, and a checkpoint is whole when they are written behind."""
    failing = "reliability: {gpu_mtbf_h: 100, restart_s: 300}\n"
    slow = f"{TWO}\nhardware: {{gemm_fraction: 0.01}}\n{failing}"
    found = saved(slow, OVERLAP, **ONE)
    own = found.goodput
    assert own is not None
    assert own.job.stall_s == 0
    size = 14 * found.plan.model.parameters
    assert own.job.write_s == pytest.approx(size / 2 / RATE + size / 1e9)
    formula = goodput_of(found.plan, found.step_time_s)
    assert formula is not None
    assert formula.job == own.job


def test_the_same_checkpoint_in_both_places_gives_the_same_goodput() -> None:
    one, two = (
        train(tiny(text, **ONE), A100, steps=1, granularity=65536, fold="none").goodput
        for text in (
            f"{TWO}\nreliability: {{gpu_mtbf_h: 100, restart_s: 300, checkpoint: {{write: 1 GB/s}}}}",
            f"{TWO}\nreliability: {{gpu_mtbf_h: 100, restart_s: 300}}\ncheckpoint: {{write: 1 GB/s}}",
        )
    )
    assert one is not None
    assert two is not None
    assert one.useful == pytest.approx(two.useful, rel=1e-6)
    assert one.interval_steps == two.interval_steps


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reliability: {gpu_mtbf_h: 1, restart_s: 1}", "'checkpoint' is missing"),
        (
            "checkpoint: {write: 1 GB/s}\nreliability: {gpu_mtbf_h: 1, restart_s: 1, checkpoint: {write: 1 GB/s}}",
            "described twice",
        ),
        ("checkpoint: {write: 1 GB/s, every: 2, every_s: 3}", "not both"),
        ("checkpoint: {write: 1 GB/s, overlap: true}", "written later; set asynchronous"),
        (
            "checkpoint: {write: 1 GB/s}\ndata: {kind: parameter-server}",
            "states are on the servers",
        ),
        (
            "checkpoint: {write: 1 GB/s}\nparallel: {pipeline: 2}\npipeline: {schedule: pipedream}",
            "pipedream steps overlap",
        ),
    ],
)
def test_checkpoints_that_cannot_be_are_told(text: str, message: str) -> None:
    with pytest.raises(ClusimError, match=message):
        make_plan(tiny(text), A100)


def test_machines_without_hosts_are_told() -> None:
    with pytest.raises(
        ClusimError, match=r"tiny.yaml:5:13: checkpoint: .* is not connected to host memory"
    ):
        make_plan(tiny("checkpoint: {write: 1 GB/s}"), ideal(4))


def test_writing_that_takes_for_ever_is_told() -> None:
    with pytest.raises(
        ClusimError, match=r"checkpoint.write: [\d,]+ bytes need .* s to write; at most 1,000,000"
    ):
        train(tiny("checkpoint: {write: 1 B/s}"), A100, steps=1)
