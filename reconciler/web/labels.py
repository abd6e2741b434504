"""What the dashboard calls reasons, events and inputs: words instead of the codes of the API."""

from __future__ import annotations

import re
from typing import Final

_REASONS: Final = {
    "Underutilized": "Consolidation",
    "Drifted": "Drift",
    "Empty": "Empty nodes",
    "Unschedulable": "Pending pods",
    "NodeClaimCreated": "NodeClaim created",
    "NodePoolDrifted": "NodePool changed",
    "NodeClassDrifted": "EC2NodeClass changed",
    "provision": "Launch",
    "catalog": "Instance types",
    "catalog-note": "Prices",
    "spot-estimated": "Spot prices",
}
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", re.ASCII)


def label_of(code: str) -> str:
    """Return a code as words: ``CommandStarted`` is "Command started"."""
    known = _REASONS.get(code)
    if known is not None or not code.isascii() or " " in code or not code:
        return known or code
    found = _WORDS.findall(code.replace("-", " "))
    first, *others = found or [code]
    return " ".join([first[0].upper() + first[1:], *(word.lower() for word in others)])
