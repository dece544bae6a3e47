"""Systems with faster or slower links."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction

from clusim.base.units import Rate
from clusim.topology.model import Fabric


def with_faster_links(fabric: Fabric, what: str, factor: Fraction) -> Fabric:
    """Return a fabric with links `factor` times as fast; unchanged if no link matches.

    Parameters
    ----------
    what : str
        Link class, name or ends, with ``*`` for any text.
    """
    links, changed = [], False
    for link in fabric.links:
        names = (link.cls, link.name, f"{link.a}-{link.b}", f"{link.b}-{link.a}")
        mine = any(fnmatchcase(name, what) for name in names)
        changed |= mine
        rate = Fraction(link.rate.num, link.rate.den) * (factor if mine else 1)
        links.append(replace(link, rate=Rate(rate.numerator, rate.denominator)))
    return replace(fabric, links=tuple(links)) if changed else fabric
