"""Lines of NCCL's log that tests compare with a communicator."""

from __future__ import annotations

from clusim.nccl.communicator import Communicator


def log_totals(comm: Communicator) -> str:
    """Return the numbers of channels as the log has them."""
    return (
        f"{comm.num_channels} coll channels, {comm.collnet_channels} collnet channels,"
        f" {comm.nvls_channels} nvls channels, {comm.p2p_channels} p2p channels,"
        f" {comm.p2p_per_peer} p2p channels per peer"
    )
