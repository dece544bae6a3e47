"""Schedulers of engines: tokens of sequences that a step computes, and the blocks of the cache.

**Model** The rules of public engines, by name, for requests without common prefixes. ``vllm-v1`` (vllm/v1/core/sched):
running sequences first, in order, then waiting ones, within a budget of tokens; the last running sequence is preempted
when blocks run out, and computed again. ``sglang``: prompts before decoding, in separate steps. ``trtllm``: as
``vllm-v1``, but a sequence is admitted only if blocks for its longest output remain, so that no sequence is preempted.
``static``: all sequences start together and the batch runs until the last has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import Literal, NamedTuple, get_args

from clusim.base.errors import InputError

Rule = Literal["vllm-v1", "sglang", "trtllm", "static"]

RULES: tuple[Rule, ...] = get_args(Rule)
"""Names of schedulers."""


@dataclass(eq=False, slots=True)
class Sequence:
    """A request in an engine; compared by identity.

    Attributes
    ----------
    arrival_ps : int
        Arrival at the server.
    prompt, output : int
        Tokens of the prompt, and to generate.
    computed, generated : int
        Tokens in the cache; generated tokens.
    blocks, shared : int
        Blocks that it holds, and those of a common prefix that it reads.
    token_ps : list of int
        Times of its tokens.
    prompt_ps : int
        Time of the steps that compute its prompt, up to the first token.
    """

    number: int
    arrival_ps: int
    prompt: int
    output: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    shared: int = 0
    preemptions: int = 0
    token_ps: list[int] = field(default_factory=list)
    prompt_ps: int = 0

    @property
    def length(self) -> int:
        """Tokens that it has: prompt and output."""
        return self.prompt + self.generated

    @property
    def missing(self) -> int:
        """Tokens that are not in the cache."""
        return self.length - self.computed

    @property
    def is_done(self) -> bool:
        """True if it has all tokens."""
        return self.generated >= self.output


class Portion(NamedTuple):
    """Tokens of a sequence that a step computes."""

    sequence: Sequence
    tokens: int

    @property
    def decodes(self) -> bool:
        """True for one token after a computed prompt."""
        return self.tokens == 1 and self.sequence.computed >= self.sequence.prompt

    @property
    def completes(self) -> bool:
        """True if the sequence then gets a token."""
        return self.tokens == self.sequence.missing


@dataclass
class SequenceScheduler:
    """Sequences of an engine and its cache.

    Attributes
    ----------
    rule : str
        One of `RULES`.
    max_tokens, max_sequences : int
        Tokens of a step; sequences that run together.
    block, blocks : int
        Tokens of a block; blocks of the cache.
    prefix : int
        Tokens with which all prompts begin, and that remain in the cache; 0 without a cache of prefixes.
    stopped : str
        Why requests wait: for ``blocks``, ``sequences`` or ``tokens`` of a step.
    window, windowed : number
        Tokens of a window, and layers with it for each without; their blocks count relative to those of others.
    """

    rule: Rule
    max_tokens: int
    max_sequences: int
    block: int
    blocks: int
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    window: int = 0
    windowed: float = 0.0
    prefix: int = 0
    shared_blocks: int = 0
    preemptions: int = 0
    peak_blocks: int = 0
    stopped: str = "tokens"
    _used: int = 0

    @property
    def used_blocks(self) -> int:
        """Return the blocks in use."""
        return self._used

    @property
    def is_idle(self) -> bool:
        """Return True without work."""
        return not self.running and not self.waiting

    def add(self, sequence: Sequence) -> None:
        """Append a request to the queue.

        Raises
        ------
        InputError
            The cache can never hold it.
        """
        need = self._blocks_of(sequence.prompt + sequence.output)
        if need > self.blocks:
            raise InputError(
                f"request {sequence.number}: {sequence.prompt + sequence.output} tokens need {need} blocks, and the"
                f" cache has {self.blocks}; use more ranks, a larger share of memory, or shorter requests"
            )
        self.waiting.append(sequence)

    def plan_step(self) -> list[Portion]:
        """Return the portions of the next step, and allocate their blocks."""
        self.stopped = "tokens"
        if self.rule == "sglang":
            # Sequences with a transferred cache join the batch at once.
            admitted = self._admit([], self.max_tokens)
            prompts = [portion for portion in admitted if not portion.decodes]
            return prompts or self._continue_running(self.max_tokens)[0]
        if self.rule == "static" and self.running:
            return self._continue_running(self.max_tokens)[0]
        portions, left = self._continue_running(self.max_tokens)
        return self._admit(portions, left)

    def extend(self, portions: list[Portion], steps: int) -> int:
        """Allocate the cache of several steps of decoding sequences; return the number that fits, at least one."""
        sequences = [portion.sequence for portion in portions]

        def need(count: int) -> int:
            return sum(
                self._missing_blocks(item, item.computed + count)
                for item in sequences
            )

        while steps > 1 and self._used + need(steps) > self.blocks:
            steps //= 2
        for item in sequences:
            self._allocate(item, item.computed + steps)
        return steps

    def finish_steps(
        self, portions: Iterable[Portion], ends: range
    ) -> list[Sequence]:
        """Add tokens to the sequences of steps with these ends [ps]; return the complete ones.

        Several steps are of decoding sequences only.
        """
        ended = []
        for sequence, tokens in portions:
            if tokens == sequence.missing:
                sequence.generated += len(ends)
                sequence.token_ps.extend(ends)
                tokens += len(ends) - 1
            sequence.computed += tokens
            self._share_prefix(sequence)
            if sequence.is_done:
                self.release(sequence)
                ended.append(sequence)
        return ended

    def _share_prefix(self, sequence: Sequence) -> None:
        """Leave the blocks of a computed prefix to all, the first time."""
        blocks = self.prefix // self.block
        computed = min(sequence.prompt, sequence.computed)
        if not self.shared_blocks and 0 < blocks * self.block <= computed:
            self.shared_blocks = sequence.shared = blocks
            sequence.blocks -= blocks

    def _read_prefix(self, sequence: Sequence) -> None:
        """Begin behind the prefix if it is in the cache; the last token is computed."""
        limit = (sequence.length - 1) // self.block
        if sequence.computed == 0:
            sequence.shared = min(self.shared_blocks, limit)
            sequence.computed = sequence.shared * self.block

    def release(self, sequence: Sequence) -> None:
        """Remove a sequence and free its blocks."""
        self.running.remove(sequence)
        self._used -= sequence.blocks
        sequence.blocks = sequence.shared = 0

    def _blocks_of(self, tokens: int) -> int:
        """Return the blocks of some tokens of a sequence; those in windows stop growing."""
        last = min(tokens, self.window)
        return -(-tokens // self.block) + ceil(self.windowed * last / self.block)

    def _missing_blocks(self, sequence: Sequence, tokens: int) -> int:
        """Return the blocks that a sequence needs in addition for some tokens."""
        have = sequence.blocks + sequence.shared
        return max(0, self._blocks_of(tokens) - have)

    def _continue_running(self, budget: int) -> tuple[list[Portion], int]:
        """Return the portions of running sequences, and the tokens that are left; 0 after a preemption.

        The last running sequence is preempted when blocks run out.
        """
        portions: list[Portion] = []
        at, before = 0, self.preemptions
        while at < len(self.running) and budget:
            sequence = self.running[at]
            tokens = min(sequence.missing, budget)
            if not self._allocate(sequence, sequence.computed + tokens):
                self._preempt(self.running[-1])
                continue
            portions.append(Portion(sequence, tokens))
            budget -= tokens
            at += 1
        return portions, budget if self.preemptions == before else 0

    def _preempt(self, sequence: Sequence) -> None:
        self.release(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.stopped = "blocks"
        self.waiting.appendleft(sequence)

    def _admit(self, portions: list[Portion], budget: int) -> list[Portion]:
        """Add waiting sequences to a step while tokens, sequences and blocks last."""
        while self.waiting and budget:
            sequence = self.waiting[0]
            self._read_prefix(sequence)
            tokens = min(sequence.missing, budget)
            if len(self.running) >= self.max_sequences:
                self.stopped = "sequences"
                break
            if not self._can_admit(sequence, tokens):
                self.stopped = "blocks"
                break
            self.waiting.popleft()
            self.running.append(sequence)
            self._allocate(sequence, sequence.computed + tokens)
            portions.append(Portion(sequence, tokens))
            budget -= tokens
        return portions

    def _can_admit(self, sequence: Sequence, tokens: int) -> bool:
        if self.rule != "trtllm":
            need = self._missing_blocks(sequence, sequence.computed + tokens)
            return self._used + need <= self.blocks
        reserved = sum(
            self._blocks_of(other.prompt + other.output) - other.shared
            for other in (*self.running, sequence)
        )
        return reserved + self.shared_blocks <= self.blocks

    def _allocate(self, sequence: Sequence, tokens: int) -> bool:
        """Allocate the blocks of some tokens to a sequence; False without enough."""
        need = self._missing_blocks(sequence, tokens)
        if self._used + need > self.blocks:
            return False
        self._used += need
        sequence.blocks += need
        self.peak_blocks = max(self.peak_blocks, self._used)
        return True
