"""Small logs written by hand in the forms of different versions, and what they say."""

from __future__ import annotations

from pathlib import Path

from clusim.formats.logs import Log, read_logs

TEXTS = Path(__file__).parent / "texts"


def text_of(name: str) -> str:
    """Return one of the logs in the folder ``texts``."""
    return (TEXTS / f"{name}.log").read_text(encoding="utf-8")


OLD, V28, V212, V221, V229, RCCL = (
    text_of(name)
    for name in ("nccl-2.4", "nccl-2.8", "nccl-2.12", "nccl-2.21", "nccl-2.29", "rccl-2.18")
)
ALL = {"2.4": OLD, "2.8": V28, "2.12": V212, "2.21": V221, "2.29": V229, "rccl": RCCL}
ALL |= {version: text_of(f"nccl-{version}") for version in ("2.16", "2.18", "2.20", "2.22", "2.27")}


def read(folder: Path, *texts: str | bytes) -> Log:
    """Read texts as the files of one job."""
    names = []
    for i, text in enumerate(texts):
        path = folder / f"log{i}.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        names.append(str(path))
    return read_logs(names)


def call(
    rank: int, number: int, *, name: str = "AllReduce", count: int = 4, comm: int = 0, n_ranks: int = 2
) -> str:  # fmt: skip
    """Return the line of one call."""
    return (
        f"host{rank // 8}:{100 + rank}:{200 + rank} [{rank % 8}] NCCL INFO {name}: opCount {number:x}"
        f" sendbuff 0x7f{rank:02x}00 recvbuff 0x7e{rank:02x}00 count {count} datatype 7 op 0 root 0"
        f" comm 0x55{comm:02x}{rank:02x} [nranks={n_ranks}] stream 0x{rank + 16:x}"
    )


def begin(rank: int, *, comm: int = 0, n_ranks: int = 2, event: str = "Init COMPLETE") -> str:
    """Return the line with which a communicator is ready, or ends."""
    return (
        f"host{rank // 8}:{100 + rank}:{200 + rank} [{rank % 8}] NCCL INFO comm 0x55{comm:02x}{rank:02x}"
        f" rank {rank} nranks {n_ranks} cudaDev {rank % 8} nvmlDev {rank % 8} busId {rank + 1}000"
        f" commId 0xc{comm:02x} - {event}"
    )
