"""The threats of ``docs/security.md``, and the mark that assigns a test to one of them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import pytest

PROPERTY: Final = "attack"
"""The property of a test's report that names its threat and describes the attack."""


class Threat(Enum):
    """A threat; its value is the heading of its section in ``docs/security.md``."""

    GIT = "Code execution through git"
    PROCESSES = "Code execution through processes"
    RENDERING = "Programs and network access while rendering"
    PLAN = "Forged or stale saved plans"
    FILES = "Files written through links"
    NODES = "Commands of tenants on nodes"
    PODS = "Pods of one tenant against others"
    OWNERSHIP = "Instances and nodes of somebody else"
    SETTINGS = "Credentials and endpoints chosen by a repository"
    HIDDEN = "Changes that a reviewer cannot see"
    EXHAUSTION = "Inputs that stop the daemon or exhaust the machine"
    OUTPUT = "Commands injected through output"
    SECRETS = "Disclosure of secrets"
    CLOUD = "Excessive cloud permissions"
    CLUSTER = "Excessive rights in the cluster"
    SUPPLY_CHAIN = "Supply chain"


def attack(threat: Threat, description: str) -> Callable[[Any], Any]:
    """Mark a test as an attack of ``threat``.

    ``description`` names the attack in a noun phrase, as in "a clean filter in a bare repository
    inside the fleet folder". A parametrized test is one attack for each of its cases.
    """
    return pytest.mark.attack(threat, description)


def name_attack(item: pytest.Item) -> None:
    """Mark the reports of tests that are attacks, in whichever process they run."""
    mark = item.get_closest_marker("attack")
    if mark is not None:
        threat, description = mark.args
        callspec = getattr(item, "callspec", None)
        case = f" ({callspec.id})" if callspec is not None else ""
        item.user_properties.append((PROPERTY, f"{threat.name}: {description}{case}"))
