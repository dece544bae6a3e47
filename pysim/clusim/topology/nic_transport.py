"""Adapters that a description reaches by another transport than their base."""

from __future__ import annotations

from clusim.hardware import TRANSPORTS
from clusim.hardware.transport import MESSAGE_UNITS
from clusim.topology.schema import NicSpec


def carried_by(base: NicSpec, own: NicSpec) -> NicSpec:
    """Return `base` with what a message costs by the transport that `own` names, if it is another one."""
    if own.plugin is None or own.plugin == base.plugin:
        return base
    figures = TRANSPORTS[own.plugin].figures
    given = {key: figures[key].value for key in MESSAGE_UNITS if key in figures}
    cleared = {key: None for key in MESSAGE_UNITS if key not in figures}
    found = NicSpec.model_validate(given)
    return base.model_copy(
        update={**cleared, **{key: getattr(found, key) for key in given}, "plugin": own.plugin}
    )
