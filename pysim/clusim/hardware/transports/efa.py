"""aws-ofi-nccl on EFA, whose SRD delivers packets in any order.

It knows the instance it runs on (``src/platform-aws.cpp``) and gives NCCL larger buffers and chunks on those with EFA
from A100 on, since its release 1.16 of June 2025, when NCCL 2.27 came out. ``NCCL_NET_FORCE_FLUSH`` and
``NCCL_NETDEVS_POLICY``, which it sets as well, are not modelled.
"""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.transport import AMPERE, HOPPER, Transport, message

TRANSPORT = Transport(
    name="efa",
    title="aws-ofi-nccl on EFA",
    figures=message(
        "efa",
        plugin=published("efa", "NCCL reaches EFA through aws-ofi-nccl"),
        flush=published("1us", "aws-ofi-nccl flushes by a local read"),
        eager=published("8KiB", "aws-ofi-nccl, EAGER_MAX_SIZE (off in 1.14 only)"),
        adaptive=published(True, "SRD sprays the packets of a message over many paths"),
    ),
    in_logs="OFI",
    variables={
        AMPERE: {"NCCL_BUFFSIZE": "8388608", "NCCL_P2P_NET_CHUNKSIZE": "524288"},
        HOPPER: {"NCCL_NVLSTREE_MAX_CHUNKSIZE": "524288", "NCCL_NVLS_CHUNKSIZE": "524288"},
    },
    late=frozenset(("NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE")),
    stripe_bytes=128 << 10,
    old_latency_us=150.0,
)
