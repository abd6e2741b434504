"""The instance profile through which a machine gets the role of its class."""

from __future__ import annotations

import hashlib

from reconciler.model.nodeclass import EC2NodeClass
from reconciler.model.settings import Settings


def profile_name(node_class: EC2NodeClass, settings: Settings) -> str:
    """Return the name of the profile that carries the class's role, empty if it has none.

    It follows from cluster, region, class and role, so that it is found again; at most 128
    characters, as IAM allows.
    """
    role = node_class.spec.role
    if not role:
        return ""
    facts = f"{settings.region}/{node_class.name}/{role}"
    digest = hashlib.sha256(facts.encode()).hexdigest()[:20]
    return f"{settings.cluster_name[:100]}_{digest}"
