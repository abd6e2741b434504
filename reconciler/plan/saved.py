"""The file of a saved plan: the plan as JSON, with a digest over everything else in the file.

The digest finds a damaged or edited file; it is not a signature, and whoever can write the file can
write the digest. What protects a fleet from a forged plan is that `apply` plans again and carries
out only its own result (``approval``).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import msgspec

from reconciler.model.errors import UnreadableError
from reconciler.plan.plan import API_VERSION, DIGEST_LENGTH, Plan, from_json, to_json
from reconciler.plan.summary import summary_of

SIZE_MAX: Final = 256 * 1024 * 1024
"""Bytes of the largest file that is read; a plan of 10,000 nodes has about a tenth of it."""

_SAVE: Final = "save it again with `reconciler plan --out FILE`"


def encode_saved(plan: Plan) -> bytes:
    """Return the file of a plan: one line of JSON, keys sorted, with its ``digest``.

    Its ``summary`` follows from the rest and is there for those who read nothing else.
    """
    content = to_json(plan)
    fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    fields["summary"] = msgspec.Raw(_summary(plan))
    fields["digest"] = msgspec.Raw(msgspec.json.encode(_digest(content)))
    return msgspec.json.encode(fields, order="sorted")


def read_saved(content: bytes, source: str) -> Plan:
    """Return the plan that ``encode_saved`` wrote.

    Formatting does not matter; any other change to the content does.

    Raises:
        UnreadableError: the file is not a saved plan of this release, or not as it was saved.
    """
    if len(content) > SIZE_MAX:
        raise UnreadableError(
            f"the file is larger than {SIZE_MAX // 2**20} MiB, the maximum size of a saved plan",
            where=source,
        )
    plan = from_json(content, source)
    try:
        stated: dict[str, Any] = msgspec.json.decode(content)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise UnreadableError(f"not a plan: {error}", where=source, remedy=_SAVE) from error
    digest = stated.pop("digest", None)
    if digest is None:
        raise UnreadableError("the plan has no digest", where=source, remedy=_SAVE)
    summary = stated.pop("summary", None)
    if summary is not None and summary != msgspec.json.decode(_summary(plan)):
        raise UnreadableError(
            "the plan was changed after it was saved: its summary is that of another plan",
            where=source,
            remedy=_SAVE,
        )
    own = to_json(plan)
    if digest != _digest(own):
        found = str(digest)[:DIGEST_LENGTH]
        raise UnreadableError(
            f"the plan was changed after it was saved: it states the digest {found!r}, "
            f"but its content has {_digest(own)[:DIGEST_LENGTH]!r}",
            where=source,
            remedy=_SAVE,
        )
    if stated != msgspec.json.decode(own):
        raise UnreadableError(
            f"the plan has fields that are unknown in {API_VERSION}",
            where=source,
            remedy=_SAVE,
        )
    if not isinstance(plan.approved_as, msgspec.UnsetType):
        raise UnreadableError("the plan has been applied already", where=source, remedy=_SAVE)
    return plan


def _summary(plan: Plan) -> bytes:
    return msgspec.json.encode(summary_of(plan), order="sorted")


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()
