"""Recordings and logs as schedules for a given system, for runs with other jobs."""

from __future__ import annotations

from dataclasses import replace

from clusim.base.errors import InputError
from clusim.formats.recordings.kinds import LOGS, kind_of
from clusim.jobs.write import Translation
from clusim.replays.full_job import place_recording, release_of, translate
from clusim.replays.placing import ReplayRequest
from clusim.replays.reading import read_recording, recording_of_logs
from clusim.topology import Fabric


def replay_schedule(
    files: tuple[str, ...], fabric: Fabric, policy: str = ""
) -> Translation:
    """Return the job of a recording or of NCCL logs as a schedule on a fabric, from its first node on.

    Collectives are planned for this system. Pauses of recordings are kept; logs are without pauses.

    Raises
    ------
    InputError
        The file cannot be replayed with all ranks, or has more ranks than the fabric.
    """
    is_log = kind_of(files[0]) in LOGS
    gap = "none" if is_log else "logged"
    request = ReplayRequest(files, topology=fabric, gap=gap, policy=policy)
    recording = recording_of_logs(request) if is_log else read_recording(request)
    if recording.alike:
        raise InputError(
            f"{files[0]}: one rank represents all {recording.num_ranks}; jobs need a recording of all ranks"
        )
    if recording.num_ranks > fabric.num_ranks:
        raise InputError(
            f"{files[0]}: has {recording.num_ranks} ranks, its nodes {fabric.num_ranks}; use more nodes"
        )
    version, _ = release_of(recording, request)
    system = place_recording(request, fabric, version, recording)
    return translate(
        recording, replace(request, replan=True), system, recorded=False
    )
