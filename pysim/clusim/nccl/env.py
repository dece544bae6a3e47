"""NCCL's environment variables, in NCCL's syntax.

`Settings` has the values of the variables of one run. `clusim.nccl.variables` lists the treatment of each: obeyed,
accepted without effect (with a note in the result) or refused. Unknown names are an error that contains the nearest
known name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, replace
from enum import Enum
from typing import Annotated, Any, TypeVar, get_type_hints

from clusim.base.errors import InputError, UnitError
from clusim.base.records import dataclass
from clusim.base.terms.operations import (
    ALGORITHMS,
    COLLECTIVE_OF,
    COLLECTIVES,
    PROTOCOLS,
    Algorithm,
    Collective,
    Protocol,
    find_operation,
)
from clusim.base.units import parse_size
from clusim.hardware.nic import plugin_release
from clusim.nccl.constants import Path, Version, plugin_of_time, since
from clusim.nccl.graph import GraphFile
from clusim.nccl.rccl import Rccl
from clusim.nccl.tunerfile import TunerRules, tuner_rules
from clusim.nccl.variables import VARIABLES
from clusim.topology.model import MOST_QUEUES

Name = TypeVar("Name", bound=Enum)


@dataclass(frozen=True, slots=True)
class Allowed:
    """Algorithms or protocols that ``NCCL_ALGO`` or ``NCCL_PROTO`` allows, per collective.

    Attributes
    ----------
    text : str
        The value of the variable.
    allowed : dict
        Collective -> names that may be used; a collective that is missing is as without the variable.
    """

    text: str
    allowed: Mapping[Collective, frozenset[Any]]

    def permits(self, collective: Collective, name: Enum) -> bool | None:
        """Return True if `name` may be used, or None if the variable does not decide."""
        names = self.allowed.get(collective)
        return None if names is None else name in names


def _fail(name: str, value: str, problem: str) -> InputError:
    return InputError(f"{name}={value}: {problem}")


def _integer_reader(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        try:
            number = int(value, 0)
        except ValueError:
            raise _fail(
                name, value, f"not an integer; use {low} to {high}"
            ) from None
        if not low <= number <= high:
            raise _fail(name, value, f"out of range; use {low} to {high}")
        return number

    return read


def _threads(highest: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        number = _integer_reader(64 if highest == 512 else 160, highest)(name, value)
        if number % 32:
            raise _fail(name, value, "not a multiple of 32, the size of a warp")
        return number

    return read


def _flag(name: str, value: str) -> bool:
    return _integer_reader(-2, 2)(name, value) not in (0, -2)


def _one(name: str, value: str) -> bool:
    """Return True for 1, the only value by which NCCL disables a transport."""
    return _integer_reader(-2, 2)(name, value) == 1


def _is_enabled(name: str, value: str) -> bool:
    """Return True unless a value is 0; negative values select NCCL's default, which is enabled."""
    return _integer_reader(-2, 2)(name, value) != 0


def _policy(name: str, value: str) -> str:
    """Return a CTA policy; the efficiency of registered buffers is not simulated."""
    policy = value.strip().upper()
    if policy not in ("0", "DEFAULT", "ZERO"):
        raise _fail(
            name, value, "not simulated; give DEFAULT, or ZERO for copy engines"
        )
    return "" if policy in ("0", "DEFAULT") else policy


def _reads(name: str, value: str) -> bool | None:
    number = _integer_reader(-2, 2)(name, value)
    return None if number < 0 else number != 0


def _size(name: str, value: str) -> int:
    try:
        number = parse_size(value, binary_suffix=True)
    except UnitError as error:
        raise _fail(name, value, str(error)) from None
    if not 4096 <= number <= 1 << 30:
        raise _fail(name, value, "out of range; use 4096 to 1 GiB")
    return number


ALL_DEVICES = 1 << 10
"""Count of network devices of a GPU that means no limit."""

_LEVELS = {"LOC": 0, "NVL": 1, "PIX": 1, "PXB": 2, "PXN": 2, "PHB": 3, "SYS": 4}
_BY_NUMBER = (Path.LOC, Path.PIX, Path.PXB, Path.PHB, Path.SYS)


def _level(name: str, value: str) -> Path:
    word = value.upper()
    if word in Path.__members__ and word not in ("NET", "DIS"):
        return Path[word]
    if word.isdecimal():
        return _BY_NUMBER[min(int(word), len(_BY_NUMBER) - 1)]
    raise _fail(name, value, f"not a distance; use one of {', '.join(_LEVELS)}")


def _devices_policy(name: str, value: str) -> int:
    word, _, number = value.upper().partition(":")
    if value.upper() in ("AUTO", "ALL"):
        return 0 if word == "AUTO" else ALL_DEVICES
    if word == "MAX" and number.isdecimal() and 1 <= int(number) < ALL_DEVICES:
        return int(number)
    raise _fail(name, value, "use AUTO, ALL or MAX:N")


def _thresholds(name: str, value: str) -> tuple[int, ...]:
    words = value.split()
    try:
        numbers = tuple(int(word) for word in words)
    except ValueError:
        numbers = ()
    if not 1 <= len(numbers) <= 6:
        raise _fail(
            name,
            value,
            "use up to six numbers: LL, LL128, Simple of the tree, then ring",
        )
    return numbers


def _list(names: tuple[Name, ...], noun: str) -> Callable[[str, str], Allowed]:
    by_name: dict[str, Name] = {str(name.value).lower(): name for name in names}

    def one(variable: str, value: str, text: str) -> frozenset[Name]:
        inverted = text.startswith("^")
        chosen: set[Name] = set()
        for word in text.removeprefix("^").split(","):
            name = by_name.get(word.strip().lower())
            if name is None:
                raise _fail(
                    variable,
                    value,
                    f"{word.strip()!r} is no {noun}; give {', '.join(by_name)}",
                )
            chosen.add(name)
        return frozenset(names) - chosen if inverted else frozenset(chosen)

    def read(variable: str, value: str) -> Allowed:
        if not value.strip():
            raise _fail(
                variable, value, f"empty; use a list of {', '.join(by_name)}"
            )
        allowed: dict[Collective, frozenset[Name]] = {}
        for part in value.strip().rstrip(";").split(";"):
            where, colon, text = part.partition(":")
            if not colon:
                for collective in COLLECTIVES:
                    allowed[collective] = one(variable, value, where.strip())
                continue
            operation = find_operation(where)
            if operation is None or operation.name not in COLLECTIVE_OF:
                listing = ", ".join(
                    str(collective).lower() for collective in COLLECTIVES
                )
                raise _fail(
                    variable,
                    value,
                    f"{where.strip()!r} is no collective; give {listing}",
                )
            allowed[COLLECTIVE_OF[operation.name]] = one(
                variable, value, text.strip()
            )
        return Allowed(value, allowed)

    return read


def _text(name: str, value: str) -> str:
    return value


def _graphs(name: str, value: str) -> GraphFile:
    from clusim.nccl.graphfile import graph_file

    return graph_file(name, value)


_Channels = Annotated[int | None, _integer_reader(1, 128)]
_Size = Annotated[int | None, _size]
_Level = Annotated[Path | None, _level]


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the variables; None is NCCL's default. Sizes in bytes, names without ``NCCL_``.

    The annotation of a variable has the reader of its values. Not variables are `symmetric`, True if jobs
    register their buffers as windows of all ranks; `plugin`, the release of the network plugin, where empty follows
    from NCCL's release; `library`, RCCL in place of NCCL, which follows from the GPUs. `names` are the given variables
    that are obeyed, `unread` the variables that the release does not read, and `by_plugin` those that a network
    plugin set because the user did not.
    """

    algo: Annotated[Allowed | None, _list(ALGORITHMS, "algorithm")] = None
    proto: Annotated[Allowed | None, _list(PROTOCOLS, "protocol")] = None
    min_nchannels: _Channels = None
    max_nchannels: _Channels = None
    min_ctas: _Channels = None
    max_ctas: _Channels = None
    nthreads: Annotated[int | None, _threads(512)] = None
    ll128_nthreads: Annotated[int | None, _threads(640)] = None
    buffsize: _Size = None
    ll_buffsize: _Size = None
    ll128_buffsize: _Size = None
    thread_thresholds: Annotated[tuple[int, ...] | None, _thresholds] = None
    p2p_level: _Level = None
    p2p_disable: Annotated[bool, _one] = False
    nvb_disable: Annotated[bool, _flag] = False
    shm_disable: Annotated[bool, _one] = False
    p2p_nvl_chunksize: _Size = None
    p2p_pci_chunksize: _Size = None
    p2p_net_chunksize: _Size = None
    net_gdr_level: _Level = None
    net_gdr_read: Annotated[bool | None, _reads] = None
    net_overhead_ns: Annotated[int | None, _integer_reader(0, 1_000_000)] = None
    pxn_disable: Annotated[bool, _flag] = False
    cross_nic: Annotated[int, _integer_reader(0, 2)] = 2
    netdevs_policy: Annotated[int | None, _devices_policy] = None
    ib_hca: Annotated[str, _text] = ""
    ib_qps_per_connection: Annotated[int, _integer_reader(1, MOST_QUEUES)] = 1
    ib_split_data_on_qps: Annotated[bool | None, _flag] = None
    ib_disable: Annotated[bool, _flag] = False
    net: Annotated[str, _text] = ""
    mnnvl_enable: Annotated[int, _integer_reader(0, 2)] = 2
    pat_enable: Annotated[int, _integer_reader(0, 2)] = 2
    msccl_enable: Annotated[bool, _is_enabled] = True
    win_enable: Annotated[bool, _is_enabled] = True
    cumem_enable: Annotated[bool, _is_enabled] = True
    nvls_enable: Annotated[bool, _is_enabled] = True
    nvls_nchannels: _Channels = None
    nvls_chunksize: _Size = None
    nvlstree_max_chunksize: _Size = None
    collnet_enable: Annotated[bool, _flag] = False
    collnet_node_threshold: Annotated[int, _integer_reader(1, 1_000_000)] = 2
    sym_kernel: Annotated[str, _text] = ""
    sym_ctas: _Channels = None
    cta_policy: Annotated[str, _policy] = ""
    sym_tma_enable: Annotated[bool | None, _flag] = None
    tuner_config_file: Annotated[TunerRules | None, tuner_rules] = None
    graph_file: Annotated[GraphFile | None, _graphs] = None
    symmetric: bool = False
    plugin: tuple[int, ...] = ()
    library: Rccl | None = field(default=None, compare=False)
    names: tuple[str, ...] = field(default=(), compare=False)
    unread: tuple[str, ...] = field(default=(), compare=False)
    without_effect: tuple[str, ...] = field(default=(), compare=False)
    by_plugin: tuple[str, ...] = field(default=(), compare=False)

    @property
    def changed_names(self) -> tuple[str, ...]:
        """Return the names of settings that differ from NCCL's default."""
        none = Settings()
        names = (item.name for item in fields(self) if item.compare)
        return tuple(
            name for name in names if getattr(self, name) != getattr(none, name)
        )

    def with_env(self, env: Mapping[str, str]) -> Settings:
        """Return these settings with the variables of `env` on top."""
        result = _read(env, list(self.without_effect))
        return replace(
            self, **result, names=(*self.names, *(n for n in env if n in _READERS))
        )

    def of_release(self, version: Version) -> Settings:
        """Return these settings without the variables that a release does not read, with its defaults.

        The defaults are the splitting of messages and the release of the network plugin of its time.
        """
        result = self._read_by(version)
        if not result.plugin:
            result = replace(result, plugin=plugin_of_time(version))
        if (
            result.ib_qps_per_connection == 1
            or result.ib_split_data_on_qps is not None
        ):
            return result
        return replace(
            result, ib_split_data_on_qps=not since(version, "queue pairs in turn")
        )

    def _read_by(self, version: Version) -> Settings:
        unread = [
            name for name in self.names if not VARIABLES[name].read_by(version)
        ]
        if not unread:
            return self
        none = Settings()
        reset = {
            key: getattr(none, key) for key in (_READERS[name][0] for name in unread)
        }
        names = tuple(name for name in self.names if name not in unread)
        ignored = [name for name in unread if name not in _CHANNEL_LIMITS]
        return replace(self, **reset, names=names, unread=(*self.unread, *ignored))


def _prefix(name: str) -> str:
    return "RCCL" if name.startswith("msccl") else "NCCL"


_READERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    f"{_prefix(name)}_{name.removesuffix('_ns').upper()}": (
        name,
        annotation.__metadata__[0],
    )
    for name, annotation in get_type_hints(Settings, include_extras=True).items()
    if hasattr(annotation, "__metadata__")
}
"""Variables that are obeyed -> their field of `Settings`, and the reader of their values."""

WITHOUT_EFFECT = frozenset(
    n for n, known in VARIABLES.items() if known.effect == "no effect"
)
"""Variables of NCCL that are accepted and have no effect here; results contain a note if one was given."""

_OLD_NAMES = {
    "NCCL_MIN_NRINGS": "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NRINGS": "NCCL_MAX_NCHANNELS",
}

_CHANNEL_LIMITS = (
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
)
"""Limits that together set the channels of every algorithm: the first two bind rings and trees, CTAs also NVLS."""

SYMMETRIC = "symmetric buffers"
"""Name of the buffer registration setting; not an NCCL variable, so users cannot give it as one."""

PREFIXES = ("NCCL_", "RCCL_")
"""Beginnings of the names of variables."""

PLUGIN = "network plugin"
"""Name of the release of the network plugin among the variables."""


def parse_assignments(words: Iterable[str]) -> dict[str, str]:
    """Return ``NAME=VALUE`` words as a mapping; a name without ``NCCL_`` or ``RCCL_`` gets the former."""
    env: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().upper()
        if not equals or not name:
            raise InputError(
                f"environment {word!r}: write NAME=VALUE, for example NCCL_ALGO=Ring"
            )
        env[name if name.startswith(PREFIXES) else f"NCCL_{name}"] = value.strip()
    return env


def force_variables(
    algorithm: str = "", protocol: str = "", channels: int | None = None
) -> tuple[tuple[str, str], ...]:
    """Return the variables that force NCCL to use the given algorithm and protocol; CollNet is off by default."""
    number = str(channels) if channels else ""
    collnet = "1" if algorithm.lower().startswith("collnet") else ""
    result = (
        ("NCCL_ALGO", algorithm),
        ("NCCL_PROTO", protocol),
        ("NCCL_COLLNET_ENABLE", collnet),
        *((name, number) for name in _CHANNEL_LIMITS),
    )
    return tuple((name, value) for name, value in result if value)


def windows(symmetric: bool) -> tuple[tuple[str, str], ...]:
    """Return the entry listed with the variables if buffers are registered as symmetric windows."""
    return ((SYMMETRIC, "1"),) if symmetric else ()


def parse_env(env: Mapping[str, str]) -> Settings:
    """Return the settings of the variables of `env` that start with ``NCCL_``."""
    return Settings().with_env(env)


def _read(env: Mapping[str, str], without_effect: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for variable, value in env.items():
        name = _OLD_NAMES.get(variable, variable)
        if name == SYMMETRIC:
            result["symmetric"] = True
        if name == PLUGIN:
            result["plugin"] = plugin_release(value)
        if not name.startswith(PREFIXES):
            continue
        if _is_obeyed(name, value):
            key, reader = _READERS[name]
            result[key] = reader(name, value)
        elif name in WITHOUT_EFFECT:
            without_effect.append(name)
    low, high = result.get("min_nchannels"), result.get("max_nchannels")
    if low and high and low > high:
        raise InputError(
            f"NCCL_MIN_NCHANNELS={low} is more than NCCL_MAX_NCHANNELS={high}"
        )
    result["without_effect"] = tuple(without_effect)
    return result


def _is_obeyed(name: str, value: str) -> bool:
    """Return True if a variable is obeyed; raise `InputError` if it is unknown, or refused with this value."""
    variable = VARIABLES.get(name)
    if variable is None:
        from difflib import get_close_matches

        matches = get_close_matches(name, VARIABLES, 1)
        raise InputError(
            f"{name}: unknown NCCL variable"
            + (f"; did you mean {matches[0]}?" if matches else "")
        )
    if variable.effect == "refused" and value not in variable.harmless:
        default = (
            f"; its default, {variable.harmless[0]}, is accepted"
            if variable.harmless
            else ""
        )
        raise InputError(
            f"{name}={value}: not simulated: {variable.reason}{default}"
        )
    return variable.effect == "obeyed"


def allows(
    settings: Settings, collective: Collective, name: Algorithm | Protocol
) -> bool | None:
    """Return True or False if ``NCCL_ALGO`` or ``NCCL_PROTO`` decides on a name, otherwise None."""
    choice = settings.algo if isinstance(name, Algorithm) else settings.proto
    return None if choice is None else choice.permits(collective, name)
