"""Configuration of one collective call: NCCL's ``ncclCollConfig_t``, since 2.31.

**Hardware**: ``ncclAllReduceConfig`` and the other calls with a configuration restrict algorithms and CTAs of this call
only (``nccl.h`` of 2.31.2; ``src/config``, ``src/enqueue`` after 2.32.3). **Model**: NCCL's choice among the selected
algorithms, and its limits on channels; variables precede both. **Not modelled**: ``CTAPolicy``, ``cgaClusterSize``;
kernels of symmetric memory over nodes are never candidates. **Assumed**: a selection excludes copy engines, which have
no name.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.terms.operations import (
    ALGORITHMS,
    COLLECTIVE_OF,
    PROTOCOLS,
    Algorithm,
    Collective,
    Protocol,
)
from clusim.nccl.communicator import Communicator
from clusim.nccl.constants import since
from clusim.nccl.env import Settings
from clusim.nccl.symmetriccosts import KERNELS
from clusim.nccl.tuner import Selection

_SYMMETRIC = "SYMK_"
_RAILED = ("RailRing_LsaSTMC", "RailA2A_LsaLD", "RailA2A_LsaLDMC")
"""Kernels of symmetric memory over nodes, which are not modelled."""

_EVERY_PROTOCOL = (Algorithm.TREE, Algorithm.RING)
_MOST = 64


@dataclass(frozen=True, slots=True)
class CallConfig:
    """Algorithms and CTAs that one collective call may use; the defaults leave the choice to NCCL.

    Attributes
    ----------
    select : str
        NCCL's ``algSelection``: prefixes of names such as ``RING_LL128``, ``NVLS`` or ``SYMK_LL``, in any case; ``,``
        is or, ``+`` and, ``^`` not. Empty leaves the choice to NCCL.
    force : bool
        A selection that the call cannot satisfy is an error; otherwise it is ignored.
    min_ctas, max_ctas : int or None
        Limits on channels; the communicator's channels are an upper limit. A minimum above the maximum is ignored.
    nvls_ctas : int or None
        Limit on the channels of NVLS algorithms.

    Raises
    ------
    InputError
        An unknown name, a selection without algorithms, or a limit outside 1 to 64.
    """

    select: str = ""
    force: bool = True
    min_ctas: int | None = None
    max_ctas: int | None = None
    nvls_ctas: int | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("min_ctas", "max_ctas", "nvls_ctas"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= _MOST:
                raise InputError(
                    f"{name} of a call: {value} is outside 1 to {_MOST}"
                )
        _ = _parse_selection(self.select)

    def check(self, comm: Communicator, operation: str) -> None:
        """Raise `InputError` if the release or the operation lacks configurations."""
        if comm.settings.library is not None or not since(
            comm.version, "configured calls"
        ):
            raise InputError(
                f"{comm.library}: calls have no configuration of algorithms and CTAs; NCCL has it since 2.31"
            )
        if operation not in COLLECTIVE_OF:
            raise InputError(
                f"{operation}: sends and receives ignore a call's algorithms and CTAs; omit them"
            )

    def names(self, settings: Settings) -> frozenset[str] | None:
        """Return NCCL's names of the selected algorithms; None without a selection, or where variables decide."""
        if (
            not self.select.strip()
            or settings.algo is not None
            or settings.proto is not None
        ):
            return None
        return _parse_selection(self.select)

    def kernels(self, settings: Settings) -> frozenset[str] | None:
        """Return the short names of selected kernels for symmetric memory; None as of `names`."""
        names = self.names(settings)
        if names is None:
            return None
        return frozenset(
            n.removeprefix(_SYMMETRIC) for n in names if n.startswith(_SYMMETRIC)
        )

    def on(self, comm: Communicator) -> Communicator:
        """Return a communicator with the limits of this call on CTAs; variables precede them."""
        settings = comm.settings
        low, high = (
            settings.min_ctas or self.min_ctas,
            settings.max_ctas or self.max_ctas,
        )
        if low and high and low > high:
            low = None
        nvls = comm.nvls_channels
        if self.nvls_ctas and settings.nvls_nchannels is None:
            nvls = min(nvls, self.nvls_ctas)
        return replace(
            comm,
            nvls_channels=nvls,
            settings=replace(settings, min_ctas=low, max_ctas=high),
        )

    def choose(
        self, comm: Communicator, collective: Collective, num_bytes: int
    ) -> Selection:
        """Return NCCL's choice for `num_bytes`, as of `Communicator.select`.

        Raises
        ------
        InputError
            No selected algorithm can do the call, and `force` is set.
        """
        lanes = self.on(comm).lanes
        result = comm.select(collective, num_bytes, lanes)
        names = self.names(comm.settings)
        if names is None:
            return result
        allowed = {key for key in result.times_us if general_name(*key) in names}
        if allowed:
            return comm.select(collective, num_bytes, lanes, allowed)
        if self.force:
            possible = ", ".join(general_name(*key) for key in result.times_us)
            raise InputError(
                f"{collective.operation}: no algorithm of {self.select!r} can do the call; possible: {possible}"
            )
        return result


def general_name(algorithm: Algorithm, protocol: Protocol) -> str:
    """Return the name of an algorithm and protocol in a selection: ``NVLSTREE_SIMPLE``."""
    name = algorithm.name.replace("NVLS_", "NVLS")
    return f"{name}_{protocol.name}"


@cache
def _selectable_names() -> frozenset[str]:
    """Return the names of a selection."""
    pairs = (
        (algorithm, protocol)
        for algorithm in ALGORITHMS
        for protocol in PROTOCOLS
        if algorithm in _EVERY_PROTOCOL or protocol is Protocol.SIMPLE
    )
    kernels = (*(kernel.short for kernel in KERNELS), *_RAILED)
    return frozenset(
        (
            *(general_name(*pair) for pair in pairs),
            *(_SYMMETRIC + n for n in kernels),
        )
    )


@cache
def _parse_selection(text: str) -> frozenset[str]:
    """Return the names that a selection has; each name for an empty one."""
    names = _selectable_names()
    words = "".join(text.split())
    result: set[str] = set()
    for term in filter(None, words.split(",")):
        remaining = set(names)
        for factor in filter(None, term.split("+")):
            tag = factor.removeprefix("^").upper()
            matches = {
                name for name in names if tag and name.upper().startswith(tag)
            }
            if not matches:
                raise InputError(
                    f"selection {text!r}: {factor!r} is no algorithm; names: {', '.join(sorted(names))}"
                )
            remaining = (
                remaining - matches
                if factor.startswith("^")
                else remaining & matches
            )
        if not remaining or not term.strip("+"):
            raise InputError(f"selection {text!r}: {term!r} selects no algorithm")
        result |= remaining
    return frozenset(result) or names
