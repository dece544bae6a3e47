"""What is asked for: one collective on some machines."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.nccl.calls.choice import Wanted
from clusim.run.session import EngineName
from clusim.run.setup import Setup

__all__ = ["Request"]


@dataclass(frozen=True)
class Request:
    """One collective; can be compared, hashed and sent to other processes.

    Attributes
    ----------
    operation : str
        Name in `clusim.collectives.ALGORITHMS`.
    size_bytes : int
        Size as nccl-tests has it: the larger of what a rank sends and receives [bytes].
    algorithm : str
        A name in `clusim.collectives.ALGORITHMS`; ``nccl`` is what NCCL would run; the name of a file is a plan of
        MSCCL (``.xml``) or MSCCL++ (``.json``); empty is ``nccl`` where NCCL runs, else the operation's first.
    wanted : Wanted or None
        What NCCL is made to use.
    protocol : str
        ``simple``, ``ll`` or ``ll128``; empty is the algorithm's own. NCCL is told by ``NCCL_PROTO``.
    channels : int or None
        None is the fabric's. NCCL is told by ``NCCL_MIN_NCHANNELS`` and ``NCCL_MAX_NCHANNELS``.
    dtype, redop : str
        Type of the elements and reduction.
    root : int or None
        Rank of the fabric, for operations that have a root; None is the first one.
    granularity : str or int
        ``auto``, ``packet`` or a size of bursts [bytes]; see `clusim.lowering.grain`.
    seed : int
        Seed of whatever is random in the run.
    verify : bool
        Carry real numbers and compare the outcome with the definition.
    engine : str
        ``c`` or ``reference``.
    """

    setup: Setup
    operation: str
    size_bytes: int
    algorithm: str = ""
    wanted: Wanted | None = None
    protocol: str = ""
    channels: int | None = None
    dtype: str = "float32"
    redop: str = "sum"
    root: int | None = None
    granularity: str | int = "auto"
    seed: int = 0
    verify: bool = False
    engine: EngineName = "c"
