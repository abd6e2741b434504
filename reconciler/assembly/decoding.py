"""Prepares all decoders of the engine before several threads decode.

msgspec derives the facts about a type when it is first decoded, and publishes them before they are
complete. A second thread that decodes the same type meanwhile crashes the process (seen with 0.22:
a segmentation fault in ``msgspec.convert``).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Final

import msgspec

PREPARED: Final = (
    "reconciler.model",
    "reconciler.desired",
    "reconciler.observed",
    "reconciler.catalog",
    "reconciler.placement",
    "reconciler.disruption",
    "reconciler.plan",
    "reconciler.ports",
    "reconciler.engine",
    "reconciler.notifications",
    "reconciler.adapters.aws",
    "reconciler.adapters.database",
    "reconciler.adapters.kubernetes",
    "reconciler.adapters.simulated.cluster",
    "reconciler.adapters.simulated.pods",
    "reconciler.adapters.simulated.records",
)
"""The packages and modules whose types a daemon decodes."""


@cache
def prepare_decoders() -> None:
    """Import the modules of a daemon, and prepare the decoding of each of their types.

    A module whose extra is not installed decodes nothing and is skipped.
    """
    for name in PREPARED:
        module = import_module(name)
        for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            with suppress(ImportError):
                import_module(found.name)
    for kind in tuple(_structs(msgspec.Struct)):
        # A type whose names cannot be resolved, or that is a union without tags, is never decoded.
        with suppress(NameError, TypeError):
            msgspec.json.Decoder(kind)


def _structs(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for derived in kind.__subclasses__():
        if derived.__module__.startswith("reconciler."):
            yield derived
        yield from _structs(derived)
