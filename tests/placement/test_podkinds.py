"""Rules that select the same pods are found by label, and count as one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.catalog.table import indices
from reconciler.placement.pods.shape import Shape
from reconciler.placement.pods.volumes import NO_VOLUMES
from reconciler.placement.topology.podkinds import PodKinds
from reconciler.placement.topology.repellers import RunningRepellers
from reconciler.placement.topology.rules import Rule, RuleKind, Selector
from reconciler.placement.topology.selectorindex import SelectorIndex
from tests.examples import examples
from tests.placement.builders import (
    HOST,
    ZONE,
    Object,
    a_node,
    a_pod,
    a_pool,
    apart,
    near,
    placed,
    plan_of,
)

_keys = st.sampled_from(["app", "tier", "team"])
_values = st.sampled_from(["a", "b", "c", ""])
_namespaces = st.sampled_from(["shop", "tools", "crowd"])
_operators = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt"])
_expressions = st.tuples(_keys, _operators, st.lists(_values, max_size=3).map(tuple))
_selectors = st.builds(
    Selector,
    pairs=st.dictionaries(_keys, _values, max_size=2).map(lambda d: tuple(sorted(d.items()))),
    expressions=st.lists(_expressions, max_size=3).map(tuple),
    nothing=st.sampled_from([False, False, False, True]),
)
_kinds = st.lists(st.tuples(_namespaces, st.dictionaries(_keys, _values, max_size=3)), max_size=8)


def shape(namespace: str, labels: dict[str, str]) -> Shape:
    from reconciler.model.kubernetes.metadata import Metadata
    from reconciler.model.kubernetes.pod import Pod, PodSpec

    pod = Pod(Metadata(name="p", namespace=namespace, labels=labels), PodSpec())
    return Shape(pod, labels, NO_VOLUMES, {})


@settings(max_examples=examples(400))
@given(_kinds, st.frozensets(_namespaces, min_size=1), _selectors)
def test_a_rule_selects_the_same_pods_by_label_and_one_by_one(
    kinds: list[tuple[str, dict[str, str]]], namespaces: frozenset[str], selector: Selector
) -> None:
    shapes = [shape(*kind) for kind in kinds]
    known = PodKinds(shapes)
    rule = Rule(RuleKind.ANTI_AFFINITY, HOST, namespaces, selector)
    selected = known.selected_by(rule)
    for each, (namespace, labels) in zip(shapes, kinds, strict=True):
        assert bool(selected & known.bit_of(each)) == rule.selects(namespace, labels)


@settings(max_examples=examples(400))
@given(_kinds, st.lists(st.tuples(st.frozensets(_namespaces, min_size=1), _selectors), max_size=8))
def test_the_rules_that_select_a_pod_are_found_by_its_labels_and_one_by_one(
    kinds: list[tuple[str, dict[str, str]]], made: list[tuple[frozenset[str], Selector]]
) -> None:
    rules = [Rule(RuleKind.ANTI_AFFINITY, HOST, *each) for each in made]
    index = SelectorIndex(made)
    for namespace, labels in kinds:
        found = index.selecting(namespace, labels)
        selecting = {i for i, rule in enumerate(rules) if rule.selects(namespace, labels)}
        assert set(indices(found)) == selecting


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.sampled_from([HOST, ZONE, "example.com/none"]), _selectors), max_size=20),
    st.lists(st.tuples(_namespaces, st.dictionaries(_keys, _values, max_size=3)), max_size=14),
)
def test_running_repellers_are_added_up_by_the_pods_that_they_select(
    made: list[tuple[str, Selector]], kinds: list[tuple[str, dict[str, str]]]
) -> None:
    rules = [
        Rule(RuleKind.ANTI_AFFINITY, key, frozenset({"shop", "crowd"}), selector, inverse=True)
        for key, selector in made
    ]
    counts = {rule: {f"d{i % 3}": 1 + i} for i, rule in enumerate(rules)}
    running = RunningRepellers(counts, lambda rule: rule.key)
    shapes = [shape(*kind) for kind in kinds]
    known = PodKinds(shapes)
    expected: dict[tuple[str, int], Counter[str]] = {}
    for rule, by_domain in counts.items():
        if selected := known.selected_by(rule):
            expected.setdefault((rule.key, selected), Counter()).update(by_domain)
    found: dict[tuple[str, int], Counter[str]] = {}
    for part in running.alike(map(running.selecting, shapes), known.selected_by):
        for total in running.sums(part):
            assert running.has(total.rule, part)
            key = (total.rule.key, known.selected_by(total.rule))
            found.setdefault(key, Counter()).update(total.counts)
    assert found == expected


def crowd(same: bool, key: str, operator: str) -> list[Object]:
    """Return pods that repel or follow each other by one rule, or by one each with that effect."""
    found = []
    for number in range(12):
        value = "z" if same else f"z{number}"
        chosen = {"key": "app", "operator": operator, "values": [value]}
        term = {"labelSelector": {"matchExpressions": [chosen]}, "topologyKey": key}
        make = apart if number % 3 else near
        pod = a_pod(f"p-{number:02}", affinity=make(term))
        pod["metadata"]["labels"] = {"app": f"a{number}"}
        if number < 4:
            pod["spec"]["nodeName"] = f"n-{number % 2}"
            pod["status"] = {"phase": "Running"}
        found.append(pod)
    return found


def test_a_rule_for_each_pod_has_the_effect_of_one_for_all() -> None:
    for key in (HOST, ZONE, "example.com/none"):
        for operator in ("In", "NotIn"):
            plans = [
                plan_of(
                    placed(
                        [
                            a_pool("default"),
                            *a_node("n-0", zone="zone-a"),
                            *a_node("n-1", zone="zone-b"),
                            *crowd(same, key, operator),
                        ]
                    )
                )
                for same in (True, False)
            ]
            assert plans[0] == plans[1], (key, operator)
