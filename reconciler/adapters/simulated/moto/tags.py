"""Tags of one resource, found by its id: moto searches those of all resources.

Every instance of a list asks for its own tags. With 300 instances, moto's search makes one
DescribeInstances last for seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from moto.ec2.models.tags import TagBackend

_BY_ID: Final = frozenset({"resource-id"})
_WILDCARDS: Final = frozenset("*?[\\")


def find_tags_by_id(backend: TagBackend) -> None:
    """Let a backend of moto answer ``describe_tags`` for ids from the tags of these alone."""
    from moto.ec2.models.tags import TagBackend

    search = backend.describe_tags

    def describe(filters: dict[str, list[str]] | None = None) -> list[dict[str, str]]:
        ids = (filters or {}).get("resource-id", ())
        if filters is None or filters.keys() != _BY_ID or any(_WILDCARDS & {*i} for i in ids):
            return search(filters)
        few = TagBackend()
        few.tags.update({i: backend.tags[i] for i in ids if i in backend.tags})
        return few.describe_tags({"resource-id": [*ids]})

    backend.describe_tags = describe  # type: ignore[method-assign]  # there is no other way in
