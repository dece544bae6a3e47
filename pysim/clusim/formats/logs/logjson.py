"""The form of what a log says in JSON (`clusim.formats.logs.summary`)."""

from __future__ import annotations

from typing_extensions import TypedDict


class HostJson(TypedDict):
    """A host: names of its GPUs and adapters, as far as they were printed."""

    gpus: list[str]
    nics: dict[str, str]


class LoggedRankJson(TypedDict):
    """A rank; empty texts are what the log does not say.

    Attributes
    ----------
    logged : bool
        Whether it wrote lines itself.
    """

    rank: int
    host: str
    bus_id: str
    gpu: str
    logged: bool


class NvlsJson(TypedDict):
    """How many ranks say that NVLS is available, is not, and has its trees connected; how many heads, -1 if unknown."""

    available: int
    not_available: int
    heads: int
    connected: int


class PatternJson(TypedDict):
    """A result of NCCL's graph search, as it printed it.

    Attributes
    ----------
    bw_intra, bw_inter : float
        Of a channel, inside a machine and between them [10^9 bytes/s].
    orders : list
        The ranks of each channel.
    """

    pattern: int
    channels: int
    bw_intra: float
    bw_inter: float
    type_intra: str
    type_inter: str
    cross_nic: int
    same_channels: int
    orders: list[list[str]]


class LoggedCommJson(TypedDict):
    """A communicator.

    Attributes
    ----------
    run : int
        Which start of the job it is of.
    parent, color : int
        What it was split from; -1 if it was not.
    channels : dict
        How many of each sort.
    ring_channels : int
        -1 if that is not known.
    rings, trees : dict
        By channel: ranks in order; of every rank the one above it, -1 for none, and those below.
    connections, transports : int, dict
        Lines about connections, all and by transport.
    system : list
        The machine as NCCL printed it: depth, link, bandwidth [10^9 bytes/s], name and a note of each line.
    costs : dict
        By collective, algorithm and protocol: time [us] and bandwidth [10^9 bytes/s].
    init_s : float
        What the slowest rank's start took [s]; 0 if it was not printed.
    ended : dict
        How ranks ended it, and how many.
    assumed : list of str
        What was concluded and not read.
    """

    number: int
    run: int
    n_ranks: int
    ranks_logged: int
    comm_id: str
    parent: int
    color: int
    hosts: list[str]
    ranks: list[LoggedRankJson]
    channels: dict[str, int]
    ring_channels: int
    rings: dict[str, list[int]]
    trees: dict[str, dict[str, list[int | list[int]]]]
    nvls: NvlsJson
    connections: int
    transports: dict[str, int]
    search: list[PatternJson]
    system: list[list[int | float | str]]
    costs: dict[str, list[float]]
    init_s: float
    network: str
    ended: dict[str, int]
    assumed: list[str]


class CallGroupJson(TypedDict):
    """Operations that are alike.

    Attributes
    ----------
    size : int
        As nccl-tests counts it [bytes].
    channels : list of int
        The first and the last, if the tuner's choice was printed.
    model_us : float or None
        NCCL's own estimate [us], if it was printed.
    """

    collective: str
    n_ranks: int
    size: int
    type: str
    op: str
    count: int
    algorithm: str
    protocol: str
    channels: list[int]
    model_us: float | None


class CallsJson(TypedDict):
    """What was called.

    Attributes
    ----------
    lines : dict
        Lines of calls by collective.
    cut : int
        Lines that ended in the middle.
    operations : int
        Calls of all ranks together as one.
    """

    lines: dict[str, int]
    cut: int
    operations: int
    by_size: list[CallGroupJson]


_From = TypedDict("_From", {"from": str})


class CallsFromJson(CallsJson, _From):
    """What was called.

    Attributes
    ----------
    from : str
        ``calls``, ``tuning lines``, or empty for no calls.
    """


class TableRowJson(TypedDict):
    """A row of nccl-tests; None is what is no number.

    Attributes
    ----------
    size : int
        As it was printed [bytes].
    time, time_in_place : float or None
        Of an iteration [us].
    algbw, busbw, busbw_in_place : float or None
        As nccl-tests defines them [10^9 bytes/s].
    """

    size: int
    type: str
    op: str
    time: float | None
    algbw: float | None
    busbw: float | None
    time_in_place: float | None
    busbw_in_place: float | None


class TableRunJson(TypedDict):
    """A table of nccl-tests.

    Attributes
    ----------
    config : dict
        Numbers of its header.
    nccl_tests : str
        Release of nccl-tests, if it was printed.
    average_busbw : float or None
        As it was printed [10^9 bytes/s].
    wrong : int
        Wrong values, -1 if they were not counted.
    """

    collective: str
    n_ranks: int
    config: dict[str, int]
    nccl_tests: str
    average_busbw: float | None
    wrong: int
    rows: list[TableRowJson]
    failures: list[str]


class AnomalyJson(TypedDict):
    """Something odd, in words."""

    kind: str
    text: str


class LineKindJson(TypedDict):
    """Lines of a kind: how many, an example, and where the first is."""

    kind: str
    count: int
    example: str
    first: str


class LogJson(TypedDict):
    """What a log of NCCL, RCCL or nccl-tests says.

    Attributes
    ----------
    lines, bytes : int
        Of all files [lines, bytes].
    nccl_lines, other_lines : int
        Lines of the library, and of others.
    library : str
        ``NCCL`` or ``RCCL``; empty if that is not known.
    kernels : dict
        The commonest kernels and how often they were named.
    environment : dict
        Variables and the values they had.
    not_used, notes : list
        Kinds of lines of which nothing was used, and of which something must be said.
    """

    files: list[str]
    lines: int
    bytes: int
    nccl_lines: int
    library: str
    versions: list[str]
    hosts: dict[str, HostJson]
    communicators: list[LoggedCommJson]
    calls: CallsFromJson
    tuning_lines: int
    kernels: dict[str, int]
    measurements: list[TableRunJson]
    environment: dict[str, list[str]]
    anomalies: list[AnomalyJson]
    not_used: list[LineKindJson]
    notes: list[LineKindJson]
    other_lines: int
