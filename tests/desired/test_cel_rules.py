"""The CRDs' CEL rules, as they stand in the schemas, against the predicates that stand for them."""

import re
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.desired.rules import nodeclass, nodepool
from reconciler.source.schema import load_schema
from tests.examples import examples

celpy = pytest.importorskip("celpy", reason="cel-python has no wheel for this Python")
celtypes = celpy.celtypes

SCHEMAS = (
    "nodepool.v1",
    "nodeclaim.v1",
    "nodeoverlay.v1alpha1",
    "ec2nodeclass.v1",
    "capacitybuffer.v1beta1",
)


def rules() -> dict[str, list[str]]:
    """Return the texts of every rule that needs no former object, by name."""
    found: dict[str, set[str]] = {}

    def walk(schema: dict[str, Any], node: Any) -> None:
        if isinstance(node, dict):
            for rule in node.get("x-kubernetes-validations", ()):
                found.setdefault(rule["name"], set()).add(rule["rule"])
            for value in node.values():
                walk(schema, value)
        elif isinstance(node, list):
            for value in node:
                walk(schema, value)

    for name in SCHEMAS:
        walk(load_schema(name), load_schema(name))
    return {
        name: sorted(t for t in texts if "oldSelf" not in t)
        for name, texts in found.items()
        if any("oldSelf" not in t for t in texts)
    }


RULES = rules()
PREDICATES = {**nodepool.PREDICATES, **nodeclass.PREDICATES}


def _find(text: celtypes.StringType, pattern: celtypes.StringType) -> celtypes.StringType:
    """An addition of Kubernetes to CEL: the first match, or nothing."""
    match = re.search(pattern, text)
    return celtypes.StringType(match[0] if match else "")


def _split(text: celtypes.StringType, mark: celtypes.StringType) -> celtypes.ListType:
    return celtypes.ListType([celtypes.StringType(part) for part in text.split(mark)])


@cache
def program(text: str) -> Any:
    environment = celpy.Environment()
    return environment.program(
        environment.compile(text), functions={"find": _find, "split": _split}
    )


def cel_holds(text: str, value: Any) -> bool:
    """Evaluate a rule; an error of evaluation refuses, as in the API server."""
    try:
        return bool(program(text).evaluate({"self": celpy.json_to_cel(value)}))
    except celpy.CELEvalError:
        return False


def words(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(values)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a mapping with any of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


LABELS = words(
    "karpenter.sh/capacity-type",
    "karpenter.sh/nodepool",
    "karpenter.sh/x",
    "a.karpenter.sh/x",
    "mykarpenter.sh/x",
    "karpenter.sh",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "team",
    "karpenter.k8s.aws/instance-cpu",
    "karpenter.k8s.aws/x",
    "karpenter.k8s.aws/ec2nodeclass",
    "karpenter.k8s.aws/instance-tenancy",
    "karpenter.k8s.aws/placement-group-id",
    "a/karpenter.sh",
    "karpenter.k8s.aws/capacity-reservation-id",
    "example.com/karpenter.k8s.aws",
)
REQUIREMENT = st.fixed_dictionaries(
    {
        "key": LABELS,
        "operator": words("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"),
        "values": st.lists(words("a", "1", "-1", "0", "+5", "1.5", ""), max_size=3),
    },
    optional={"minValues": st.integers(1, 4)},
)
ANY = st.just("x")
TAGS = st.dictionaries(
    words(
        "a",
        "",
        "eks:eks-cluster-name",
        "kubernetes.io/cluster/x",
        "kubernetes.io/cluster",
        "karpenter.sh/nodepool",
        "karpenter.sh/nodeclaim",
        "karpenter.k8s.aws/ec2nodeclass",
    ),
    words("b", "", "*"),
    max_size=3,
)
ALIAS = words(
    "al2@latest",
    "al2023@v1",
    "bottlerocket@latest",
    "windows2019@latest",
    "windows2022@v1",
    "windows2025@latest",
    "windows2019@",
    "al2023",
    "ubuntu@latest",
    "@latest",
    "al2@",
    "",
    "a b@c",
    "al2@a@b",
    "Al2@latest",
)
TERM = some(
    alias=ALIAS,
    id=ANY,
    name=ANY,
    owner=ANY,
    ssmParameter=ANY,
    tags=st.just({"a": "b"}),
    ownerID=ANY,
    instanceMatchCriteria=ANY,
)
INTERFACE = st.fixed_dictionaries(
    {
        "networkCardIndex": st.integers(0, 1),
        "deviceIndex": st.integers(0, 1),
        "interfaceType": words("interface", "efa-only"),
    }
)
FAMILY = words(
    "AL2", "AL2023", "Bottlerocket", "Custom", "Windows2019", "Windows2022", "Windows2025"
)
TERMS = st.lists(TERM, max_size=3)
GOOD_ALIAS = words(
    "al2@1", "al2023@1", "bottlerocket@1", "windows2019@1", "windows2022@1", "windows2025@1"
)
ALIASES = st.lists(some(alias=GOOD_ALIAS), min_size=1, max_size=2)
LABEL_MAP = st.dictionaries(LABELS, ANY, max_size=3)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "labels-": LABEL_MAP,
    "label-": LABELS,
    "requirement-": st.lists(REQUIREMENT, max_size=3),
    "budget-": st.lists(some(nodes=ANY, schedule=ANY, duration=ANY), max_size=3),
    "static-": some(
        replicas=st.integers(0, 2),
        weight=st.integers(1, 2),
        limits=st.dictionaries(words("nodes", "cpu", "memory"), ANY),
    ),
    "node-class-": words("", "x"),
    "overlay-capacity": st.dictionaries(
        words("cpu", "pods", "memory", "ephemeral-storage", "a/b"), ANY
    ),
    "overlay-price": some(price=ANY, priceAdjustment=ANY),
    "buffer-": some(podTemplateRef=ANY, scalableRef=ANY, replicas=ANY, percentage=ANY, limits=ANY),
    "role-or": some(role=ANY, instanceProfile=ANY),
    "role-empty": words("", "x"),
    "instance-profile-empty": words("", "x"),
    "alias-": ALIAS,
    "ami-family-": st.fixed_dictionaries(
        {"amiSelectorTerms": ALIASES}, optional={"amiFamily": FAMILY}
    ),
    "ami-": TERMS,
    "subnet-": TERMS,
    "security-group-": TERMS,
    "reservation-": TERMS,
    "placement-group-": some(name=ANY, id=ANY),
    "selector-tags": TAGS,
    "tag-": TAGS,
    "volume-": some(
        snapshotID=words("", "s"), volumeSize=ANY, volumeInitializationRate=st.just(100)
    ),
    "root-volume": st.lists(some(rootVolume=st.booleans()), max_size=3),
    "primary-interface": st.lists(INTERFACE, max_size=3),
    "interface-pairs": st.lists(INTERFACE, max_size=4),
    "connection-tracking": some(tcpEstablishedTimeout=ANY, udpStreamTimeout=ANY, udpTimeout=ANY),
}


def strategy_of(name: str) -> st.SearchStrategy[Any]:
    prefixes = [prefix for prefix in VALUES if name.startswith(prefix)]
    return VALUES[max(prefixes, key=len)]


def test_every_rule_of_the_schemas_has_a_predicate_and_the_other_way_round() -> None:
    assert sorted(RULES) == sorted(PREDICATES)


@pytest.mark.property
@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in RULES.items() for t in texts])
def test_the_predicate_agrees_with_the_rule(name: str, text: str) -> None:
    seen = {True: 0, False: 0}
    program(text)  # compiling raises the recursion limit, which hypothesis would take amiss

    @settings(
        max_examples=examples(300, usual=80),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy_of(name))
    def agree(value: Any) -> None:
        expected = cel_holds(text, value)
        seen[expected] += 1
        assert (not list(PREDICATES[name](value))) is expected

    agree()
    assert seen[True]
    assert seen[False]
