"""Serving results as text: one run, several loads, and the parts of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusim.base.json_schema import JsonObject, Round3
from clusim.base.tables import text_table
from clusim.base.units import format_size
from clusim.report.charts import RatePoint, plot_rates
from clusim.serving.forward import StepShape
from clusim.serving.result import Latency, Serving
from clusim.serving.times import ServedStepTimes, pad_tokens
from clusim.serving.verdict import (
    ARITHMETIC,
    WEIGHTS,
    add_times,
    latency_parts,
    share_words,
    step_limit,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run_rows(result: Serving) -> list[Sequence[object]]:
    """Return the facts of a run by name."""
    layout, cache = result.layout, result.cache
    parts = [
        f"tensor {layout.tensor}",
        f"pipeline {layout.pipeline}" if layout.pipeline > 1 else "",
        f"expert {layout.expert}" if layout.expert > 1 else "",
        f"attention data {layout.attention_data}"
        if layout.attention_data > 1
        else "",
    ]
    tokens = f"{result.input_tokens:,} tokens in, {result.output_tokens:,} out"
    rates = (
        f"{result.tokens_per_s:,.1f} out, {result.tokens_per_s_per_gpu:,.1f} per GPU"
    )
    room = f"{cache.tokens:,} tokens of {format_size(cache.token_bytes)}"
    named = ", ".join(filter(None, parts))
    rows: list[Sequence[object]] = [
        (
            "model",
            f"{layout.model.name}, {named}, {layout.weights}, cache {layout.cache}",
        ),
        ("system", f"{result.system}, {result.gpus} GPUs"),
        ("engine", result.engine),
        ("requests", f"{result.count}: {tokens}, in {result.time_s:.3f} s"),
        ("tokens/s", f"{rates}; {result.requests_per_s:.2f} requests/s"),
        (
            "cache",
            f"{room}, {cache.peak:.0%} in use at most; {cache.preemptions} preemptions",
        ),
        ("steps", f"{result.steps:,}, {result.different_steps} distinct"),
        (
            "expected error",
            result.expected.text()
            if result.expected
            else "not known (no comparable measurements)",
        ),
    ]
    limits = result.limits
    if limits.ttft is not None or limits.tpot is not None:
        rows.append(
            (
                "within limits",
                f"{result.good_per_s:.2f} of {result.requests_per_s:.2f} requests/s",
            )
        )
    return rows


def serving_report(result: Serving) -> str:
    """Return the text of a run."""
    lines = text_table("{:<..}  {}", run_rows(result))
    lines += [
        "",
        *_latency_lines(result),
        "",
        "steps are spent on",
        *_spent_lines(result),
    ]
    lines += [
        "",
        *(f"verdict: {line}" for line in result.verdict.lines()),
        *(f"note: {note}" for note in result.notes),
    ]
    return "\n".join(lines)


def _latency_lines(result: Serving) -> list[str]:
    named = {
        "TTFT": result.ttft,
        "TPOT": result.tpot,
        "ITL": result.itl,
        "latency": result.latency,
    }
    rows: list[Sequence[object]] = [("[ms]", "mean", "p50", "p90", "p99")]
    for name, latency in named.items():
        rows.append((name, *(_ms(value) for value in _values(latency))))
    return text_table("{:<..}  {:>..}  {:>..}  {:>..}  {:>..}", rows)


def _values(latency: Latency) -> tuple[float, ...]:
    return latency.mean, latency.p50, latency.p90, latency.p99


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _spent_lines(result: Serving) -> list[str]:
    rows = [(name, share) for name, share in result.spent.items() if share >= 0.005]
    return text_table("  {:<..}  {:>6.1%}", rows)


@dataclass(frozen=True, slots=True)
class ServedLoad(JsonObject):
    """A load of a sweep.

    Attributes
    ----------
    concurrency : int
        Requests that are always in the server.
    ttft_ms, tpot_ms : float
        Means [ms].
    tokens_per_s_per_gpu, tokens_per_s_per_user : float
        Output tokens over the time for each GPU; 1 / mean time per token.
    good_per_s : float
        Requests within the limits over the time.
    cache : float
        Largest fraction of the cache in use.
    preemptions : int
        Preempted sequences.
    """

    concurrency: int
    ttft_ms: Round3
    tpot_ms: Round3
    tokens_per_s_per_gpu: Round3
    tokens_per_s_per_user: Round3
    good_per_s: Round3
    cache: Round3
    preemptions: int

    @classmethod
    def of(cls, concurrency: int, result: Serving) -> ServedLoad:
        """Return the row of a run."""
        tpot = result.tpot.mean
        return cls(
            concurrency,
            result.ttft.mean * 1e3,
            tpot * 1e3,
            result.tokens_per_s_per_gpu,
            1 / tpot if tpot else 0.0,
            result.good_per_s,
            result.cache.peak,
            result.cache.preemptions,
        )


def load_lines(rows: Sequence[ServedLoad]) -> list[str]:
    """Return the loads of a sweep as a table."""
    head = (
        "concurrency",
        "TTFT ms",
        "TPOT ms",
        "tokens/s/GPU",
        "tokens/s/user",
        "good/s",
        "cache",
        "preempted",
    )
    layout = "{:>..}  {:>..}  {:>..}  {:>..}  {:>..}  {:>..}  {:>..}  {:>..}"
    cells: list[Sequence[object]] = [head]
    for row in rows:
        cells.append(
            (
                str(row.concurrency),
                f"{row.ttft_ms:.1f}",
                f"{row.tpot_ms:.2f}",
                f"{row.tokens_per_s_per_gpu:.1f}",
                f"{row.tokens_per_s_per_user:.1f}",
                f"{row.good_per_s:.2f}",
                f"{row.cache:.0%}",
                str(row.preemptions),
            )
        )
    return text_table(layout, cells)


def plot_loads(series: Mapping[str, Sequence[ServedLoad]]) -> Figure:
    """Draw the loads of one or several configurations by name."""
    return plot_rates(
        {
            name: [
                RatePoint(
                    row.tokens_per_s_per_user,
                    row.tokens_per_s_per_gpu,
                    str(row.concurrency),
                )
                for row in rows
            ]
            for name, rows in series.items()
        }
    )


@dataclass(frozen=True, slots=True)
class ServedKernel(JsonObject):
    """Kernels or collectives of one kind in a step.

    Attributes
    ----------
    step : str
        ``prefill`` or ``decode``.
    name : str
        Kernel, or collective with its size and ranks.
    count : int
        Number in the step.
    time_us : float
        Time of each [us].
    share : float
        Fraction of the step.
    limit : str
        Its limit, as in the verdict.
    """

    step: str
    name: str
    count: int
    time_us: Round3
    share: Round3
    limit: str


def layer_rows(
    replicas: tuple[ServedStepTimes, ServedStepTimes],
    prompt: int,
    sequences: int,
    cached: int,
) -> list[ServedKernel]:
    """Return the kernels and collectives of a step with one prompt, and of one with decoding sequences.

    Parameters
    ----------
    replicas : (ServedStepTimes, ServedStepTimes)
        Steps of the replicas for prompts and for decoding.
    prompt : int
        Tokens of the prompt.
    sequences, cached : int
        Decoding sequences, and the tokens in the cache of each; copies of attention have equal parts.
    """
    copies = replicas[1].forward.layout.attention_data
    local = -(-sequences // copies)
    shapes = {
        "prefill": StepShape(pad_tokens(prompt), 0, 0, ((prompt, 0),), 1, prompt),
        "decode": StepShape(
            pad_tokens(local), local, local * cached, (), local, sequences
        ),
    }
    rows = []
    for times, (step, shape) in zip(replicas, shapes.items(), strict=True):
        parts = [
            (item.name, item.number, item.time_s)
            for item in times.forward.kernels(shape)
        ]
        for message in times.forward.messages(shape):
            name = f"{message.operation} of {format_size(message.size_bytes)}, {message.ranks} ranks"
            parts.append((name, message.number, times.message_s(message)))
        total = sum(count * time_s for _, count, time_s in parts)
        products = WEIGHTS if times.forward.balance > shape.tokens else ARITHMETIC
        rows += [
            ServedKernel(
                step,
                name,
                count,
                time_s * 1e6,
                count * time_s / total,
                step_limit(name.partition(" of ")[0]) or products,
            )
            for name, count, time_s in parts
        ]
    return rows


def layer_lines(rows: Sequence[ServedKernel]) -> list[str]:
    """Return the parts of steps as a table."""
    cells: list[Sequence[object]] = [
        ("step", "kernel or collective", "number", "us each", "share")
    ]
    for row in rows:
        cells.append(
            (
                row.step,
                row.name,
                str(row.count),
                f"{row.time_us:.2f}",
                f"{row.share:.1%}",
            )
        )
    lines = text_table("{:<..}  {:<..}  {:>..}  {:>..}  {:>..}", cells)
    for step in dict.fromkeys(row.step for row in rows):
        shares: dict[str, float] = {}
        for row in rows:
            if row.step == step:
                add_times(shares, {row.limit: row.share})
        words = share_words(latency_parts(1.0, 1.0, shares))
        lines.append(f"verdict: a {step} step: {words}")
    return lines
