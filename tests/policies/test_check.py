"""`clusim policy check`: shipped policies pass, each law catches a policy that breaks it, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.policies.choice import shipped
from clusim.studies.policy_check import check_policy
from clusim.topology import load
from clusim_cli.main import run
from support.covering import THOROUGH

HEAD = "import clusim\nfrom typing import Final\n\n@clusim.policy\nclass Mine:\n"
ACKED = "    def acked(self, now_ps, size_bytes, rtt_ps, marked):\n"

FABRICS = 6 if THOROUGH else 2

MUTANTS = {
    "uncontended flow, delay": "    def start(self, now_ps):\n        self.rate = self.line_rate // 2\n",
    # The flow that joins gives way forever.
    "two flows, Jain's index": "    def start(self, now_ps):\n        if now_ps > 0:\n"
    "            self.rate = self.line_rate // 50\n",
    "two flows, link use": "    def notified(self, now_ps):\n        self.rate = self.min_rate\n",
    # Cuts its rate, and recovers after 15 ms.
    "two flows, convergence": "    def start(self, now_ps):\n        if now_ps > 0:\n"
    "            self.rate = self.line_rate // 50\n            self.timer_ps = now_ps + 15 * 10**9\n"
    "    def timer(self, now_ps):\n        self.rate = self.line_rate\n",
    # First packets of the flows arrive one packet of 4,178 bytes after another, at 20 ps per byte.
    "incast of 3, slowest flow": "    seen: int = 0\n" + ACKED + "        self.seen += 1\n"
    "        if self.seen == 1 and rtt_ps // 83_560 % 3 == 0:\n            self.rate = self.min_rate\n",
    "incast of 3, link use": "    def notified(self, now_ps):\n        self.rate = self.line_rate // 20\n",
    # The product exceeds 64 bits.
    "engines, equal networks": ACKED + "        if marked:\n"
    "            self.rate = max(self.line_rate // 3, (self.rate << 40) >> 41)\n",
}


@pytest.mark.parametrize("law", MUTANTS)
def test_each_law_catches_a_policy_that_breaks_it(law: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + MUTANTS[law], encoding="utf-8")
    networks = 6 if law.startswith("engines") else 0
    check = check_policy(f"{path}:Mine", load("hgx-h20:nodes=4"), 3, networks)
    (found,) = (one for one in check.laws if one.law == law)
    assert not found.passed, check.laws
    assert not check.passed


def test_a_policy_without_its_signal_fails_as_it_never_reacts() -> None:
    """Links with credit do not mark; round trips are seen everywhere."""
    reactions = {}
    for name in ("dctcp", "swift"):
        check = check_policy(name, load("hgx-h100-ndr:nodes=4"), 3, 0)
        (law,) = (one for one in check.laws if one.law == "incast of 3, reaction")
        reactions[name] = law.passed, law.note
    assert reactions == {
        "dctcp": (False, "never reacted: equal to flows at the line rate"),
        "swift": (True, ""),
    }


FEW = ("hpcc", "rccc", "reps")
"""One policy of each kind: hops, credit, paths; `tests/laws/test_rate_control.py` has the laws of all."""


@pytest.mark.parametrize("name", sorted(shipped()) if THOROUGH else FEW)
def test_shipped_policies_pass(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--incast", "3", "--fabrics", str(FABRICS), "--no-progress", "--json"]
    assert run(["policy", "check", name, *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["passed"]
    assert all(law["passed"] for law in printed["laws"])
    assert [law["value"] for law in printed["laws"] if law["law"].startswith("engines")] == [
        FABRICS
    ]


def test_a_law_that_fails_is_exit_code_1_and_a_bad_policy_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + MUTANTS["uncontended flow, delay"], encoding="utf-8")
    words = ["policy", "check", f"{path}:Mine", "--incast", "2", "--fabrics", "0", "--no-progress"]
    assert run(words) == 1
    assert "FAILED" in capsys.readouterr().out
    path = tmp_path / "other.py"
    body = ACKED + "        self.rate = size_bytes // (size_bytes - 4096)\n"
    path.write_text(HEAD + body, encoding="utf-8")
    assert run([*words[:2], f"{path}:Mine", *words[3:]]) == 2
    line = capsys.readouterr().err
    assert "Mine.acked, line 6: failed at " in line
    assert "source 0; divided by zero" in line


@pytest.mark.parametrize(
    ("name", "system", "words"),
    [("none", "hgx-h20:nodes=4", "without functions"), ("swift", "hgx-h20", "must be 4 or more")],
)
def test_what_cannot_be_checked_is_refused(name: str, system: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_policy(name, load(system), 3, 0)
