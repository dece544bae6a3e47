"""Faster components of a run with the same plan, in the words of ``clusim what-if``: ``nvlink x2``, ``cta x2``."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from clusim.analysis.whatif import THINGS, Change, changed_image, factor_of
from clusim.base.errors import InputError
from clusim.engine.image import DTYPES, image_of
from clusim.simulation.job import Job, RunOptions
from clusim.simulation.preparation import job_of
from clusim.simulation.request import ScheduleRequest
from clusim.topology import Fabric
from clusim.topology.changes import with_faster_links


class Speed:
    """Component that is `factor` times as fast.

    It is a class of links, links by their ends, or one of `clusim.analysis.whatif.THINGS`.
    """

    def __init__(self, hardware: str, factor: Fraction) -> None:
        self.what, self.factor = hardware, factor

    @property
    def words(self) -> str:
        """Return the words of ``clusim what-if``."""
        return f"{self.what} x{self.factor}"

    @property
    def of_links(self) -> bool:
        """True if links change, on which plans depend."""
        return self.what not in THINGS

    def machine(self, fabric: Fabric) -> Fabric:
        """Return a system with faster links; raise `InputError` if no link matches."""
        faster = with_faster_links(fabric, self.what, self.factor)
        if faster is fabric:
            classes = ", ".join(sorted({link.cls for link in fabric.links}))
            raise InputError(
                f"{self.words}: no matching links in {fabric.name}; use a class ({classes}), ends such as"
                f" '{fabric.links[0].a}-{fabric.links[0].b}', or {', '.join(THINGS)}"
            )
        return faster

    @property
    def change(self) -> Change:
        """Return the change of images, for a component other than links."""
        return Change(self.what, self.factor)

    def job(self, job: Job) -> Job:
        """Return a run with a faster component on which plans do not depend."""
        return changed_job(job, self.change)


def speed_of(text: str) -> Speed | None:
    """Return the change in ``nvlink x2``; None for other text."""
    words = text.split()
    if len(words) != 2 or not words[1].lower().startswith("x"):
        return None
    return Speed(words[0], factor_of(text, words[1]))


def changed_job(job: Job, change: Change) -> Job:
    """Return a run with a change of its image, and the rates of its wires."""
    arrays = {name: getattr(job.image, name) for name in DTYPES}
    fields = changed_image(arrays, change)
    image = image_of(fields, job.image.nvc, job.image.seed, job.image.senders)
    rate_Bps = image.wires["rate_num"] / image.wires["rate_den"] * 1e12
    return replace(job, image=image, wires=replace(job.wires, rate_Bps=rate_Bps))


def job_with(
    asked: ScheduleRequest,
    options: RunOptions,
    words: str,
    change: Change | None = None,
) -> Job:
    """Return the run of a schedule with a faster component, or with another `change` of its image.

    Faster links change flags and the cost of CTAs beside a NIC, so the schedule is lowered on the changed system.
    Without words the run is unchanged.
    """
    speed = speed_of(words)
    if speed is not None and speed.of_links:
        setup = asked.setup.on(speed.machine(asked.setup.fabric))
        return job_of(replace(asked, setup=setup), options)
    if speed is not None:
        change = speed.change
    job = job_of(asked, options)
    return job if change is None else changed_job(job, change)
