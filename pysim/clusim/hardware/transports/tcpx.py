"""Google's GPUDirect-TCPX: TCP through the kernel, payload straight to the GPU.

NCCL is run with the variables that Google gives for it, which count as the plugin's.
"""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.transport import Transport, message

TRANSPORT = Transport(
    name="tcpx",
    title="GPUDirect-TCPX",
    figures=message(
        "tcpx",
        post=assumed("12us", "TCP through the kernel, as NCCL's sockets"),
        completion=assumed("10us", "TCP through the kernel, as NCCL's sockets"),
        gpudirect=published(True, "GPUDirect-TCPX: headers to the host, payload to the GPU"),
    ),
    in_logs="GPUDirectTCPX",
    variables={
        0: {
            "NCCL_CROSS_NIC": "0",
            "NCCL_ALGO": "Ring",
            "NCCL_PROTO": "Simple",
            "NCCL_MIN_NCHANNELS": "12",
            "NCCL_MAX_NCHANNELS": "12",
            "NCCL_BUFFSIZE": "4194304",
            "NCCL_P2P_NET_CHUNKSIZE": "524288",
            "NCCL_P2P_PCI_CHUNKSIZE": "524288",
            "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
        }
    },
)
