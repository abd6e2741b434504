"""Captured objects without names, except for the names in the fleet's own files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from reconciler.cli.shared.request import FleetRequest
    from reconciler.model.json import JsonDict
    from reconciler.observed.anonymity import Anonymizer
    from reconciler.observed.snapshot import Snapshot

KEY_VARIABLE: Final = "RECONCILER_ANONYMIZE_KEY"


def read_key() -> bytes | None:
    """Return the key of the environment, None without one.

    Raises:
        UsageError: it is too short to keep names secret.
    """
    from reconciler.model.errors import UsageError
    from reconciler.observed.anonymity import KEY_BYTES_MIN

    text = os.environ.get(KEY_VARIABLE)
    if text is None:
        return None
    key = text.strip().encode()
    if len(key) < KEY_BYTES_MIN:
        raise UsageError(
            f"the key has {len(key)} bytes, fewer than {KEY_BYTES_MIN}",
            where=KEY_VARIABLE,
            remedy="use the output of `openssl rand -hex 32`, or unset it for a random key",
        )
    return key


def anonymous(
    items: Iterable[object], fleet: FleetRequest, *, has_fleet: bool
) -> Sequence[JsonDict]:
    """Return captured objects without names, as ``observed.anonymity`` describes.

    What the files of the fleet name stays. Where there are none, what the NodePools, NodeOverlays
    and EC2NodeClasses of the cluster name stays.

    Raises:
        UsageError: the key is too short.
        ReconcilerError: the fleet cannot be read.
    """
    import msgspec

    from reconciler.cli.wiring.capturing import objects_of_snapshot
    from reconciler.observed.anonymity import Anonymizer, comparing, vocabulary_of
    from reconciler.observed.snapshot import read_snapshot

    key = read_key()
    content = msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": list(items)})
    snapshot = read_snapshot(content, "the captured objects")
    objects = [
        msgspec.json.decode(msgspec.json.encode(item)) for item in objects_of_snapshot(snapshot)
    ]
    configured = [*_of_fleet(fleet), *objects] if has_fleet else objects
    anonymizer = Anonymizer(
        key or os.urandom(32),
        vocabulary_of(configured, _catalog(fleet)),
        comparing(objects),
        in_order=key is None,
    )
    found = anonymizer.objects(objects)
    _restate_pods(found, snapshot, anonymizer)
    return found


def _restate_pods(objects: Iterable[JsonDict], snapshot: Snapshot, anonymizer: Anonymizer) -> None:
    """Replace the digest of the old pod names in NodeClaims with that of the new names.

    Otherwise every node would look as if its pods had just changed, and would not be consolidated.
    """
    from reconciler.engine.steps.lifecycle import PODS_SEEN, pods_digest

    nodes = {n.spec.provider_id: n.name for n in snapshot.nodes if n.spec.provider_id}
    holding = snapshot.indexed_pods.holding
    digests: dict[tuple[str, str], str] = {}
    for claim in snapshot.node_claims:
        pods = holding.get(nodes.get(claim.status.provider_id, ""), ())
        renamed = pods_digest(map(anonymizer.name, pods))
        digests[anonymizer.name(claim.name), pods_digest(pods)] = renamed
    for item in objects:
        if item["kind"] == "NodeClaim":
            name = item["metadata"]["name"]
            for condition in item.get("status", {}).get("conditions", ()):
                if condition["type"] == PODS_SEEN:
                    # of other pods: the digest still differs, and tells nothing
                    condition["reason"] = digests.get((name, condition["reason"]), "other-pods")


def _of_fleet(request: FleetRequest) -> list[JsonDict]:
    from reconciler.cli.shared.sources import read_source
    from reconciler.desired.fleet import read_fleet

    source = read_source(request)
    fleet, _ = read_fleet(source.files, refused=source.findings, any_class=True, allow_empty=True)
    settings = {**fleet.config, "kind": "Configuration"}
    return [settings, *(resource.data for resource in fleet.resources)]


def _catalog(request: FleetRequest) -> object:
    """Return the JSON of the user's own catalog, None without one."""
    import msgspec

    from reconciler.cli.shared.sources import read_bytes
    from reconciler.model.errors import UnreadableError

    if request.catalog is None:
        return None
    try:
        found: object = msgspec.json.decode(read_bytes(request.catalog))
    except msgspec.DecodeError as error:
        raise UnreadableError(
            f"not JSON: {error}", where=request.catalog, remedy="pass a catalog in JSON"
        ) from error
    return found
