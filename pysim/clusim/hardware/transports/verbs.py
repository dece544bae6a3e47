"""NCCL's own transport for InfiniBand and RoCE.

The receiver writes where a message goes into the sender's memory, so that none goes before it was asked for; data are
written there, and a word behind them (``src/transport/net_ib``).
"""

from __future__ import annotations

from clusim.hardware.transport import Transport, message

TRANSPORT = Transport(
    name="verbs", title="verbs (NCCL's own)", figures=message("verbs"), in_logs="IB"
)
