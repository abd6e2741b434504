"""Ages of the known facts about AWS: the lock of the folder, and answers cached with the state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from reconciler.cli.shared import records

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.cli.shared.request import StateRequest

_NAMES: Final = {"types": "instanceTypes", "on-demand": "onDemandPrices", "spot": "spotPrices"}
_TITLES: Final = {
    "lock": "locked",
    "instanceTypes": "instance types",
    "onDemandPrices": "on-demand prices",
    "spotPrices": "spot prices",
}


def known_at(request: StateRequest) -> dict[str, datetime]:
    """Return when each fact was read, without the data bundled with the release."""
    from reconciler.adapters.aws.facts.latest import folder_of, kept_at

    resolved = records.settings_of(request)
    locked = _locked_at(request.path)
    found = {"lock": locked} if locked is not None else {}
    folder = folder_of(resolved.settings, records.cache_place(request.path, resolved))
    for name, at in kept_at(folder).items():
        found[_NAMES[name]] = at
    return found


def _locked_at(path: str | None) -> datetime | None:
    from reconciler.desired.lock import Lock, read_lock
    from reconciler.source.resource import LOCK_FILE

    try:
        content = (Path(path or ".") / LOCK_FILE).read_bytes()
    except OSError:
        return None
    lock = read_lock(content)
    return lock.locked_at if isinstance(lock, Lock) else None


def document(known: dict[str, datetime]) -> dict[str, Any]:
    """Return the times as in JSON."""
    from reconciler.cli.output.listing import stamp

    return {name: stamp(at) for name, at in known.items()}


def ages(known: dict[str, datetime], now: datetime) -> str:
    """Return the ages in one line, empty where everything is as bundled."""
    from reconciler.plan.render.wording import format_age

    return ", ".join(f"{_TITLES[name]} {format_age(at, now)}" for name, at in known.items())
