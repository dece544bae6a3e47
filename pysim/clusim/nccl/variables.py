"""Environment variables of NCCL: effect in clusim, and releases that read them.

The table is the single list of names: `clusim.nccl.env` reads values by it, notes and errors quote its reasons, and
``docs/nccl-environment.md`` is `page`. Releases are from the sources of the tags 2.4 to 2.30 and the libraries of
2.31.2 and 2.32.3; patch releases of one minor count as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clusim.nccl.constants import Version

Effect = Literal["obeyed", "no effect", "refused"]


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable of NCCL.

    Attributes
    ----------
    effect : str
        ``obeyed``, ``no effect`` (accepted; results name it) or ``refused`` (an error, except for `harmless` values).
    reason : str
        Effect, or reason for no effect or refusal.
    since, until : tuple of int, or None
        First and last release that reads it; None is unknown, or later than 2.32.
    harmless : tuple of str
        Values that are NCCL's default, which a refused variable may have.
    """

    name: str
    effect: Effect
    reason: str
    since: tuple[int, int] | None
    until: tuple[int, int] | None
    harmless: tuple[str, ...] = ()

    def read_by(self, version: Version) -> bool:
        """Return True if a release reads it, or if that is unknown."""
        release = version[:2]
        return (self.since or release) <= release <= (self.until or release)

    @property
    def releases(self) -> str:
        """Return the releases that read it, for people."""
        first = ".".join(map(str, self.since)) if self.since else "-"
        last = ".".join(map(str, self.until)) if self.until else ""
        return (
            first
            if not self.since or first == last
            else f"{first} to {last}"
            if last
            else f"{first} on"
        )


_TABLE: tuple[tuple[Effect, str, str], ...] = (
    (
        "obeyed",
        "permitted algorithms and protocols",
        "ALGO@2.5 PROTO@2.5",
    ),
    (
        "obeyed",
        "channels of rings and trees",
        "MIN_NCHANNELS@2.5 MAX_NCHANNELS@2.5 MIN_NRINGS@2.4 MAX_NRINGS@2.4",
    ),
    (
        "obeyed",
        "channels of all algorithms, including NVLS and symmetric kernels",
        "MIN_CTAS@2.17 MAX_CTAS@2.17",
    ),
    (
        "obeyed",
        "threads per CTA, bytes per thread before another channel",
        "NTHREADS@2.4 LL128_NTHREADS@2.5 THREAD_THRESHOLDS@2.5",
    ),
    (
        "obeyed",
        "FIFO of Simple, chunks of collectives and messages",
        "BUFFSIZE@2.4",
    ),
    (
        "obeyed",
        "FIFO of the protocol, chunks of collectives only",
        "LL_BUFFSIZE@2.7 LL128_BUFFSIZE@2.7",
    ),
    (
        "obeyed",
        "chunks of sends and receives",
        "P2P_NVL_CHUNKSIZE@2.16 P2P_PCI_CHUNKSIZE@2.16 P2P_NET_CHUNKSIZE@2.14",
    ),
    (
        "obeyed",
        "P2P transport: search and data (topology key p2p_level)",
        "P2P_LEVEL@2.4 P2P_DISABLE@2.4",
    ),
    (
        "obeyed",
        "NVLink through another GPU: search and data (topology key p2p_level)",
        "NVB_DISABLE@2.9",
    ),
    (
        "obeyed",
        "host memory between ranks of a node (topology key shm)",
        "SHM_DISABLE@2.4",
    ),
    (
        "obeyed",
        "GPUDirect: search and data (topology key gdr_level)",
        "NET_GDR_LEVEL@2.4",
    ),
    (
        "obeyed",
        "GPUDirect of the sender (topology key gdr_read)",
        "NET_GDR_READ@2.4",
    ),
    (
        "obeyed",
        "NICs of other GPUs over NVLink: search and data (topology key pxn)",
        "PXN_DISABLE@2.12",
    ),
    (
        "obeyed",
        "NICs by which rings enter and leave a node",
        "CROSS_NIC@2.5",
    ),
    (
        "obeyed",
        "NICs in use: search and data",
        "IB_HCA@2.4",
    ),
    (
        "obeyed",
        "verbs; refused if nodes would use sockets on such NICs",
        "IB_DISABLE@2.4 NET@2.10",
    ),
    (
        "obeyed",
        "racks as one node; refused if their hosts would be nodes",
        "MNNVL_ENABLE@2.21",
    ),
    (
        "obeyed",
        "network overhead of the cost model",
        "NET_OVERHEAD@2.18",
    ),
    (
        "obeyed",
        "NVLS: use, channels, chunks",
        "NVLS_ENABLE@2.17 NVLS_NCHANNELS@2.17 NVLS_CHUNKSIZE@2.21 NVLSTREE_MAX_CHUNKSIZE@2.20",
    ),
    (
        "obeyed",
        "CollNet: use, minimum of nodes",
        "COLLNET_ENABLE@2.6 COLLNET_NODE_THRESHOLD@2.9",
    ),
    (
        "obeyed",
        "PAT: use",
        "PAT_ENABLE@2.23",
    ),
    (
        "obeyed",
        "symmetric kernels: use, choice, CTAs",
        "SYM_KERNEL@2.27 SYM_CTAS@2.27-2.30 WIN_ENABLE@2.27 CUMEM_ENABLE@2.18",
    ),
    (
        "no effect",
        "logs and dumps",
        "DEBUG@2.4 DEBUG_SUBSYS@2.4 DEBUG_FILE@2.4 DEBUG_LEVELS@2.32 "
        "DEBUG_TIMESTAMP_FORMAT@2.26 DEBUG_TIMESTAMP_LEVELS@2.26 WARN_ENABLE_DEBUG_INFO@2.19 "
        "SET_THREAD_NAME@2.12 TOPO_DUMP_FILE@2.6 TOPO_DUMP_FILE_RANK@2.6 GRAPH_DUMP_FILE@2.6 "
        "GRAPH_DUMP_FILE_RANK@2.6 PROXY_DUMP_SIGNAL@2.14 PROXY_PROFILE@2.12-2.22 "
        "RMA_PROXY_DUMP_SIGNAL@2.29 REPORT_CONNECT_PROGRESS@2.19 NVTX_DISABLE@2.28 "
        "PARAM_DUMP_ALL@2.30 IB_WQE_LATENCY_REPORT@2.31 IB_WQE_LATENCY_THRESHOLD_NS@2.31 "
        "PROGRESS_COUNTERS@2.32 PROGRESS_COUNTER_MONITOR_POLL_MS@2.32 "
        "PROGRESS_COUNTER_MONITOR_STALE_MS@2.32 PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC@2.32 "
        "IB_WARN_RAIL_LOCAL@2.24",
    ),
    (
        "no effect",
        "checks and diagnostics",
        "CHECK_POINTERS@2.4 CHECK_MODE@2.29 ENABLE_VERSION_CHECK@2.29 "
        "IGNORE_COLLNET_MISMATCH@2.30 IGNORE_NET_MISMATCH@2.30 RUN_DIAGNOSTICS@2.31 "
        "RUN_RAS_DIAGNOSTICS@2.31 DIAGNOSTICS_ECC_THRESHOLD@2.31 "
        "DIAGNOSTICS_IB_BW_TIMEOUT@2.32 RAS_ADDR@2.24 RAS_ENABLE@2.24 RAS_TIMEOUT_FACTOR@2.24 "
        "LAUNCH_RACE_FATAL@2.26 IB_RETURN_ASYNC_EVENTS@2.23 IGNORE_DISABLED_P2P@2.12",
    ),
    (
        "no effect",
        "set-up before the first collective",
        "SOCKET_IFNAME@2.4 SOCKET_FAMILY@2.4 SOCKET_RETRY_CNT@2.24 "
        "SOCKET_RETRY_SLEEP_MSEC@2.24 SOCKET_POLL_TIMEOUT_MSEC@2.29 SOCKET_MAGIC@2.30-2.30 "
        "COMM_ID@2.4 HOSTID@2.5 CONF_FILE@2.23 NO_CACHE@2.29 COMM_BLOCKING@2.14 "
        "OOB_NET_ENABLE@2.23 OOB_NET_IFNAME@2.23 RUNTIME_CONNECT@2.22 "
        "CONNECT_ROUND_MAX_PEERS@2.19 UID_STAGGER_RATE@2.23 UID_STAGGER_THRESHOLD@2.23 "
        "NVB_PRECONNECT@2.9 IPC_USE_ABSTRACT_SOCKET@2.29-2.30 COMM_SPLIT_SHARE_RESOURCES@2.18 "
        "COMM_SHRINK_SHARE_RESOURCES@2.27 MNNVL_UUID@2.25 MNNVL_CLIQUE_ID@2.23",
    ),
    (
        "no effect",
        "the topology's NICs define the transport",
        "NET_PLUGIN@2.11 NET_PLUGIN_REF_COUNT@2.26 ENV_PLUGIN@2.28 GIN_PLUGIN@2.29 "
        "GIN_PLUGIN_REF_COUNT@2.29 RMA_PLUGIN@2.30 RMA_PLUGIN_REF_COUNT@2.30 "
        "PROFILER_PLUGIN@2.23",
    ),
    (
        "no effect",
        "use --algorithm, --channels or NCCL_ALGO instead",
        "TUNER_PLUGIN@2.19",
    ),
    (
        "no effect",
        "memory of communicators is not modelled",
        "CUMEM_HOST_ENABLE@2.23 WORK_FIFO_BYTES@2.22 WORK_FIFO_DEPTH@2.13-2.21 "
        "WORK_ARGS_BYTES@2.22 ALLOC_P2P_NET_LL_BUFFERS@2.14 DISABLE_MEM_MANAGER@2.29 "
        "SHADOW_MEMPOOL_MAX_SIZE@2.30 WIN_STRIDE@2.27 SYM_REUSE_SYSMEM_HANDLES@2.30 "
        "CUDA_PATH@2.13-2.20 IBVERBS_LIB@2.30 DMABUF_ENABLE@2.13 "
        "GDRCOPY_USE_INTERNAL_DMABUF@2.31 NET_SHARED_BUFFERS@2.8 NET_SHARED_COMMS@2.12 "
        "P2P_MAX_PEERS@2.30 IB_DATA_DIRECT@2.27 MLOPART_RDMA_ENABLE@2.30-2.31",
    ),
    (
        "no effect",
        "buffers are registered only with --symmetric",
        "GRAPH_REGISTER@2.11 LOCAL_REGISTER@2.19 LEGACY_CUDA_REGISTER@2.24 "
        "SINGLE_PROC_MEM_REG_ENABLE@2.28 MULTI_SEGMENT_REGISTER@2.29 "
        "ELASTIC_BUFFER_REGISTER@2.30 NVLS_UB_SIZE@2.32",
    ),
    (
        "no effect",
        "clusim uses measured launch overheads",
        "LAUNCH_MODE@2.4 LAUNCH_ORDER_IMPLICIT@2.26 CGA_CLUSTER_SIZE@2.15 "
        "MEM_SYNC_DOMAIN@2.16 SET_STACK_SIZE@2.9 SET_CPU_STACK_SIZE@2.28 "
        "L1_SHARED_MEMORY_CARVEOUT@2.12 GRAPH_MIXING_SUPPORT@2.13 GRAPH_HELPER_DISABLE@2.11 "
        "GRAPH_STREAM_ORDERING@2.30 GROUP_CUDA_STREAM@2.4 CREATE_THREAD_CONTEXT@2.13-2.30 "
        "IGNORE_CPU_AFFINITY@2.4 PROXY_CPUSET@2.28 PROXY_APPEND_BATCH_SIZE@2.16 "
        "PROGRESS_APPENDOP_FREQ@2.16 AGG_CHANNEL_SIZE@2.10-2.19 ENQUEUE_REARCH_ENABLE@2.31 "
        "P2P_EPOCH_ENABLE@2.29",
    ),
    (
        "no effect",
        "the topology defines InfiniBand paths and costs",
        "IB_TIMEOUT@2.4 IB_RETRY_CNT@2.4 IB_GID_INDEX@2.4 IB_ROUTABLE_FLID_GID_INDEX@2.22 "
        "IB_ROCE_VERSION_NUM@2.21 IB_ADDR_FAMILY@2.21 IB_ADDR_RANGE@2.21 IB_TC@2.4 "
        "IB_FIFO_TC@2.22 IB_TC_DEFAULT@2.31 IB_SL@2.4 IB_SL_DEFAULT@2.31 IB_PKEY@2.8 "
        "IB_PKEY_VALUE@2.31 IB_USE_INLINE@2.8 IB_PCI_RELAXED_ORDERING@2.12 "
        "IB_ADAPTIVE_ROUTING@2.16 IB_AR_THRESHOLD@2.6 IB_QPS_PER_CONNECTION@2.10 "
        "IB_SPLIT_DATA_ON_QPS@2.18 IB_ECE_ENABLE@2.23 IB_OOO_RQ@2.30 IB_EVENT_BASED_LB@2.31 "
        "IB_EVENT_BASED_LB_REMOTE@2.31 IB_MQP_RETRY_ALL@2.24 IB_MQP_RETRY_CNT@2.24 "
        "IB_MQP_RETRY_SLEEP_MSEC@2.24 IB_DEVICE_PCI_ORDER@2.29 IB_QUERY_PORT_SPEED@2.30 "
        "IB_PREPOST_RECEIVE_WORK_REQUESTS@2.29 IB_RECEIVER_SIDE_MATCHING_SCHEME@2.29 "
        "IB_SUBNET_AWARE_ROUTING@2.30 IB_SUBNET_PREFIX_LEN@2.30 IB_MLX_VENDOR_ID@2.32 "
        "NET_OPTIONAL_RECV_COMPLETION@2.24 NET_FORCE_FLUSH@2.15",
    ),
    (
        "no effect",
        "recovery from NIC faults is not simulated",
        "IB_RESILIENCY_PORT_FAILOVER@2.29 IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS@2.29 "
        "IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY@2.29 IB_RESILIENCY_PORT_RECOVERY@2.30 "
        "IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT@2.30 "
        "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL@2.30 "
        "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE@2.30 "
        "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE@2.30 "
        "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT@2.30 "
        "IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX@2.30 "
        "IB_RESILIENCY_PORT_RECOVERY_START_DELAY@2.30",
    ),
    (
        "no effect",
        "NICs are separate devices unless their plugin groups them",
        "IB_MERGE_NICS@2.20 IB_MERGE_VFS@2.18 IB_SORT_MERGE_NICS@2.32",
    ),
    (
        "no effect",
        "socket costs are measured with default settings",
        "SOCKET_NTHREADS@2.4 NSOCKS_PERTHREAD@2.4 SOCKET_INLINE@2.27 SOCKET_MIN_TASKSIZE@2.27 "
        "SOCKET_RCVBUF@2.27 SOCKET_SNDBUF@2.27",
    ),
    (
        "no effect",
        "GDRCopy is not modelled",
        "GDRCOPY_ENABLE@2.9 GDRCOPY_FIFO_ENABLE@2.9 GDRCOPY_FLUSH_ENABLE@2.9 "
        "GDRCOPY_SYNC_ENABLE@2.12",
    ),
    (
        "no effect",
        "P2P is never direct with one process per GPU",
        "P2P_DIRECT_DISABLE@2.12",
    ),
    (
        "no effect",
        "NICs between ranks of one node are not simulated",
        "NET_DISABLE_INTRA@2.12",
    ),
    (
        "no effect",
        "device-initiated and one-sided communication is not simulated",
        "DEV_API_JIT@2.30 GDAKI_USE_RELIABLE_DB@2.29 GDAKI_FORCE_MCST@2.32 GIN_ENABLE@2.28 "
        "GIN_TYPE@2.28 GIN_ERROR_QUERY_SEC@2.28 GIN_EXCLUSIVE_CONTEXTS@2.29-2.29 "
        "GIN_GDAKI_MAX_DEST_RD_ATOMIC@2.30 GIN_GDAKI_MAX_QP_RD_ATOMIC@2.30 "
        "GIN_GDAKI_NIC_HANDLER@2.28 GIN_GDAKI_QP_DEPTH@2.28 GIN_GDAKI_LAG_AWARE_DISABLE@2.32 "
        "GIN_IB_TC@2.30 GIN_IB_OOO_OPT@2.31 GIN_NCONNECTIONS@2.29 GIN_NCONTEXTS@2.28-2.29 "
        "GIN_COUNTER_POOL_SIZE@2.28-2.29 GIN_SIGNAL_POOL_SIZE@2.28-2.29 "
        "GIN_PROXY_NTHREADS@2.31 GIN_PROXY_POLL_BATCH@2.31 GIN_PROXY_QUEUE_SIZE@2.28 "
        "LSA_TEAM_SIZE@2.29 NUM_RMA_CTX@2.29 NUM_RMA_INT_CTX@2.31 RMA_DISABLE@2.30 "
        "RMA_EAGER_INIT@2.31 RMA_IB_WR_BATCHSIZE@2.32 RMA_MULTI_CTX_THRESHOLD@2.31 "
        "RMA_PROXY_QUEUE_SIZE@2.29 SYM_GIN_KERNELS_ENABLE@2.29 SYM_RS_GIN_CHUNK_SIZE@2.30 "
        "ALLGATHERV_ENABLE@2.29 CFT_ENABLE@2.31 HIER_CE_COLL_NUM_CTX@2.31 "
        "HIER_CE_COLL_AG_RAIL_RING_ENABLE@2.32",
    ),
    (
        "no effect",
        "multi-instance GPUs are not modelled",
        "MULTI_RANK_GPU_ENABLE@2.30 NET_GDR_MLOPART@2.30-2.31 TOPO_SPLIT_MLOPART@2.30",
    ),
    (
        "refused",
        "use the file as the topology",
        "TOPO_FILE@2.6",
    ),
    (
        "refused",
        "fixed graphs are not supported",
        "GRAPH_FILE@2.6",
    ),
    (
        "refused",
        "channels of sends and receives follow from the topology",
        "MIN_P2P_NCHANNELS@2.7=1 MAX_P2P_NCHANNELS@2.7=64 NCHANNELS_PER_NET_PEER@2.12 "
        "UNPACK_DOUBLE_NCHANNELS@2.22=1 P2P_PER_CHANNEL_NET_BW@2.29=14 "
        "P2P_PER_CHANNEL_REG_NET_BW@2.31 P2P_SCHEDULE_GROUP_SIZE@2.28=8 "
        "NVLINK_UTIL_CENTRIC_SCHED_ENABLE@2.27=0",
    ),
    (
        "refused",
        "sends and receives use LL up to 16 KiB per channel",
        "P2P_LL_THRESHOLD@2.14=16384",
    ),
    (
        "refused",
        "NCCL derives the chunks of collectives",
        "CHUNK_SIZE@2.12=0 PAT_NDIMS@2.31",
    ),
    (
        "refused",
        "copy engines are not simulated",
        "P2P_USE_CUDA_MEMCPY@2.13=0 SHM_USE_CUDA_MEMCPY@2.13-2.30=0 "
        "SHM_MEMCPY_MODE@2.13-2.30=1 CE_CHUNK_SIZE@2.32 CE_COLL_AG_MULTICAST_THRESHOLD@2.31 "
        "CE_INTRA_GPU_MEMCPY_ENABLE@2.32 SYM_CE_THRESHOLD@2.29=8388608",
    ),
    (
        "refused",
        "set the topology key p2p instead",
        "P2P_READ_ENABLE@2.7",
    ),
    (
        "refused",
        "shared host memory belongs to the receiver",
        "SHM_LOCALITY@2.13=2",
    ),
    (
        "refused",
        "sends and receives use PXN if the network requires it; NCCL_PXN_DISABLE=1 prevents it",
        "P2P_PXN_LEVEL@2.12=2",
    ),
    (
        "refused",
        "only the defaults are simulated on coherent CPU links",
        "NET_GDR_C2C@2.26=1 PXN_C2C@2.27=1 LL128_C2C@2.27=1",
    ),
    (
        "refused",
        "set the NIC's topology key flush instead",
        "GDR_FLUSH_DISABLE@2.4=0",
    ),
    (
        "refused",
        "plugins group NICs that share a port or GPU",
        "NET_MERGE_LEVEL@2.24 NET_MERGE_POLICY@2.30 NET_FORCE_MERGE@2.24 "
        "NETDEVS_POLICY@2.28=AUTO IB_RAIL_POLICY@2.32 IB_VR_RAILS_PER_SOCKET@2.32 "
        "IB_VR_SOCKET_COUNT@2.32",
    ),
    (
        "refused",
        "racks are searched with NCCL's defaults",
        "MNNVL@2.20-2.20=-2 MNNVL_CROSS_CLIQUE@2.30=0 MNNVL_RAIL_PER_HOST@2.28=0 "
        "MNNVL_SCATTER_NETS_ENABLE@2.27=1 TOPO_SCATTER_START_NET@2.31-2.31",
    ),
    (
        "refused",
        "other policies (CTAs, copy engines) are not simulated",
        "CTA_POLICY@2.27=0,DEFAULT",
    ),
    (
        "refused",
        "only default symmetric kernels are simulated",
        "SYM_NOWIN_ENABLE@2.29-2.30=0 SYM_TMA_ENABLE@2.30=0",
    ),
    (
        "no effect",
        "read by PyTorch, not by NCCL",
        "ASYNC_ERROR_HANDLING BLOCKING_WAIT",
    ),
    (
        "no effect",
        "read by releases before 2.4 only",
        "IB_CUDA_SUPPORT SINGLE_RING_THRESHOLD",
    ),
    (
        "refused",
        "only 2.4 reads it; use NCCL_ALGO=Ring or Tree",
        "TREE_THRESHOLD@2.4-2.4 LL_THRESHOLD@2.4-2.4",
    ),
)
"""Effect, reason, and names without ``NCCL_``: ``NAME@first-last=harmless values``."""


def _variables() -> dict[str, Variable]:
    result = {}
    for effect, reason, names in _TABLE:
        for word in names.split():
            head, _, harmless = word.partition("=")
            name, _, releases = head.partition("@")
            first, _, last = releases.partition("-")
            since, until = (_release(text) for text in (first, last))
            values = tuple(harmless.split(",")) if harmless else ()
            full = f"NCCL_{name}"
            result[full] = Variable(full, effect, reason, since, until, values)
    return dict(sorted(result.items()))


def _release(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if minor else None


VARIABLES = _variables()
"""Every variable by its name."""

_HEADS: dict[Effect, str] = {
    "obeyed": "controls",
    "no effect": "reason",
    "refused": "reason",
}


def page() -> str:
    """Return the page of the documentation."""
    counts = [sum(v.effect == effect for v in VARIABLES.values()) for effect in _HEADS]
    lines = [
        "# Environment variables of NCCL",
        "",
        "Look up the effect of `--env NAME=VALUE` in `run`, `explain`, `nccl-tests`, `sweep` and `what-if`, and of the",
        "environment in a replayed log. [nccl.md](nccl.md#environment) has the syntax.",
        "This page is generated from `pysim/clusim/nccl/variables.py`.",
        "",
        f"The table has {len(VARIABLES)} variables: all that NCCL 2.18 to 2.32 reads, and some older variables.",
        f"{counts[0]} are obeyed; {counts[1]} are accepted without effect, and results list them; {counts[2]} are",
        "refused, except for NCCL's default (in brackets). Other names are errors.",
    ]
    for effect, head in _HEADS.items():
        lines += [
            "",
            f"## {effect.capitalize()}",
            "",
            f"| variable | releases | {head} |",
            "|---|---|---|",
        ]
        for variable in VARIABLES.values():
            if variable.effect == effect:
                default = f" ({' or '.join(variable.harmless)})" if variable.harmless else ""
                lines.append(
                    f"| `{variable.name}`{default} | {variable.releases} | {variable.reason} |"
                )
    return "\n".join(lines) + "\n"
