"""Measured serving runs: rows of a CSV table.

A row is one load of one server: model, chip, engine, parallelism, lengths, concurrency, and its times. The note of a
disaggregated row names its pools: ``prefill 1 workers tp1 pp1 dp8 ep8 batch 1; decode 4 workers tp8 pp1 dp1 ep8``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.limits import read_text
from clusim.base.tables import table_rows
from clusim.hardware.engines import ENGINES
from clusim.serving.layout import place_replicas
from clusim.serving.requests import PER_CONCURRENT
from clusim.serving.spec import ServingSpec

NEEDED = (
    *("hardware", "engine", "model", "precision", "tp", "input_len", "output_len"),
    *("concurrency_or_batch", "ttft_ms", "tpot_ms"),
)
"""Required columns of a table of serving runs."""

MAX_FILE_BYTES = 64 << 20

SYSTEMS = {
    "A100": ("dgx-a100", 8),
    "H100": ("dgx-h100", 8),
    "H200": ("dgx-h200", 8),
    "B200": ("hgx-b200", 8),
    "B300": ("hgx-b300", 8),
    "GB200": ("gb200-nvl72", 72),
    "GB300": ("gb300-nvl72", 72),
    "MI300X": ("mi300x", 8),
    "MI355X": ("mi355x", 8),
    "L40S": ("l40s-x8", 8),
}
"""Systems of chips, by the first word of a row's hardware, and GPUs of a node."""

POOL = re.compile(
    r"(prefill|decode) (\d+) workers tp(\d+) pp(\d+) dp(\d+) ep(\d+)(?: batch (\d+))?"
)
"""Pool in the note of a disaggregated row: workers, and ranks of each."""

MOST_TENSOR = 8
"""Most ranks that share attention in a row of one server, whose count is not doubtful."""

TWICE = re.compile(r"moe_tp (\d+)")
"""Ranks that share an expert in a note."""

MODELS = (
    (r"llama-?3[.0-9]*-?8b", "llama3-8b"),
    (r"llama-?3[.0-9]*-?70b", "llama3-70b"),
    (r"llama-?3[.0-9]*-?405b", "llama3-405b"),
    (r"mistral-7b", "mistral-7b"),
    (r"mixtral-8x7b", "mixtral-8x7b"),
    (r"mixtral-8x22b", "mixtral-8x22b"),
    (r"deepseek-(r1|v3)", "deepseek-v3"),
    (r"gpt-oss-20b", "gpt-oss-20b"),
    (r"gpt-oss-120b", "gpt-oss-120b"),
    (r"qwen3-32b", "qwen3-32b"),
    (r"qwen3-30b-a3b", "qwen3-30b-a3b"),
    (r"qwen3-235b-a22b", "qwen3-235b-a22b"),
)
"""Models by a pattern of their names."""

LENGTH_SHARE = 0.8
"""Least length of requests of InferenceX relative to the nominal one; **assumed**: its scripts draw 80 to 100 %."""

SCENARIOS = ((1024, 1024), (1024, 8192), (8192, 1024))
"""Nominal lengths of InferenceX. Dated rows with these are its runs; others are assumed to be like the benchmarks that
aiconfigurator generates: equal lengths (its ``isl_stddev`` is 0), so that requests of a closed loop end together.
"""

MORE_TOKENS = 1500
"""Tokens of a step beyond a prompt and the sequences, in the engine settings that aiconfigurator generates."""


@dataclass(frozen=True, slots=True)
class ServingRow:
    """A measured run; unknown times are 0.

    Attributes
    ----------
    where : str
        File and line.
    concurrency : int
        Requests that are always in the server.
    ttft_ms, tpot_ms : float
        Mean times to the first token, and per further token [ms].
    notes : tuple of str
        Assumptions.
    """

    where: str
    id: str
    source: str
    hardware: str
    engine: str
    release: str
    model: str
    precision: str
    tensor: int
    pipeline: int
    expert: int
    attention_data: int
    input: int
    output: int
    concurrency: int
    ttft_ms: float
    tpot_ms: float
    note: str = ""

    def assumptions(self) -> tuple[str, ...]:
        """Return notes on figures that the row does not have."""
        engine = ENGINES[self.engine]
        return (
            f"engine {self.release or 'of an unknown release'}: kernels of {self.engine} {engine.release}",
            f"{self._length_words()}, {PER_CONCURRENT} requests for each at a time",
        )

    @property
    def has_drawn_lengths(self) -> bool:
        """True for runs of InferenceX, with lengths of 80 to 100 %."""
        return (self.input, self.output) in SCENARIOS and "measured" in self.note

    def _batching(self) -> dict[str, int]:
        """Return the limits of the scheduler."""
        limits = {"max_sequences": max(self.concurrency, 1)}
        if not self.has_drawn_lengths:
            limits["max_batched_tokens"] = (
                self.concurrency + self.input + MORE_TOKENS
            )
        return limits

    def _length_words(self) -> str:
        if self.has_drawn_lengths:
            return f"lengths of {LENGTH_SHARE:.0%} to 100% of the nominal ones"
        return (
            f"the nominal lengths, steps of {MORE_TOKENS} tokens more than a prompt"
        )

    def spec(self) -> ServingSpec:
        """Return the serving file of the row.

        Raises
        ------
        InputError
            An unknown word, or a run that is not supported.
        """
        if self.engine not in ENGINES:
            raise InputError(f"{self.where}: engine {self.engine!r} is unknown")
        chip = self.hardware.split()[0] if self.hardware else ""
        if chip not in SYSTEMS:
            raise InputError(f"{self.where}: hardware {self.hardware!r} is unknown")
        weights, cache = self._formats(chip)
        system, per_node = SYSTEMS[chip]
        replicas, sizes = self._replicas()
        ranks = place_replicas(sizes, per_node)[-1]
        if ranks > per_node:
            replicas["nodes"] = -(-ranks // per_node)
        return ServingSpec.model_validate(
            {
                "topology": system,
                "model": _model(self.model, self.where),
                "engine": {"name": self.engine},
                "precision": {"weights": weights, "cache": cache},
                "requests": {
                    "input": self._lengths(self.input),
                    "output": self._lengths(self.output),
                    "concurrency": self.concurrency,
                },
                "batching": self._batching(),
                **replicas,
            }
        )

    def _lengths(self, nominal: int) -> dict[str, list[int]]:
        least = round(LENGTH_SHARE * nominal) if self.has_drawn_lengths else nominal
        return {"uniform": [max(1, least), nominal]}

    def _replicas(self) -> tuple[dict[str, Any], list[int]]:
        """Return the keys of replicas or pools, and the ranks of each."""
        if "disaggregated" not in self.note:
            parallel = _parallel(
                self.tensor, self.pipeline, self.attention_data, self.expert
            )
            size = self.tensor * self.pipeline * self.attention_data
            return {"parallel": parallel}, [size]
        pools: dict[str, Any] = {}
        sizes: list[int] = []
        for name, *numbers in POOL.findall(self.note):
            count, tensor, pipeline, data, expert = map(int, numbers[:5])
            parallel = _parallel(tensor, pipeline, data, expert)
            pools[name] = {"replicas": count, "parallel": parallel}
            sizes += [tensor * pipeline * data] * count
        if {*pools} != {"prefill", "decode"}:
            raise InputError(
                f"{self.where}: disaggregated: the note does not name the workers of prefill and decode"
            )
        return {"pools": pools}, sizes

    def _formats(self, chip: str) -> tuple[str, str]:
        """Return the precision of weights and of the cache; B200's runs have an 8-bit cache."""
        words = {
            "fp8": "fp8",
            "fp4": "nvfp4",
            "bf16": "bf16",
            "": "bf16",
            "mxfp4": "mxfp4",
        }
        if self.precision not in words:
            raise InputError(
                f"{self.where}: precision {self.precision!r} is unknown"
            )
        weights = words[self.precision]
        if weights == "fp8" and "deepseek" in self.model.lower():
            weights = "fp8-block"
        if weights == "nvfp4" and "gpt-oss" in self.model.lower():
            weights = "mxfp4"
        new = chip.startswith(("B2", "B3", "GB"))
        eight = self.engine == "trtllm" and weights != "bf16"
        return weights, "fp8" if new or eight else "bf16"


def _model(name: str, where: str) -> str:
    for pattern, model in MODELS:
        if re.search(pattern, name.lower()):
            return model
    raise InputError(f"{where}: model {name!r} is unknown")


def _parallel(tensor: int, pipeline: int, data: int, expert: int) -> dict[str, int]:
    """Return the ranks of a replica; experts of models without any are 0 or 1."""
    return {
        "tensor": tensor,
        "pipeline": pipeline,
        "expert": min(max(1, expert), tensor * data),
        "attention_data": data,
    }


def is_serving_table(path: Path) -> bool:
    """Return True if a file has the columns of a table of serving runs."""
    try:
        with path.open(encoding="utf-8") as file:
            head = file.readline(4096)
    except (OSError, UnicodeDecodeError):
        return False
    columns = [name.strip() for name in head.split(",")]
    return {"engine", "tpot_ms", "ttft_ms"} <= {*columns}


def read_serving_rows(paths: Iterable[Path]) -> Iterator[ServingRow]:
    """Yield the rows of tables.

    Raises
    ------
    InputError
        A column is missing, or a number is invalid.
    """
    for path in paths:
        text = read_text(path, MAX_FILE_BYTES, advice="not a table of serving runs")
        for cells, where in table_rows(path, text, NEEDED):
            yield _row(cells, where)


def _row(cells: dict[str, str], where: str) -> ServingRow:
    def number(name: str, default: float) -> float:
        word = cells.get(name, "")
        try:
            return float(word) if word else default
        except ValueError:
            return default

    def count(name: str) -> int:
        return max(1, round(number(name, 1)))

    # Engines count the ranks of all copies of attention as tensor-parallel.
    tensor, data, gpus = count("tp"), count("dp"), number("gpus", 0)
    if data > 1 and tensor % data == 0 and tensor * data * count("pp") > gpus > 0:
        tensor //= data
    # Rows with experts on all ranks count these twice: tp 64 and ep 8 of 8 GPUs.
    cut = TWICE.search(cells.get("note", ""))
    if cut and tensor > MOST_TENSOR and tensor == int(cut[1]) * count("ep"):
        tensor = int(cut[1])
    return ServingRow(
        where=where,
        id=cells.get("id", ""),
        source=cells.get("source", ""),
        hardware=cells["hardware"],
        engine=cells["engine"],
        release=cells.get("release", ""),
        model=cells["model"],
        precision=cells["precision"],
        tensor=tensor,
        pipeline=count("pp"),
        expert=count("ep"),
        attention_data=data,
        input=count("input_len"),
        output=count("output_len"),
        concurrency=count("concurrency_or_batch"),
        ttft_ms=number("ttft_ms", 0.0),
        tpot_ms=number("tpot_ms", 0.0),
        note=cells.get("note", ""),
    )
