"""Graphs of a file, ``NCCL_GRAPH_FILE``, in place of the search, and their text (``NCCL_GRAPH_DUMP_FILE``).

**Hardware** NCCL writes the channels that its search found as XML: per graph (`id` 0 is the ring, 1 the tree, 2 the
CollNet chain, 3 NVLS, 4 CollNet direct) its pattern, rates and path types, per channel the NIC that it enters by, its
GPUs in order, and the NIC that it leaves by. With a file, ``ncclTopoCompute`` (src/graph/search.cc) takes the graph
with the id, and searches only if the file has none with channels, or if it crosses NICs and ``NCCL_CROSS_NIC`` is 0.
A GPU is its `rank`, otherwise its `dev`.
**Model** The same; ranks and devices count the GPUs and NICs of a node, and every node reads the same file.
**Not modelled** Files that are consistent only with ranks of other nodes, which break NCCL's rings; RCCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path as FilePath

from clusim.base.limits import named_file, number, printable, read_text
from clusim.base.xmltext import XmlElement, parse_root
from clusim.nccl.constants import Path, Pattern
from clusim.nccl.graph import IDS, NVLS_ID, Graph, GraphChannel, GraphFile

_MAX_BYTES = 16 << 20
_MAX_CHANNELS = 128
_VERSION = 1

_PATHS = {name: path for name, path in Path.__members__.items() if path < Path.NET}


def graph_file(variable: str, path: str) -> GraphFile:
    """Return the graphs of the file that a variable names.

    Raises
    ------
    InputError
        The file cannot be read, or is not a graph file.
    """
    return _read(*named_file(variable, path))


@lru_cache(16)
def _read(path: str, _changed_ns: int) -> GraphFile:
    text = read_text(
        FilePath(path), _MAX_BYTES, advice="is it a graph of NCCL?", where=path
    )
    root = parse_root(text, path, "graphs", "NCCL_GRAPH_FILE")
    if root.integer("version") != _VERSION:
        raise root.fail(
            f"version {printable(root.get('version')) or 'missing'}; NCCL reads version {_VERSION}"
        )
    return GraphFile(path, tuple(_graph(element) for element in root.all("graph")))


def _graph(element: XmlElement) -> tuple[int, Graph, tuple[GraphChannel, ...]]:
    """Return id, values and channels of a ``<graph>``."""
    channels = tuple(_channel(child) for child in element.all("channel"))
    count = _read_bounded(element, "nchannels", 0, _MAX_CHANNELS)
    if count != len(channels):
        raise element.fail(
            f"nchannels={count}, but {len(channels)} <channel>; give as many"
        )
    graph = Graph(
        Pattern(_read_bounded(element, "pattern", 1, len(Pattern))),
        count,
        _rate(element, "speedintra"),
        _rate(element, "speedinter"),
        _path(element, "typeintra"),
        _path(element, "typeinter"),
        bool(_read_bounded(element, "samechannels", 0, 1)),
        _read_bounded(element, "crossnic", 0, 2),
        _rate(element, "latencyinter", missing=0.0),
    )
    return _read_bounded(element, "id", 0, len(IDS) - 1), graph, channels


def _channel(element: XmlElement) -> GraphChannel:
    gpus = [_device(child, ("rank", "dev")) for child in element.all("gpu")]
    nets = [_device(child, ("dev",)) for child in element.all("net")]
    return GraphChannel(tuple(gpus), tuple(nets), element.line)


def _device(element: XmlElement, names: Sequence[str]) -> int:
    """Return the number of a device by the first attribute that is there; `dev` is hexadecimal."""
    for name in names:
        value = element.bits(name) if name == "dev" else element.integer(name)
        if value is not None and value >= 0:
            return value
    raise element.fail(
        f"<{element.tag}> without {' or '.join(names)}; give the number of the device"
    )


def _read_bounded(element: XmlElement, name: str, low: int, high: int) -> int:
    value = element.integer(name)
    if value is None or not low <= value <= high:
        text = printable(element.get(name)) or "missing"
        raise element.fail(f"{name} of <graph>: {text}; must be {low} to {high}")
    return value


def _rate(element: XmlElement, name: str, missing: float | None = None) -> float:
    value = number(element.get(name)) if element.get(name) else missing
    if value is None or value < 0:
        text = printable(element.get(name)) or "missing"
        raise element.fail(f"{name} of <graph>: {text}; must be a number, 0 or more")
    return value


def _path(element: XmlElement, name: str) -> Path:
    path = _PATHS.get(element.get(name))
    if path is None:
        text = printable(element.get(name)) or "missing"
        raise element.fail(
            f"{name} of <graph>: {text}; must be one of {', '.join(_PATHS)}"
        )
    return path


def write_graphs(graphs: Sequence[Graph]) -> str:
    """Return the text of a node's graphs, as `IDS` numbers them; graphs without channels as well, like NCCL."""
    elements = [_element(number, graph) for number, graph in enumerate(graphs)]
    root = XmlElement.of("graphs", *elements, version=_VERSION)
    return "\n".join([*root.lines(), ""])


def _element(number: int, graph: Graph) -> XmlElement:
    channels = []
    for index, order in enumerate(graph.orders[: graph.num_channels]):
        gpus = order[:1] if number == NVLS_ID else order
        nets = graph.adapters[index] if graph.adapters else ()
        ends = [XmlElement.of("net", dev=f"{net:#x}") for net in nets]
        inside = [XmlElement.of("gpu", dev=f"{gpu:#x}", rank=gpu) for gpu in gpus]
        channels.append(XmlElement.of("channel", *ends[:1], *inside, *ends[1:]))
    return XmlElement.of(
        "graph",
        *channels,
        id=number,
        pattern=int(graph.pattern),
        crossnic=graph.cross_nic,
        nchannels=graph.num_channels,
        speedintra=repr(graph.intra_GBps),
        speedinter=repr(graph.inter_GBps),
        latencyinter=repr(graph.latency_us),
        typeintra=graph.type_intra.name,
        typeinter=graph.type_inter.name,
        samechannels=int(graph.same_channels),
    )
