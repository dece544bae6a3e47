"""Data classes with methods that are generated late, against `dataclasses.dataclass`."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

from clusim.base import records

FROZEN = {"frozen": True, "slots": True}


def twins(options: dict[str, bool]) -> list[type[Any]]:
    """Return a class of each decorator with the same fields."""
    result = []
    for decorate in (dataclasses.dataclass, records.dataclass):

        class Item:
            """An item."""

            low: int
            high: float = 2.5
            names: list[str] = field(default_factory=list, hash=False)
            hidden: int = field(default=7, repr=False, compare=False)
            twice: int = field(init=False)
            of_all: ClassVar[int] = 3

            def __post_init__(self) -> None:
                object.__setattr__(self, "twice", 2 * self.low)

        result.append(decorate(**options)(Item))
    return result


OPTIONS: list[dict[str, bool]] = [
    {},
    FROZEN,
    {"slots": True},
    {"frozen": True},
    {"eq": False},
    {"repr": False, "slots": True},
    {**FROZEN, "kw_only": True},
]
USES: list[Callable[[type[Any]], object]] = [
    lambda cls: repr(cls(low=1)).replace(f"0x{id(cls):x}", "").partition(" object")[0],
    lambda cls: dataclasses.asdict(cls(low=1, names=["a"])),
    lambda cls: repr(dataclasses.replace(cls(low=1), low=4).twice),
    lambda cls: cls(low=1) == cls(low=1),
    lambda cls: cls(low=1, hidden=3) == cls(low=1, hidden=4),
    lambda cls: cls(low=1) == cls(low=2),
    lambda cls: cls(low=1).__eq__(object()),
    lambda cls: cls(low=1).names is cls(low=1).names,
    lambda cls: cls(1, 2, ["x"], 5).hidden,
    lambda cls: cls(),
    lambda cls: cls(low=1, other=2),
    lambda cls: hash(cls(low=1)) == hash(cls(low=1, names=["differ"])),
    lambda cls: setattr(cls(low=1), "low", 3),
    lambda cls: delattr(cls(low=1), "low"),
    lambda cls: copy.deepcopy(cls(low=1, names=["a"])).names,
    lambda cls: cls.__match_args__,
    lambda cls: [item.name for item in dataclasses.fields(cls)],
    lambda cls: cls.__hash__ is None,
]


def outcome(use: Callable[[type[Any]], object], cls: type[Any]) -> tuple[str, object]:
    try:
        return "value", use(cls)
    except Exception as error:
        same_words = isinstance(error, FrozenInstanceError)
        return type(error).__name__, str(error) if same_words else None


@pytest.mark.parametrize("options", OPTIONS)
def test_a_record_behaves_as_a_data_class(options: dict[str, bool]) -> None:
    expected, found = twins(options)
    for number, use in enumerate(USES):
        assert outcome(use, found) == outcome(use, expected), number


def own_methods(decorate: Any, *methods: str) -> type[Any]:
    """Return a frozen class with slots that defines some methods itself."""
    bodies: dict[str, Any] = {
        "__hash__": lambda self: 11,
        "__eq__": lambda self, other: True,
        "__repr__": lambda self: "own",
        "__getstate__": lambda self: [self.low],
        "__setstate__": lambda self, state: object.__setattr__(self, "low", 10 * state[0]),
    }
    names = {name: bodies[name] for name in methods}
    made: type[Any] = decorate(**FROZEN)(
        type("Item", (), {"__annotations__": {"low": int}, **names})
    )
    return made


@pytest.mark.parametrize(
    "methods",
    [(), ("__hash__",), ("__eq__",), ("__eq__", "__hash__"), ("__repr__",), ("__getstate__", "__setstate__")],
)  # fmt: skip
def test_methods_of_the_class_itself_are_kept(methods: tuple[str, ...]) -> None:
    uses: list[Callable[[type[Any]], object]] = [
        lambda cls: hash(cls(3)) == hash(cls(3)),
        lambda cls: hash(cls(3)) == 11,
        lambda cls: cls(3) == cls(4),
        lambda cls: repr(cls(3)),
        lambda cls: copy.copy(cls(3)).low,
    ]
    expected, found = (own_methods(d, *methods) for d in (dataclasses.dataclass, records.dataclass))
    for number, use in enumerate(uses):
        assert outcome(use, found) == outcome(use, expected), number


@pytest.mark.parametrize("name", ["low", "extra"])
def test_a_subclass_without_decorator_adds_attributes_and_keeps_fields(name: str) -> None:
    for decorate in (dataclasses.dataclass, records.dataclass):
        base: Any = decorate(frozen=True)(type("Item", (), {"__annotations__": {"low": int}}))
        item = type("Sub", (base,), {})(3)
        if name == "extra":
            item.extra = 4
            assert item.extra == 4
            del item.extra
            continue
        with pytest.raises(FrozenInstanceError):
            item.low = 4
        with pytest.raises(FrozenInstanceError):
            base(3).extra = 4


def test_fields_without_argument_have_their_defaults() -> None:
    for decorate in (dataclasses.dataclass, records.dataclass):
        fields = {
            "parts": field(default_factory=list, init=False),
            "size": field(default=4, init=False),
        }
        names = {"__annotations__": {"parts": list, "size": int}, **fields}
        made: Any = decorate()(type("Item", (), names))
        assert (made().parts, made().size) == ([], 4)


@records.dataclass(frozen=True, slots=True)
class Base:
    """At module level, as pickles name classes."""

    low: int
    parts: tuple[int, ...] = ()


@records.dataclass(frozen=True, slots=True)
class Derived(Base):
    """With a field of its own."""

    name: str = "x"


def test_records_are_inherited_and_pickled() -> None:
    item = Derived(1, (2, 3), "y")
    assert repr(item) == "Derived(low=1, parts=(2, 3), name='y')"
    assert pickle.loads(pickle.dumps(item)) == item != Base(1, (2, 3))
    with pytest.raises(FrozenInstanceError):
        item.low = 2  # type: ignore[misc]


def test_a_decorator_with_options_may_be_used_again() -> None:
    decorate = records.dataclass(frozen=True, slots=True)
    for _ in range(2):
        made = decorate(type("Item", (), {"__annotations__": {"low": "int"}}))
        with pytest.raises(FrozenInstanceError):
            made(1).low = 2


@pytest.mark.parametrize("frozen", [True, False])
def test_data_classes_inherit_from_records_as_from_data_classes(frozen: bool) -> None:
    """Each base with a subclass of each kind: equal freezing works, unequal freezing is the error of `dataclasses`."""
    for first in (records.dataclass, dataclasses.dataclass):
        for second in (records.dataclass, dataclasses.dataclass):

            @first(frozen=frozen)
            class Low:
                """A base."""

                low: int

            @second(frozen=frozen)
            class High(Low):
                """A subclass."""

                high: int = 2

            assert (High(1), hash(High(1)) if frozen else 0) == (
                High(1, 2),
                hash(High(1, 2)) if frozen else 0,
            )
            with pytest.raises(TypeError, match="cannot inherit"):
                second(frozen=not frozen)(type("Other", (Low,), {"__annotations__": {}}))


def test_a_definition_compiles_nothing_and_the_first_object_one_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[object] = []
    exec_ = builtins.exec

    def counted(code: object, *scope: Any) -> None:
        compiled.append(code)
        exec_(code, *scope)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "exec", counted)

    @records.dataclass(frozen=True, slots=True)
    class Item:
        """An item."""

        low: int

    assert not compiled
    for number in range(3):
        assert (Item(number), hash(Item(number))) == (Item(number), hash(Item(number)))
    assert len(compiled) == 1
