"""Executors by address: Dask's workers, or the processes of an MPI job.

clusim does not include a scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusim.base.errors import EnvironmentFailure, InputError

PATIENCE_S = 20
"""Timeout for a scheduler and its first worker [s]."""

RETRIES = 5
"""Retries of a task after the loss of its worker."""

FORMS = "use dask://HOST:PORT, dask:SCHEDULER_FILE, or mpi"


@contextmanager
def connected(address: str) -> Iterator[Executor]:
    """Connect to the executor at an address, and leave it running.

    Parameters
    ----------
    address : str
        ``dask://HOST:PORT``, ``dask:FILE`` with a scheduler's file, or ``mpi`` in a job started by
        ``mpiexec -n N python -m mpi4py.futures -m clusim ...``.

    Raises
    ------
    InputError
        The address has another form, or the library is not installed.
    EnvironmentFailure
        The scheduler does not answer, or does not have workers.
    """
    if address.lower() == "mpi":
        with _mpi() as executor:
            yield executor
        return
    scheme, colon, place = address.partition(":")
    if scheme.lower() != "dask" or not colon or not place.strip("/"):
        raise InputError(f"executor {address!r}: {FORMS}")
    with _dask(place) as executor:
        yield executor


@contextmanager
def _dask(place: str) -> Iterator[Executor]:
    """Connect to Dask's executor by the scheduler at ``//HOST:PORT`` or in a file."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "executor dask: needs distributed; pip install 'clusim-net[cluster]'"
        ) from None
    if place.startswith("//"):
        where = {"address": f"tcp:{place}"}
    elif Path(place).is_file():
        where = {"scheduler_file": place}
    else:
        raise InputError(f"executor dask:{place}: no such file; {FORMS}")
    try:
        connect: Any = Client
        client = connect(**where, timeout=PATIENCE_S, set_as_default=False)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EnvironmentFailure(f"executor dask:{place}: {reason}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=PATIENCE_S)
        except TimeoutError:
            raise EnvironmentFailure(
                f"executor dask:{place}: the scheduler has no workers; start some with 'dask worker'"
            ) from None
        yield client.get_executor(retries=RETRIES, pure=False)


@contextmanager
def _mpi() -> Iterator[Executor]:
    """Start the executor of the other processes of this MPI job."""
    try:
        from mpi4py import MPI
        from mpi4py.futures import MPIPoolExecutor
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"executor mpi: needs mpi4py and an MPI library ({error}); pip install 'clusim-net[mpi]'"
        ) from None
    if MPI.COMM_WORLD.Get_size() < 2:
        raise InputError(
            "executor mpi: this process is alone; start it with mpiexec -n N python -m mpi4py.futures -m clusim ..."
        )
    with MPIPoolExecutor() as executor:
        yield executor
