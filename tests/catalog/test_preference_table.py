"""Veneer's preference annotations tested with its own cases."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from reconciler.catalog.adjusted.preference import (
    Preference,
    PreferenceError,
    format_percent_adjustment,
    is_valid_adjustment,
    overlay_name,
    overlay_of,
    parse_adjustment,
    parse_matcher,
    parse_preferences,
    parse_value,
)
from reconciler.model.karpenter.nodeoverlay import NodeOverlay
from tests.catalog.veneer import (
    is_preference_overlay,
    needs_update,
    overlay_changes,
    preference_number,
)
from tests.tables import cases

Case = dict[str, Any]


def matcher(requirement: Any) -> Case:
    return {
        "key": requirement.key,
        "operator": str(requirement.operator),
        "values": list(requirement.values),
    }


def as_case(preference: Preference) -> Case:
    return {
        "number": preference.number,
        "nodepool": preference.node_pool,
        "adjustment": preference.adjustment,
        "matchers": [matcher(m) for m in preference.matchers],
    }


def shown(overlay: NodeOverlay) -> Case:
    return {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "name": overlay.name,
        "labels": overlay.metadata.labels,
        "weight": overlay.weight,
        "priceAdjustment": overlay.spec.price_adjustment,
        "requirements": [matcher(r) for r in overlay.spec.requirements],
    }


def overlay(fields: Case) -> NodeOverlay:
    spec = {k: fields[k] for k in ("weight", "priceAdjustment", "requirements") if k in fields}
    metadata = {k: fields[k] for k in ("name", "labels", "ownerReferences") if k in fields}
    return msgspec.convert({"metadata": metadata, "spec": spec}, NodeOverlay)


def parse_nodepool(given: Case) -> Case:
    preferences, errors = parse_preferences(given["nodepool"], given["annotations"])
    return {
        "preferences": [as_case(p) for p in preferences],
        "preferences_count": len(preferences),
        "overlay_names": sorted({overlay_of(p).name for p in preferences}),
        "errors": [{"annotation": e.annotation, "class": str(e.problem)} for e in errors],
    }


def parse_and_generate(given: Case) -> Case:
    preferences, errors = parse_preferences(given["nodepool"], given["annotations"])
    overlays = [overlay_of(p, disabled=given["disabled"]) for p in preferences]
    return {"overlays": [shown(o) for o in overlays], "errors": errors}


def parse_one_value(given: Case) -> Case:
    adjustment, matchers = parse_value(given["value"])
    return {"adjustment": adjustment, "matchers": [matcher(m) for m in matchers]}


def generate(given: Case) -> Case:
    fields = given["preference"] | {"node_pool": given["preference"]["nodepool"]}
    preference = msgspec.convert(fields, Preference)
    return {"overlay": shown(overlay_of(preference, disabled=given["disabled"]))}


def format_adjustment(given: Case) -> Case:
    text = format_percent_adjustment(given["adjustment"])
    return {"priceAdjustment": text, "accepted_by_karpenter_crd": is_valid_adjustment(text)}


def reconcile(given: Case) -> Case:
    pool, annotations = given["nodepool"], given["annotations"] if given["exists"] else {}
    preferences, _ = parse_preferences(pool, annotations)
    desired = [overlay_of(p, uid=given["uid"], disabled=given["disabled"]) for p in preferences]
    existing = [overlay(fields) for fields in given["existing_overlays"]]
    actions = overlay_changes(pool, desired, existing)
    gone = {name for name, change in actions.items() if change == "delete"}
    return {
        "actions": {name: str(change) for name, change in actions.items()},
        "remaining": sorted({o.name for o in (*desired, *existing)} - gone),
        "priceAdjustment": {o.name: o.spec.price_adjustment for o in desired},
        "ownerReferences": [
            msgspec.to_builtins(owner) for o in desired for owner in o.metadata.owner_references
        ],
        "error": None,
        "requeue": False,
    }


ADAPTERS: dict[str, Callable[[Case], Case]] = {
    "parse_nodepool": parse_nodepool,
    "parse_value": parse_one_value,
    "parse_matcher": lambda given: matcher(parse_matcher(given["expr"])),
    "parse_adjustment": lambda given: {"adjustment": parse_adjustment(given["expr"])},
    "parse_and_generate": parse_and_generate,
    "generate_overlay": generate,
    "format_adjustment": format_adjustment,
    "overlay_name": lambda given: {"name": overlay_name(given["nodepool"], given["number"])},
    "is_preference_overlay": lambda given: {"result": is_preference_overlay(given["labels"])},
    "preference_number": lambda given: {"result": preference_number(given["labels"] or {})},
    "reconcile_nodepool": reconcile,
    "needs_update": lambda given: {
        "result": needs_update(overlay(given["existing"]), overlay(given["desired"]))
    },
}


@pytest.mark.parametrize("case", cases("preference"))
def test_preferences_are_read_and_written_as_in_veneer(case: Case) -> None:
    given, expected = case["input"], case["expect"]
    try:
        actual = ADAPTERS[given["kind"]](given)
    except PreferenceError as error:
        actual = {"error": str(error.problem)}
    expected.pop("note", None)
    assert {key: actual.get(key) for key in expected} == expected
