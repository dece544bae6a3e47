"""The form of a run's numbers in JSON (`clusim.results.result.Result.to_json`)."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class EndedJson(TypedDict):
    """Progress of a run that was ended early.

    Attributes
    ----------
    complete : bool
        False: it was ended.
    ended_by : str
        What ended it.
    part_done : float
        Share of the work that was done, an estimate from 0 to 1.
    least_time_ps : int
        No run of this takes less [ps].
    expected_time_ps : int or None
        Of the whole, if the rest goes on as before [ps]; None where hardly anything was done.
    simulated_ps_per_s : int or None
        Time simulated per second on the wall [ps/s].
    """

    complete: NotRequired[bool]
    ended_by: NotRequired[str]
    part_done: NotRequired[float]
    least_time_ps: NotRequired[int]
    expected_time_ps: NotRequired[int | None]
    simulated_ps_per_s: NotRequired[int | None]


class CallJson(TypedDict):
    """Keys of a run that is one collective.

    Attributes
    ----------
    algbw_GBps, busbw_GBps : float or None
        As nccl-tests defines them [10^9 bytes/s]; None of a run that was ended.
    collective, algorithm, protocol, dtype : str
        What ran, in clusim's spelling.
    size_bytes : int
        As nccl-tests counts it [bytes].
    ranks, channels : int
        How many took part.
    includes : str
        What `time_ps` includes.
    launched_us : float or None
        With launch, as nccl-tests reports it [us]; None where that is not known.
    model_time_us : float or None
        NCCL's own estimate [us]; None where NCCL chose nothing.
    """

    algbw_GBps: NotRequired[float | None]
    busbw_GBps: NotRequired[float | None]
    collective: NotRequired[str]
    algorithm: NotRequired[str]
    protocol: NotRequired[str]
    dtype: NotRequired[str]
    size_bytes: NotRequired[int]
    ranks: NotRequired[int]
    channels: NotRequired[int]
    includes: NotRequired[str]
    launched_us: NotRequired[float | None]
    model_time_us: NotRequired[float | None]


class MovedJson(TypedDict):
    """Traffic of the engine, and its speed.

    Attributes
    ----------
    packets, packet_hops, grants : int or None
        What the engine moved; None of a time that was found from other runs.
    packet_hops_per_s, grants_per_s : int or None
        Per second on the wall; None of a run that was ended.
    wall_s : float or None
        Time on the wall that the engine took [s]; None of a run that was ended.
    fingerprint : str or None
        Of everything that happened, 16 hexadecimal digits; None of a run that was ended or found from others.
    followed : str or None
        From which other runs the time was found; None if it was simulated whole.
    """

    packets: int | None
    packet_hops: int | None
    grants: int | None
    packet_hops_per_s: int | None
    grants_per_s: int | None
    wall_s: float | None
    fingerprint: str | None
    followed: str | None


class ResultJson(EndedJson, CallJson, MovedJson):
    """A run.

    Attributes
    ----------
    time_ps : int
        From its start to the end of what was simulated [ps].
    verified : bool or None
        Whether the data came out right; None if none were carried.
    fabric, engine : str
        What ran it.
    granularity : str
        How finely it was asked for: a word or bytes.
    burst_packets : int
        Packets that one of a burst stands for; 1 is exact.
    granularity_note : str
        How finely it was simulated.
    error_bound : float or None
        By how much that may move the time, as a share of it: 0 is exact; else a limit that held for random machines and
        collectives; of a time that was followed from other runs, against those runs. None where none is known.
    seed : int
        Of what is random.
    faults, notes : list of str
        What was broken, and what must be said of the plan.
    version : str
        Of clusim.
    """

    time_ps: int
    verified: bool | None
    fabric: str
    engine: str
    granularity: str
    burst_packets: int
    granularity_note: str
    error_bound: float | None
    seed: int
    faults: list[str]
    notes: list[str]
    version: str
