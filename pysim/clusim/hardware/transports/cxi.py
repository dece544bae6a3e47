"""aws-ofi-nccl on Slingshot 11 (libfabric's cxi provider); it knows no such machine, and sets no variables there."""

from __future__ import annotations

from clusim.hardware.figures import assumed, calibrated, published
from clusim.hardware.transport import Transport, message

TRANSPORT = Transport(
    name="cxi",
    title="aws-ofi-nccl on Slingshot",
    figures=message(
        "cxi",
        plugin=published("cxi", "NCCL reaches Slingshot 11 through aws-ofi-nccl"),
        transit=calibrated(
            "1.8us",
            "libfabric and cxi: Tree LL all-reduce of 8 B on 2 Alps nodes, 6 us a crossing",
            "alps-2",
        ),
        ack=assumed("1.8us", "as long as the message"),
        adaptive=published(True, "Rosetta routes every packet by load"),
    ),
    in_logs="OFI",
)
