"""Makes an object in git comparable with the same object in a cluster, as ``kubectl diff`` does.

The API server has filled in defaults, and controllers have added labels and annotations of their
own. Neither is a difference: applying the file would change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from reconciler.model.decode import decode_json
from reconciler.model.json import JsonDict, JsonObject
from reconciler.model.karpenter.labels import LAST_APPLIED
from reconciler.source.schema import value_at

_DISRUPTION: Final[Mapping[str, object]] = {
    "consolidateAfter": "0s",
    "consolidationPolicy": "WhenEmptyOrUnderutilized",
    "budgets": [{"nodes": "10%"}],
}
_BUDGET: Final[Mapping[str, object]] = {"nodes": "10%"}
_TEMPLATE: Final[Mapping[str, object]] = {"expireAfter": "720h"}
_METADATA_OPTIONS: Final[Mapping[str, object]] = {
    "httpEndpoint": "enabled",
    "httpProtocolIPv6": "disabled",
    "httpPutResponseHopLimit": 1,
    "httpTokens": "required",
}
"""The defaults in the definitions of Karpenter's kinds (``pkg/apis/crds`` of both projects)."""


def with_defaults(item: JsonObject) -> JsonDict:
    """Return an object with the defaults that the API server would fill in."""
    kind, spec = item.get("kind"), item.get("spec")
    if not isinstance(spec, Mapping):
        return dict(item)
    match kind:
        case "NodePool":
            return {**item, "spec": _default_pool(spec)}
        case "EC2NodeClass":
            options = _filled(spec.get("metadataOptions"), _METADATA_OPTIONS)
            return {**item, "spec": {**spec, "metadataOptions": options}}
    return dict(item)


def _default_pool(spec: Mapping[str, Any]) -> JsonDict:
    disruption = _filled(spec.get("disruption"), _DISRUPTION)
    budgets = disruption.get("budgets")
    if isinstance(budgets, list):
        disruption["budgets"] = [_filled(budget, _BUDGET) for budget in budgets]
    found = {**spec, "disruption": disruption}
    template = spec.get("template")
    if isinstance(template, Mapping):
        found["template"] = {**template, "spec": _filled(template.get("spec"), _TEMPLATE)}
    return found


def _filled(item: object, defaults: Mapping[str, object]) -> JsonDict:
    """Return a mapping with the defaults of its missing fields; another value is left out."""
    stated = item if isinstance(item, Mapping) else {}
    return {**defaults, **{key: value for key, value in stated.items() if value is not None}}


def as_managed(live: JsonObject, wanted: JsonObject | None) -> JsonDict:
    """Return the object of a cluster with the part of its metadata that git manages.

    Labels and annotations count if git sets them now, or has set them when ``kubectl apply`` last
    ran. The others are the bookkeeping of controllers: hashes, tracking ids, owners.
    """
    metadata = live.get("metadata") or {}
    stated = (wanted or {}).get("metadata") or {}
    applied = _last_applied(metadata)
    kept = {}
    for part in ("labels", "annotations"):
        managed = {*(stated.get(part) or {}), *(applied.get(part) or {})}
        kept[part] = {k: v for k, v in (metadata.get(part) or {}).items() if k in managed}
    return {**with_defaults(live), "metadata": {**metadata, **kept}}


def _last_applied(metadata: Mapping[str, Any]) -> JsonDict:
    """Return the metadata that ``kubectl apply`` last sent, empty if it was not used."""
    text = (metadata.get("annotations") or {}).get(LAST_APPLIED)
    if not isinstance(text, str):
        return {}
    try:
        found = value_at(decode_json(text), ("metadata",))
    except msgspec.DecodeError:
        return {}
    return dict(found) if isinstance(found, Mapping) else {}


def comparable_objects(live: Iterable[JsonObject], wanted: Iterable[JsonObject]) -> list[JsonDict]:
    """Return the objects of a cluster as they compare with those in git."""
    in_git = {(o["kind"], o["metadata"]["name"]): o for o in wanted}
    return [as_managed(o, in_git.get((o["kind"], o["metadata"]["name"]))) for o in live]
