"""Workloads of SimAI and AICB."""

from __future__ import annotations

from clusim.formats.recordings.kind import RecordingKind

KIND = RecordingKind(
    "workloads of SimAI and AICB",
    begins=(
        (
            7,
            rb"\A\s*HYBRID_TRANSFORMER_FWD_IN_BCKWD[ \t]+(?:model_parallel_NPU_group|all_gpus|ep|pp)\s*:",
        ),
        # ASTRA-sim's HYBRID_TRANSFORMER has only model_parallel_NPU_group.
        (7, rb"\A\s*HYBRID_TRANSFORMER[ \t][^\n]*?\b(?:all_gpus|ep|pp|vpp|ga|pp_comm)\s*:"),
        (7, rb"\A\s*(?:\[[^\n]*\n)?\s*comm_type,comm_group,(?:comm_group_size,)?msg_size"),
    ),
    read_by="clusim.formats.recordings.simai",
)
