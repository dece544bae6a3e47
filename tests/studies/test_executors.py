"""Executors: whoever works, results are those of one process, and a worker that is killed loses nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from clusim.base.errors import ClusimError, EnvironmentFailure, InputError
from clusim.base.executors import _elsewhere, connect_executor, workers
from clusim.base.kept import model_digest
from clusim.simulation.setup import Setup
from clusim.studies.crossover import crossover
from clusim_cli.main import run

GRID = """
run: {topology: [dgx-a100, dgx-h100], size: [1KiB, 64KiB, 2MiB], collective: [allreduce, broadcast]}
"""


def test_any_executor_finds_what_one_process_finds() -> None:
    setup = Setup("dgx-a100")
    alone = crossover(setup, "allreduce", (1024, 1 << 20), jobs=1).to_json()
    with ThreadPoolExecutor(2) as pool:
        assert crossover(setup, "allreduce", (1024, 1 << 20), jobs=pool).to_json() == alone
        assert pool.submit(int, "3").result() == 3  # and it is left as it was


def test_what_was_not_begun_is_taken_back() -> None:
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyError), workers(pool, 9) as spread:  # noqa: PT012
            assert spread is not None
            futures = [spread.submit(time.sleep, 0.2) for _ in range(9)]
            raise KeyError
        assert sum(future.cancelled() for future in futures) >= 7


def test_another_clusim_is_refused() -> None:
    assert _elsewhere(model_digest(), int, "3") == 3
    with pytest.raises(EnvironmentFailure, match="install the same"):
        _elsewhere("another", int, "3")


def test_a_process_that_is_killed_is_said() -> None:
    with pytest.raises(EnvironmentFailure, match="fewer --jobs"), workers(2, 2) as spread:  # noqa: PT012
        assert spread is not None
        spread.outcome(spread.submit(os._exit, 9))


@pytest.mark.parametrize("address", ["ray://a:1", "dask:", "dask://", "dask", "", "dask:nowhere"])
def test_what_is_no_address_is_said(address: str) -> None:
    with (
        pytest.raises(InputError, match=r"use dask://|needs distributed"),
        connect_executor(address),
    ):
        pass


def test_jobs_and_executor_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["crossover", "dgx-a100", "--jobs", "2", "--executor", "mpi"]) == 2
    assert "exclude each other" in capsys.readouterr().err


@contextmanager
def started(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module as a process of its own, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Give the address of a scheduler of Dask with two workers, and these."""
    pytest.importorskip("distributed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = f"tcp://127.0.0.1:{port}"
    with ExitStack() as stack:
        alone = "--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--no-show"
        stack.enter_context(started("distributed.cli.dask_scheduler", *alone))
        own = "--nthreads", "1", "--no-nanny", "--no-dashboard"
        yield (
            f"dask://127.0.0.1:{port}",
            [
                stack.enter_context(
                    started(
                        "distributed.cli.dask_worker",
                        *(here, *own, "--local-directory", str(tmp_path / str(number))),
                    )
                )
                for number in range(2)
            ],
        )


def swept(folder: Path, name: str, *more: str) -> list[dict[str, object]]:
    """Sweep by the command and return the rows."""
    program = [sys.executable, "-m", "clusim", "sweep", str(folder / "grid.yaml")]
    subprocess.run([*program, "-o", str(folder / name), *more], check=True, capture_output=True)
    return rows_of(folder / name)


def rows_of(target: Path) -> list[dict[str, object]]:
    """Return the rows of a table without what depends on the computer."""
    from clusim.studies.sweep.tables import read_rows

    rows = [{k: v for k, v in row.items() if k != "simulated_in_s"} for row in read_rows(target)]
    return sorted(rows, key=lambda row: str(row["point"]))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """Return the rows of the sweep in one process."""
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("here")
    (folder / "grid.yaml").write_text(GRID, encoding="utf-8")
    return swept(folder, "here.parquet", "--jobs", "1")


def test_dask_finds_the_same_though_a_worker_is_killed(
    cluster: tuple[str, list[subprocess.Popen[bytes]]],
    tmp_path: Path,
    here: list[dict[str, object]],
) -> None:
    pytest.importorskip("pyarrow")
    from distributed import Client

    (tmp_path / "grid.yaml").write_text(GRID, encoding="utf-8")
    address, processes = cluster
    with Client(f"tcp:{address.partition(':')[2]}", timeout=60, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(swept, tmp_path, "away.parquet", "--executor", address)
            while not any(client.call_stack().values()):  # until something is worked on
                assert not found.done()
                time.sleep(0.05)
            busy = next(who for who, calls in client.call_stack().items() if calls)
            pid = client.run(os.getpid, workers=[busy])[busy]
            assert pid in [process.pid for process in processes]
            os.kill(pid, signal.SIGKILL)
            rows = found.result()
        assert len(client.ncores()) == 1
    assert rows == here
    assert len(rows) == 12


def test_mpi_finds_the_same(tmp_path: Path, here: list[dict[str, object]]) -> None:
    pytest.importorskip("mpi4py")
    pytest.importorskip("pyarrow")
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        pytest.skip("no mpiexec beside this Python")
    (tmp_path / "grid.yaml").write_text(GRID, encoding="utf-8")
    program = [str(mpiexec), "-n", "3", sys.executable, "-m", "mpi4py.futures", "-m", "clusim"]
    words = ["sweep", str(tmp_path / "grid.yaml"), "-o", str(tmp_path / "away.parquet")]
    subprocess.run([*program, *words, "--executor", "mpi"], check=True, capture_output=True)
    assert rows_of(tmp_path / "away.parquet") == here


def test_mpi_alone_says_how_to_start(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mpi4py")
    words = [sys.executable, "-m", "clusim", "crossover", "dgx-a100", "--executor", "mpi"]
    outcome = subprocess.run(words, capture_output=True, text=True)
    assert outcome.returncode == 2
    assert "mpiexec -n N" in outcome.stderr


def test_nobody_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("clusim.base.executors.PATIENCE_S", 0.5)
    with (
        pytest.raises(ClusimError, match="executor dask://127"),
        connect_executor("dask://127.0.0.1:9"),
    ):
        pass
