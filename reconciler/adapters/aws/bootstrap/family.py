"""Select the user data module of an image family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from reconciler.adapters.aws.bootstrap import al2, al2023, bottlerocket, windows
from reconciler.adapters.aws.bootstrap.setup import Setup


def _untouched(setup: Setup) -> str:
    """Custom images get the user's data unchanged."""
    return setup.custom


_WRITERS: Final[Mapping[str, Callable[[Setup], str]]] = {
    "AL2": al2.user_data,
    "AL2023": al2023.user_data,
    "Bottlerocket": bottlerocket.user_data,
    "Windows2019": windows.user_data,
    "Windows2022": windows.user_data,
    "Windows2025": windows.user_data,
    "Custom": _untouched,
}


def user_data(family: str, setup: Setup) -> str:
    """Return the user data of a node as text, empty if there is none."""
    return _WRITERS[family](setup)
