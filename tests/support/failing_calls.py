"""Commands of which the k-th call that changes files fails: each target is then the old file or the new one.

``LD_PRELOAD=LIBRARY python -m support.failing_calls LIBRARY FOLDER [EVERY]`` with tests/ on the path, where LIBRARY is
``csrc/tests/fail_calls.c``. Every case runs in a forked process, because imports last longer than the commands. Prints
the outcomes by command and call, and the cases that break a law, of all cases or of every EVERY-th.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from clusim.base import resources
from clusim.results.trace.reader import read_result
from clusim_cli.main import run

END, HALF = -1, -2
WAYS = {
    "end": END, "half": HALF, "ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EINTR": errno.EINTR,
}  # fmt: skip
CALLS = {
    "w": "write", "p": "pwrite", "r": "rename", "s": "fsync", "t": "ftruncate", "a": "allocate",
}  # fmt: skip
GRID = "run: {topology: 'star:4', size: [8, 64, 512]}\n"


def _same(path: Path) -> object:
    return path.read_bytes()


def _trace(path: Path) -> object:
    result = read_result(path)
    return result.complete, result.time_ps, result.packet_hops


def _table(path: Path) -> object:
    import pyarrow.parquet

    columns = ("size", "time_ps", "error")
    table = pyarrow.parquet.read_table(path).to_pydict()
    return [table[name] for name in columns if name in table]


@dataclass(frozen=True)
class Command:
    """Command, with the file that it replaces.

    Attributes
    ----------
    first : tuple of str
        Words that write the old file.
    content : callable
        Returns what is compared of a file, and raises for half a file.
    needed : bool
        False if the command succeeds without the file.
    also : tuple of str
        Names of further files that may remain.
    """

    words: tuple[str, ...]
    target: str = ""
    first: tuple[str, ...] = ()
    content: Callable[[Path], object] = _same
    needed: bool = True
    also: tuple[str, ...] = ()


def _small(size: str) -> tuple[str, ...]:
    return "run", "star:4", "--size", size, "--trace-out", "run.h5"


COMMANDS = {
    "run": Command(_small("64"), "run.h5", _small("8"), _trace),
    "sweep": Command(
        ("sweep", "grid.yaml", "-o", "rows.parquet", "--jobs", "1", "--json"), "rows.parquet",
        ("sweep", "old.yaml", "-o", "rows.parquet", "--jobs", "1"), _table, also=("rows.parquet.",),
    ),
    "report": Command(
        ("report", "in.h5", "-o", "page.html"), "page.html", ("report", "in.h5", "in.h5", "-o", "page.html")
    ),
    "export": Command(
        ("export", "in.h5", "-o", "out"), "out", ("export", "in.h5", "-o", "out", "--no-slices")
    ),
    "cache": Command(("topo", "show", "star:4", "--json"), needed=False),
}  # fmt: skip


DENSE = 12
"""Of the hundreds of `pwrite` calls of a trace, every 12th fails, in one of the ways in turn."""


def _chosen(number: int, call: str, way: str, every: int) -> bool:
    """Return True if a call fails in this way: of all cases, or every `every`-th."""
    place = list(WAYS).index(way)
    if call == "pwrite":
        turn, rest = divmod(number, DENSE * every)
        return not rest and turn % len(WAYS) == place
    return (way != "half" or call == "write") and not (number * len(WAYS) + place) % every


@dataclass
class Done:
    """What a process did."""

    status: int
    out: str
    err: str
    calls: str


@dataclass
class Trials:
    """Trials of all commands.

    Attributes
    ----------
    found : dict
        Outcomes by command, call and way.
    wrong : list of str
        Cases that break a law.
    """

    library: ctypes.CDLL
    folder: Path
    found: dict[tuple[str, str, str], Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def place(self) -> Path:
        """Folder of the command."""
        return self.folder / "place"

    def attempt(self, words: tuple[str, ...], number: int = 0, how: int = 0) -> Done:
        """Run a command in a forked process, with call `number` failing as `how`."""
        report, child = self.folder / "calls", os.fork()
        if not child:
            for descriptor, name in ((1, "out"), (2, "err")):
                opened = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(opened, descriptor)
            os.chdir(self.place)
            self.library.fail_calls(os.fsencode(self.place), number, how)
            code = run(list(words))
            kinds = ctypes.create_string_buffer(1 << 16)
            self.library.fail_counted(kinds, len(kinds))
            report.write_bytes(kinds.value)
            sys.stdout.flush()
            os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        calls = report.read_text() if report.exists() else ""
        report.unlink(missing_ok=True)
        return Done(
            status, (self.folder / "out").read_text(), (self.folder / "err").read_text(), calls
        )

    def restore(self, before: Path) -> None:
        """Restore the folder of the command."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(before, self.place)

    def command(self, name: str, every: int) -> None:
        """Let every call of a command fail in all ways."""
        one, before = COMMANDS[name], self.folder / f"{name}-before"
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        (self.place / "grid.yaml").write_text(GRID)
        (self.place / "old.yaml").write_text(GRID.replace(", 512", ""))
        inputs = ("run", "star:4", "--size", "8", "--trace-out", "in.h5")
        for words in (inputs if "in.h5" in one.words else (), one.first):
            done = self.attempt(words) if words else None
            assert done is None or done.status == 0, (words, done)
        shutil.copytree(self.place, before, dirs_exist_ok=True)
        os.environ["CLUSIM_CACHE"] = str(
            self.place / "cache" if name == "cache" else self.folder / "cache"
        )
        target = self.place / one.target
        old = one.content(target) if one.target else None
        self.attempt(one.words)  # fills the cache
        self.restore(before)
        good = self.attempt(one.words)
        assert good.status == 0, good
        assert good.calls, name
        new = one.content(target) if one.target else None
        assert old != new or not one.target
        for number in range(1, len(good.calls) + 1):
            call = CALLS[good.calls[number - 1]]
            for way, how in WAYS.items():
                if not _chosen(number, call, way, every):
                    continue
                self.restore(before)
                done = self.attempt(one.words, number, how)
                # Traces differ by a few calls, for example in their times.
                call = CALLS.get(done.calls[number - 1 : number], call)
                outcome, wrong = self._judge(one, done, good, {"old": old, "new": new})
                self.found.setdefault((name, call, way), Counter())[outcome] += 1
                self.wrong += [f"{name}: call {number} ({call}), {way}: {text}" for text in wrong]

    def _judge(
        self, one: Command, done: Done, good: Done, known: dict[str, object]
    ) -> tuple[str, list[str]]:
        """Return the content after a case, and the laws that it breaks."""
        wrong = []
        killed = done.status == -signal.SIGKILL
        if not killed and done.status not in (0, 1):
            wrong.append(f"exit code {done.status}: {done.err[-500:]}")
        if done.status == 1 and not (done.err.startswith("clusim: ") and done.err.count("\n") == 1):
            wrong.append(f"not one line: {done.err[-500:]!r}")
        outcome = self._content(one, known)
        if done.status == 0 and (outcome == "old" or (not one.needed and done.out != good.out)):
            wrong.append("success without a result")
        if outcome not in known:
            wrong.append(f"neither the old file nor the new one: {outcome}")
        if not one.needed and not killed and (done.status or done.err):
            wrong.append(f"failed without need: {done.err!r}")
        if not killed:
            wrong += self._remaining(one, done.err)
        if killed:
            again = self.attempt(one.words)
            if again.status or self._content(one, known) != "new":
                wrong.append(f"does not recover: {again.status}, {again.err[-500:]!r}")
            elif any(path.name.endswith(".tmp") for path in self.place.rglob(".*")):
                wrong.append("orphans remain after the next run")
        return outcome, wrong

    def _remaining(self, one: Command, err: str) -> list[str]:
        """Return the laws that remaining files break: a partial trace is readable, and reported."""
        expected = {"grid.yaml", "old.yaml", "in.h5", "cache", one.target}
        left = {path.name for path in self.place.iterdir()} - expected
        if one.also:
            left = {name for name in left if not name.startswith(one.also)}
        partial = self.place / f"{one.target}.partial"
        if partial.name in left and f"{partial.name}\n" in err:
            left.remove(partial.name)
            try:
                read_result(partial)
            except Exception as error:
                return [f"the partial trace is unreadable: {error}"]
        return [f"files remain: {sorted(left)}"] if left else []

    def _content(self, one: Command, known: dict[str, object]) -> str:
        """Return ``old``, ``new``, or the problem of the file."""
        if not one.target:
            return "new"
        try:
            content = one.content(self.place / one.target)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return next((name for name in known if known[name] == content), "other content")

    def table(self) -> str:
        """Return the outcomes as text."""
        lines = [f"{'command':8} {'call':10}" + "".join(f"{way:>18}" for way in WAYS)]
        for name, call in dict.fromkeys(key[:2] for key in self.found):
            cells = [self.found.get((name, call, way), Counter()) for way in WAYS]
            texts = [
                ", ".join(f"{n} {word[:12]}" for word, n in sorted(c.items())) or "-" for c in cells
            ]
            lines.append(f"{name:8} {call:10}" + "".join(f"{text:>18}" for text in texts))
        return "\n".join(lines)


def main() -> None:
    """Try all commands; exit with 1 if a law is broken."""
    trials = Trials(ctypes.CDLL(sys.argv[1]), Path(sys.argv[2]))
    every = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    resources.cached = True
    os.environ["CLUSIM_CACHE"] = str(trials.folder / "cache")
    import_all(trials.folder)
    for name in COMMANDS:
        trials.command(name, every)
    sys.stdout.write("\n".join([trials.table(), *trials.wrong, ""]))
    sys.exit(bool(trials.wrong))


def import_all(folder: Path) -> None:
    """Run all commands once in this process, for what they import."""
    work = folder / "imports"
    work.mkdir()
    os.chdir(work)
    (work / "grid.yaml").write_text(GRID)
    shown = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for words in (
        ("run", "star:4", "--size", "8", "--trace-out", "in.h5"),
        *(c.words for c in COMMANDS.values()),
    ):
        assert run(list(words)) == 0, words
    sys.stdout.flush()
    os.dup2(shown, 1)


if __name__ == "__main__":
    main()
