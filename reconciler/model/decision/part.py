"""The base of all parts of a plan: frozen, with the field names of ``schemas/plan.v1.json``."""

from __future__ import annotations

from copy import copy
from typing import ClassVar, Self

import msgspec


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a plan, with the field names of its schema.

    A field named in ``left_out`` is not encoded while it is None, False or empty; all others always
    are.
    ``parts`` are the fields with parts that leave something out themselves.
    """

    left_out: ClassVar[tuple[str, ...]] = ()
    parts: ClassVar[tuple[str, ...]] = ()

    def omit_empty(self) -> Self:
        """Return the part for an encoder: UNSET in every field that is left out.

        Its fields may not have their declared types.
        """
        fresh = copy(self)
        for name in self.left_out:
            if _is_empty(getattr(self, name)):
                msgspec.structs.force_setattr(fresh, name, msgspec.UNSET)
        for name in self.parts:
            value: Part | tuple[Part, ...] | None = getattr(self, name)
            if isinstance(value, Part):
                msgspec.structs.force_setattr(fresh, name, value.omit_empty())
            elif value:
                msgspec.structs.force_setattr(fresh, name, tuple([v.omit_empty() for v in value]))
        return fresh


def _is_empty(value: object) -> bool:
    """Return whether a value is None, False or empty; zero is a value."""
    return value is None or value is False or (not value and value != 0)
