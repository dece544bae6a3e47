"""Sender policies: how they are defined, found, compiled and refused; exit code 2 and one line."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import clusim
from clusim.base import kept
from clusim.base.errors import ClusimError, InputError
from clusim.lowering.controls import with_policy
from clusim.policies import compiled
from clusim.policies.choice import (
    BoundSender,
    Sender,
    _module_source,
    find_policy,
    parse_policy,
    shipped,
)
from clusim.policies.kinds import CALLS, WORDS
from clusim.simulation.flows import Flow
from clusim.topology.save import to_yaml
from clusim_cli.main import run

HEAD = "import clusim\nfrom typing import Final\n\n@clusim.policy\nclass Mine:\n"
TRAFFIC = ["traffic", "hgx-h20", "--nodes", "2", "--pattern", "incast", "--message", "64KiB"]


def _file(folder: Path, body: str) -> str:
    path = folder / "mine.py"
    path.write_text(HEAD + body, encoding="utf-8")
    return f"{path}:Mine"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "    def sent(self, now_ps, size_bytes):\n        self.rate = 1 / 2\n",
            "line 7: / returns",
        ),
        (
            "    def sent(self, now_ps, size_bytes):\n        self.rate = int(0.5)\n",
            "0.5 is a float",
        ),
        ("    def sent(self, now_ps):\n        pass\n", "must be self, now_ps, size_bytes"),
        (
            "    step: int = 0.5\n    def start(self, now_ps): pass\n",
            "step: 0.5 must be an integer",
        ),
        ("    step: Final = 1\n    def start(self, now_ps):\n        self.step = 2\n", "sets step"),
        ("    step: int = 1\n", "without a function"),
        (
            "    def start(self, now_ps):\n        self.rate = self.other\n",
            "line 7: no field 'other'",
        ),
        (
            "    def start(self, now_ps):\n        self.rate = open(3)\n",
            "Mine.start, line 6: numba",
        ),
        (
            "    def start(self, now_ps):\n        self.window = 0\n",
            "Mine.start, line 6: window = 0",
        ),
        ("    x = 1 // 0\n", "line 6: ZeroDivisionError"),
    ],
)
def test_a_bad_policy_is_one_line_with_its_place(
    body: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = _file(tmp_path, body)
    assert run([*TRAFFIC, "--policy", f"sender={name}"]) == 2
    printed = capsys.readouterr().err.strip()
    assert words in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("swift", "must be KIND=NAME"),
        ("paths=swift", "must be KIND=NAME"),
        ("path=swift", "policy swift: is of senders; use a class with choose"),
        ("sender=swift,sender=dctcp", "two of kind sender; name one"),
        ("sender=swit", "did you mean 'swift'"),
        ("sender=nowhere.py:Mine", "no file 'nowhere.py'"),
    ],
)
def test_an_unknown_policy_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        parse_policy(text)


def test_a_missing_class_is_named(tmp_path: Path) -> None:
    name = _file(tmp_path, "    def start(self, now_ps): pass\n").replace(":Mine", ":Yours")
    with pytest.raises(InputError, match="no class 'Yours'; there are Mine"):
        find_policy(name)


def test_a_topology_without_nics_has_no_senders() -> None:
    with pytest.raises(InputError, match="lacks NICs"):
        with_policy(clusim.load("star:4"), "sender=swift")


def test_constants_of_nics_and_given_ones_replace_those_of_the_class() -> None:
    rates = (("line_rate", 1000), ("min_rate", 10), ("additive", 77))
    of = find_policy("dcqcn-policy")
    record = dict(zip(of.fields, BoundSender(Sender("dcqcn-policy"), rates).record, strict=True))
    assert (record["rate"], record["additive"], record["hyper"]) == (1000, 77, 26844)
    given = BoundSender(Sender("dcqcn-policy", (("additive", 5),)), rates)
    assert dict(zip(of.fields, given.record, strict=True))["additive"] == 5
    assert of.fields[: len(WORDS)] == WORDS


@clusim.policy
class Local:
    """A policy that a program defines."""

    share: Final = 32

    def start(self, now_ps: int) -> None:
        """Send at a small part of the line rate."""
        self.rate = self.line_rate // self.share  # type: ignore[attr-defined]


def test_a_class_is_a_policy_of_traffic_and_collectives() -> None:
    flow = [Flow(8, 0, 4 << 20)]
    free = clusim.traffic("hgx-h20", nodes=2, flows=flow, policy="sender=none")
    slow = clusim.traffic("hgx-h20", nodes=2, flows=flow, policy=Local)
    assert slow.time_ps > 25 * free.time_ps
    run_of = {
        policy: clusim.collective("hgx-h20", "allreduce", "4MiB", nodes=2, policy=policy).time_ps
        for policy in ("", "sender=none", Local)
    }
    assert run_of[Local] > 1.2 * run_of["sender=none"]


def test_a_topology_names_a_policy_and_its_constants(tmp_path: Path) -> None:
    fabric = with_policy(clusim.load("hgx-h20:nodes=2"), "sender=dctcp")
    text = to_yaml(fabric)
    again = clusim.topology.loads(text)
    (sender,) = {node.nic.rate_control.sender for node in again.nodes if node.nic is not None}
    assert sender == Sender("dctcp")


def test_shipped_policies_compile_and_their_files_state_their_source() -> None:
    for name, of in shipped().items():
        addresses = compiled.addresses(name)
        assert [bool(value) for value in addresses] == [call in of.functions for call in CALLS]
        text = (inspect.getdoc(inspect.getmodule(of.cls)) or "") + (of.cls.__doc__ or "")
        assert re.search(r"\(.* (SIGCOMM )?(19|20)\d\d\)|\(UEC specification", text), name


def test_the_folder_of_machine_code_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSIM_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "refused", {})
    (tmp_path / "policies").mkdir(mode=0o777)
    (tmp_path / "policies").chmod(0o777)
    compiled.addresses.cache_clear()
    with pytest.raises(ClusimError, match="others may write"):
        compiled.addresses("swift")


def test_a_policy_without_source_is_refused_with_the_remedy() -> None:
    members: dict[str, Any] = {}
    exec("def timer(self, now_ps): self.rate = 1", members)
    cls = type("Nowhere", (), {"__module__": "nowhere", "timer": members["timer"]})
    with pytest.raises(InputError, match=r"policy Nowhere: .* define it in a \.py file"):
        clusim.policy(cls)


def test_a_policy_of_a_notebook_has_the_source_of_its_cell() -> None:
    """Cells are compiled under names that only `linecache` knows."""
    cell = "class Cell:\n    def start(self, now_ps):\n        self.rate = self.line_rate // 2\n"
    name = "<cell of a notebook>"
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    members: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, name, "exec"), members)
    members["Cell"].__module__ = "nowhere"
    sys.modules["nowhere"] = ModuleType("nowhere")
    try:
        found = clusim.policy(members["Cell"]).clusim_policy
        assert found.name == f"{name}:Cell"
        assert "line_rate // 2" in _module_source(found)
    finally:
        del sys.modules["nowhere"]
