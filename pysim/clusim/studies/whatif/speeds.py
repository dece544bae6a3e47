"""Systems with faster or slower links, and runs with other faster components."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction

from clusim.analysis.whatif import THINGS, Change, changed_image, factor_of
from clusim.base.errors import InputError
from clusim.base.units import Rate
from clusim.engine.image import DTYPES, Image
from clusim.simulation.job import Job
from clusim.topology import Fabric


class Speed:
    """Something that is `factor` times as fast: links by class or ends, or one of `clusim.analysis.whatif.THINGS`."""

    def __init__(self, what: str, factor: Fraction) -> None:
        self.what, self.factor = what, factor

    @property
    def of_links(self) -> bool:
        """True if links change, on which plans depend."""
        return self.what not in THINGS

    def machine(self, fabric: Fabric) -> Fabric:
        """Return a system with faster links; raises `InputError` if no link has that class or these ends."""
        links, found = [], False
        for link in fabric.links:
            names = (link.cls, link.name, f"{link.a}-{link.b}", f"{link.b}-{link.a}")
            mine = any(fnmatchcase(name, self.what) for name in names)
            found |= mine
            rate = Fraction(link.rate.num, link.rate.den) * (self.factor if mine else 1)
            links.append(replace(link, rate=Rate(rate.numerator, rate.denominator)))
        if not found:
            classes = ", ".join(sorted({link.cls for link in fabric.links}))
            raise InputError(
                f"{self.what} x{self.factor}: {fabric.name} has no such links; use a class ({classes}), ends such as"
                f" '{fabric.links[0].a}-{fabric.links[0].b}', or {', '.join(THINGS)}"
            )
        return replace(fabric, links=tuple(links))

    def job(self, job: Job) -> Job:
        """Return a run in which something is faster that no plan looks at."""
        arrays = {name: getattr(job.image, name) for name in DTYPES}
        fields = changed_image(arrays, Change(self.what, self.factor))
        fields = {name: values.astype(DTYPES[name]) for name, values in fields.items()}
        return replace(job, image=Image(nvc=job.image.nvc, seed=job.image.seed, **fields))


def speed_of(text: str) -> Speed | None:
    """Return the meaning of ``nvlink x2``; None for another text."""
    words = text.split()
    if len(words) != 2 or not words[1].lower().startswith("x"):
        return None
    return Speed(words[0], factor_of(text, words[1]))
