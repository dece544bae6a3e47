"""Google's GPUDirect-TCPXO (FasTrak): a service process on the host moves the data.

NCCL is run with the profile that comes with it (``nccl-env-profile.sh``), which its guest checks; its variables count
as the plugin's. The profile leaves LL128 out in its first releases; here it is in.
"""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.transport import Transport, message

TRANSPORT = Transport(
    name="fastrak",
    title="GPUDirect-TCPXO (FasTrak)",
    figures=message(
        "fastrak",
        post=assumed("8us", "GPUDirect-TCPXO: a service process posts for NCCL"),
        completion=assumed("6us", "GPUDirect-TCPXO: a service process watches for NCCL"),
        gpudirect=published(True, "GPUDirect-TCPXO: headers to the host, payload to the GPU"),
    ),
    in_logs="FasTrak",
    variables={
        0: {
            "NCCL_CROSS_NIC": "0",
            "NCCL_ALGO": "Ring,Tree",
            "NCCL_PROTO": "Simple,LL128",
            "NCCL_MIN_NCHANNELS": "4",
            "NCCL_BUFFSIZE": "8388608",
            "NCCL_P2P_NET_CHUNKSIZE": "524288",
            "NCCL_P2P_PCI_CHUNKSIZE": "524288",
            "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
        }
    },
)
