"""What the schemas have against valid and spoiled objects, in terms of a file's author."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reconciler.source.finding import field_path
from reconciler.source.schema import check_schema, load_schema
from tests.desired.examples import (
    a_buffer,
    a_claim,
    a_class,
    a_pool,
    a_pool_requiring,
    an_overlay,
)
from tests.examples import examples

SCHEMAS = Path(__file__).parents[2] / "schemas"
OURS = [
    "nodepool.v1",
    "nodeclaim.v1",
    "nodeoverlay.v1alpha1",
    "ec2nodeclass.v1",
    "capacitybuffer.v1beta1",
    "reconciler.v1",
]
KEYWORDS = {
    *("$ref", "type", "enum", "const"),
    *("properties", "required", "additionalProperties", "maxProperties"),
    *("items", "minItems", "maxItems", "uniqueItems"),
    *("pattern", "minLength", "maxLength", "minimum", "maximum"),
}
"""The keywords that a finding is made of; an error of any other would be lost."""
ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description", "default", "examples"}

RICH: dict[str, Any] = {
    "nodepool.v1": {
        **a_pool_requiring(
            {"key": "team", "operator": "In", "values": ["a", "b"], "minValues": 2},
            taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}],
            expireAfter="1h",
            terminationGracePeriod="30s",
        ),
        "metadata": {"name": "a.b", "labels": {"x": "y"}, "annotations": {"p": "q"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "resources": {"cpu": 1}},
    },
    "nodeclaim.v1": a_claim(resources={"requests": {"cpu": "500m", "memory": "1Gi"}}),
    "nodeoverlay.v1alpha1": an_overlay(price="0.25", weight=10, capacity={"a.b/c": 5}),
    "ec2nodeclass.v1": a_class(
        kubelet={
            "maxPods": 10,
            "evictionHard": {"memory.available": "5%"},
            "clusterDNS": ["1.1.1.1"],
        },
        blockDeviceMappings=[
            {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "100Gi", "iops": 3000}}
        ],
        networkInterfaces=[{"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"}],
        metadataOptions={"httpTokens": "required", "httpPutResponseHopLimit": 2},
        detailedMonitoring=True,
    ),
    "capacitybuffer.v1beta1": a_buffer(replicas=2, percentage=10, limits={"cpu": "2", "a/b": 1}),
    "reconciler.v1": {
        "fleet": "web",
        "aws": {"region": "eu-central-1"},
        "featureGates": {"NodeOverlay": True},
        "vmMemoryOverheadPercent": 0.05,
        "nodePools": {"general": {"packing": "cheapest", "perNodeCost": 0.1}},
    },
}

SPOILS = st.sampled_from(
    [
        "",
        "x",
        "10%",
        "101%",
        "1h\n",
        "-1",
        0,
        -1,
        1,
        51,
        101,
        1.5,
        True,
        [],
        ["a", "a"],
        {},
        {"a": 1},
    ]
)
SPOILED = SPOILS.map(copy.deepcopy)


def pointers(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    return [at, *(p for key, value in below for p in pointers(value, (*at, key)))]


@st.composite
def spoiled(draw: st.DrawFn, name: str) -> Any:
    """Return an object of which some parts were replaced, removed or added."""
    data = copy.deepcopy(RICH[name])
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.sampled_from(pointers(data)))
        parent: Any = data
        if not at:
            continue
        for step in at[:-1]:
            parent = parent[step]
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                parent[at[-1]] = draw(SPOILED)
            case "remove":
                del parent[at[-1]]
            case "add" if isinstance(parent, dict):
                parent[draw(st.sampled_from(["extra", "weigth", "values", "limits"]))] = draw(
                    SPOILED
                )
    return data


def is_container(value: Any) -> bool:
    return isinstance(value, (dict, list))


@pytest.mark.parametrize("name", OURS)
def test_the_examples_are_valid(name: str) -> None:
    assert check_schema(name, RICH[name]) == []


@pytest.mark.property
@pytest.mark.parametrize("name", OURS)
def test_exactly_the_violations_are_findings(name: str) -> None:
    validator = Draft202012Validator(load_schema(name))

    @settings(max_examples=examples(300), deadline=None, derandomize=True, database=None)
    @given(spoiled(name))
    def agree(data: Any) -> None:
        ours = check_schema(name, data)
        theirs = list(validator.iter_errors(data))
        if theirs:
            assert ours, theirs
        else:  # Go's patterns and the grammars of the model are stricter than JSON Schema
            assert {f.code for f in ours} <= {"bad-format", "bad-quantity", "bad-duration"}, ours
        # Where the library sees several faults of one value (its type and its form), we tell one.
        assert len({f.pointer for f in ours}) == len(ours)
        assert {p for f in ours if (p := f.pointer)} >= {
            at for e in theirs if (at := tuple(e.absolute_path)) and not is_container(e.instance)
        }

    agree()


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda p: p.stem)
def test_every_schema_is_valid_json_schema(path: Path) -> None:
    Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", OURS)
def test_a_schema_uses_only_keywords_that_become_findings_and_describes_every_field(
    name: str,
) -> None:
    def walk(node: Any, where: str) -> None:
        for key in node:
            assert key in KEYWORDS | ANNOTATIONS or key.startswith("x-"), (where, key)
        for key, below in node.get("properties", {}).items():
            assert below["description"].endswith("."), f"{where}.{key}"
            walk(below, f"{where}.{key}")
        for key, below in node.get("$defs", {}).items():
            walk(below, key)
        extra = node.get("additionalProperties", False if "properties" in node else None)
        if isinstance(extra, dict):
            walk(extra, f"{where}.*")
        elif "properties" in node:
            assert extra is False, where
        if "items" in node:
            walk(node["items"], f"{where}[]")

    walk(load_schema(name), name)


@pytest.mark.parametrize(
    ("field", "value", "code", "message", "hint"),
    [
        (
            "weight",
            "5",
            "wrong-type",
            'must be an integer, not the string "5"',
            "write it without quotes",
        ),
        ("weight", 101, "out-of-range", "is 101; must be at most 100", ""),
        ("wieght", 5, "unknown-field", "unknown field in spec", "did you mean weight?"),
        ("limits", "many", "wrong-type", 'must be a mapping, not the string "many"', ""),
        ("replicas", True, "wrong-type", "must be an integer, not the boolean true", ""),
    ],
)
def test_a_finding_names_the_value_and_what_is_allowed(
    field: str, value: Any, code: str, message: str, hint: str
) -> None:
    (finding,) = check_schema("nodepool.v1", a_pool(**{field: value}))

    assert field_path(finding.pointer) == f"spec.{field}"
    assert (finding.code, finding.message, finding.hint) == (code, message, hint)
