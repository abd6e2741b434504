"""Which image of a node class an instance type boots."""

from __future__ import annotations

from collections.abc import Iterable

from reconciler.model.instancetype import InstanceType
from reconciler.model.labels import WELL_KNOWN_AWS
from reconciler.model.nodeclass import AMI
from reconciler.model.nodepool import requirements_of


def image_for(amis: Iterable[AMI], kind: InstanceType) -> AMI | None:
    """Return the first image whose requirements the type meets; the status lists newest first."""
    return next(
        (
            ami
            for ami in amis
            if kind.requirements.compatible(requirements_of(ami.requirements), WELL_KNOWN_AWS)
        ),
        None,
    )
