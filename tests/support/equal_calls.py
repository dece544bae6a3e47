"""Times of calls for laws of the clock of a program."""

from __future__ import annotations

from collections.abc import Sequence

from clusim.jobs.model import CallWork, LaunchWork
from clusim.jobs.player import ONE, BundleStart, CallBundle

CALL_PS = 500
"""Time of every call in isolation [ps]."""


class EqualCalls:
    """Calls of one time; calls that overlap are each as long as all of them."""

    sms, is_apart = 132, False

    def bundle(
        self,
        work: CallWork | LaunchWork,
        ranks: tuple[int, ...],
        groups: tuple[tuple[int, ...], ...],
        *,
        sole: bool,
    ) -> CallBundle:
        return CallBundle(groups, work)

    def isolated_ps(self, bundle: CallBundle) -> int:
        return CALL_PS

    def is_shared(self, one: CallBundle, other: CallBundle) -> bool:
        return True

    def ends_ps(self, island: Sequence[BundleStart]) -> list[int]:
        return [start.offset_ps + CALL_PS * len(island) for start in island]

    def rates16(self, bundles: Sequence[CallBundle]) -> list[int]:
        return [ONE // len(bundles)] * len(bundles)

    def held16(self, bundle: CallBundle) -> int:
        return 0
