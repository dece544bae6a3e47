"""Commands that write files, ended at any moment or out of room: the old file or the new one, and it goes on after.

A matrix of endings and commands. By default a diagonal that has every ending and every command, all of it with
CLUSIM_THOROUGH=1.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.covering import THOROUGH

RUN = "run dgx-a100 --algorithm ring --granularity packet --size {} --trace-out {}"
GRID = "run: {topology: dgx-a100, size: [1MiB, 64KiB, 80KiB, 96KiB, 112KiB, 128KiB], algorithm: ring}\n"
STEP = """\
topology: dgx-a100
model: {base: gpt3-1.3b, layers: 4, hidden: 256, heads: 4, kv_heads: 4, head_size: 64, intermediate: 1024, vocab: 1024}
parallel: {data: 8}
batch: {global: 8}
sequence: 512
"""
MEASURED = "system,n_nodes,n_gpus,collective,size_bytes,time_us,source\n" + "".join(
    f"dgx-a100,1,8,all_reduce,{size << 20},{size * 100},test\n" for size in (1, 2)
)

COMMANDS = {
    "run": (RUN.format("24MiB" if THOROUGH else "6MiB", "out.h5"), "out.h5"),
    "sweep": ("sweep grid.yaml -o out.parquet --jobs 2", "out.parquet"),
    "report": ("report in.h5 -o out.html", "out.html"),
    "export": ("export in.h5 --format chrome -o out.json", "out.json"),
    "train": ("train step.yaml --steps 1 --estimate", ""),
    "validate": ("validate rows.csv --system dgx-a100 --jobs 2 --errors out.json", "out.json"),
}
SIGNALS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}
ENDINGS = [*SIGNALS, "full disk", "read-only folder", "file size limit"]


def limited() -> None:
    """Let no file become larger than 2 KiB, as a quota does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))


def start(
    words: str, folder: Path, before: Callable[[], None] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "clusim", *words.split()],
        cwd=folder,
        env={**os.environ, "CLUSIM_CACHE": str(folder / "cache")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=before,
    )


def done(words: str, folder: Path) -> None:
    """Run a command to its end."""
    process = start(words, folder)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 0, told


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Put a small file system over a folder, with what is in the folder."""
    held = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    words = ["mount", "-t", "tmpfs", "-o", f"size={sum(map(len, held.values())) + 40960}", "tmpfs"]
    if subprocess.run([*words, str(folder)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        for name, data in held.items():
            (folder / name).write_bytes(data)
        if "ro" in options.split(","):
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield
        if "ro" in options.split(","):
            subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
        after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    for name, data in after.items():
        (folder / name).write_bytes(data)


def ended(words: str, ending: str, folder: Path, draw: random.Random) -> None:
    """Run a command until its ending, and see that nothing of it is left running."""
    if ending in ("full disk", "read-only folder"):
        with mounted(folder, "ro" if ending == "read-only folder" else ""):
            process = start(words, folder)
            _, told = process.communicate(timeout=120)
    else:
        process = start(words, folder, limited if ending == "file size limit" else None)
        if ending in SIGNALS:
            time.sleep(draw.uniform(0.3, 2.5 if THOROUGH else 1.2))
            if process.poll() is None:
                process.send_signal(SIGNALS[ending])
        _, told = process.communicate(timeout=120)
    assert "Traceback" not in told, told
    for _ in range(100):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("a process of the command is left")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    done(RUN.format("1MiB", "in.h5"), folder)
    (folder / "grid.yaml").write_text(GRID)
    (folder / "step.yaml").write_text(STEP)
    (folder / "rows.csv").write_text(MEASURED)
    return folder


CELLS = [
    (command, ending)
    for row, command in enumerate(COMMANDS)
    for column, ending in enumerate(ENDINGS)
    if THOROUGH or row == column or (command, ending) == ("sweep", "SIGKILL")
]


@pytest.mark.parametrize(("command", "ending"), CELLS)
def test_the_old_file_or_the_new_one(
    command: str, ending: str, inputs: Path, tmp_path: Path
) -> None:
    words, target = COMMANDS[command]
    if target.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    for path in inputs.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    shutil.copytree(inputs / "cache", tmp_path / "cache")
    given = {path.name for path in tmp_path.iterdir()} - {"cache"}
    if target:
        if target.endswith(".h5"):
            (tmp_path / target).write_bytes((tmp_path / "in.h5").read_bytes())
        else:
            done(words, tmp_path)
        old = (tmp_path / target).read_bytes()
    if target.endswith(".parquet"):
        # A grid with more points, so that there is something to do.
        (tmp_path / "grid.yaml").write_text(GRID.replace("1MiB", "2MiB, 3MiB, 4MiB"))
    for number in range(3 if ending in SIGNALS and THOROUGH else 1):
        ended(words, ending, tmp_path, random.Random(f"{command} {ending} {number}"))
        if target:
            new = (tmp_path / target).read_bytes()
            assert new == old or complete(tmp_path / target)
            old = new
    done(words, tmp_path)
    assert not target or complete(tmp_path / target)
    after = {path.name for path in tmp_path.iterdir()} - {"cache"}
    assert after == given | ({target} if target else set())


def complete(path: Path) -> bool:
    """Return whether a file of one of the commands is there to its end."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path).num_rows >= 6
    if path.suffix == ".h5":
        done(f"info {path.name}", path.parent)
        return True
    data = path.read_bytes().rstrip()
    return data.endswith(b"</html>" if path.suffix == ".html" else b"}")
