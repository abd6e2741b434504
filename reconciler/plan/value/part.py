"""What all parts of a plan share: frozen, and spelled as ``schemas/plan.v1.json`` spells them."""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a plan, in the spelling of its schema."""
