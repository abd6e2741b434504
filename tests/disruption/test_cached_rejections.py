"""What consolidation has rejected before: used again only where a fresh answer is the same."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest

from reconciler.desired.settings.layers import resolve
from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.consolidation.proposal import propose_removal
from reconciler.disruption.consolidation.rejections import RejectionCache
from reconciler.disruption.decide import decide
from reconciler.disruption.inputs import DisruptionInputs, open_pass
from reconciler.disruption.simulation import SimulationEffort
from reconciler.model.kubernetes.pod import Pod
from reconciler.placement.inputs import PlacementInputs
from reconciler.placement.question import Placement, Question
from reconciler.placement.scheduler import Scheduler
from tests.disruption.builders import (
    NOW,
    a_catalog,
    a_cluster,
    a_node,
    a_pod,
    a_pool,
    a_situation,
)
from tests.examples import examples

Spec = dict[str, Any]
HOST = "kubernetes.io/hostname"
CATALOG = a_catalog()
ANY_CAPACITY = {
    "key": "karpenter.sh/capacity-type",
    "operator": "In",
    "values": ["on-demand", "spot"],
}
ZONE = "topology.kubernetes.io/zone"
SELECTOR = {"matchLabels": {"app": "web"}}
OTHERS = {"matchLabels": {"app": "api"}}


def a_spread(key: str, when: str = "DoNotSchedule", **more: Any) -> Spec:
    rule = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": SELECTOR}
    return {"topologySpreadConstraints": [{**rule, **more}]}


def an_affinity(kind: str, key: str, selector: Spec, *, preferred: bool = False) -> Spec:
    term = {"topologyKey": key, "labelSelector": selector}
    field, found = "requiredDuringSchedulingIgnoredDuringExecution", term
    if preferred:
        field = "preferredDuringSchedulingIgnoredDuringExecution"
        found = {"weight": 10, "podAffinityTerm": term}
    return {"affinity": {kind: {field: [found]}}}


RULES: Sequence[Spec] = (
    {},
    {},
    {},
    {"nodeSelector": {"topology.kubernetes.io/zone": "zone-a"}},
    {"tolerations": [{"operator": "Exists"}]},
    {"priority": 10},
    an_affinity("podAntiAffinity", HOST, SELECTOR),
    a_spread(HOST),
)
TOPOLOGY_RULES: Sequence[Spec] = (
    an_affinity("podAntiAffinity", HOST, SELECTOR),
    an_affinity("podAntiAffinity", HOST, OTHERS, preferred=True),
    an_affinity("podAntiAffinity", ZONE, SELECTOR),
    an_affinity("podAffinity", HOST, OTHERS),
    an_affinity("podAffinity", ZONE, OTHERS),
    an_affinity("podAffinity", ZONE, SELECTOR, preferred=True),
    a_spread(HOST),
    a_spread(ZONE),
    a_spread(ZONE, "ScheduleAnyway"),
    a_spread(ZONE, nodeTaintsPolicy="Honor", minDomains=2),
)
AMOUNTS = ("0.5", "1", "1.5", "1.5", "3", "3.5")
CHANGES = ("comes", "goes", "goes", "goes", "moves", "node", "pool", "rule", "nothing")
HISTORIES = 60
"""How many generated histories an exhaustive run compares."""


def a_drawn_node(rng: random.Random) -> Spec:
    return {
        "size": rng.choice(("small", "medium", "medium", "large")),
        "zone": rng.choice(("zone-a", "zone-b")),
        "capacity_type": rng.choice(("on-demand", "on-demand", "spot")),
        "initialized": rng.random() < 0.9,
        "quiet": rng.choice((timedelta(hours=1), timedelta(hours=1), timedelta(seconds=10))),
    }


def a_drawn_pod(rng: random.Random, most: int, rules: Sequence[Spec]) -> tuple[int, str, Spec]:
    return rng.randrange(most), rng.choice(AMOUNTS), rng.choice(rules)


def a_drawn_pool(rng: random.Random) -> Spec:
    return {
        "limits": rng.choice((None, None, {"cpu": "20"}, {"cpu": "60"}, {"nodes": "5"})),
        "search": rng.choice(("default", "default", "thorough")),
        "gate": rng.random() < 0.5,
        "spot": rng.random() < 0.5,
    }


def histories(rng: random.Random) -> Iterator[Spec]:
    """Yield what a fleet is like in pass after pass: one thing differs from the last."""
    count = rng.randint(3, 7)
    rules = rng.choice((({},), ({},), RULES, ({}, {}, *TOPOLOGY_RULES)))
    pods = {n: a_drawn_pod(rng, count, rules) for n in range(2 * count)}
    world: Spec = {"nodes": [a_drawn_node(rng) for _ in range(count)], "pods": pods}
    world |= a_drawn_pool(rng)
    for number in range(8):
        yield world
        world = {**world, "nodes": list(world["nodes"]), "pods": dict(world["pods"])}
        one = rng.choice(sorted(world["pods"])) if world["pods"] else None
        match rng.choice(CHANGES):
            case "comes":
                world["pods"][100 + number] = a_drawn_pod(rng, count + 1, rules)
            case "goes" if one is not None:
                del world["pods"][one]
            case "moves" if one is not None:
                world["pods"][one] = a_drawn_pod(rng, count, rules)
            case "rule" if one is not None:
                world["pods"][one] = (
                    *world["pods"][one][:2],
                    rng.choice((*RULES, *TOPOLOGY_RULES)),
                )
            case "node":
                world["nodes"][rng.randrange(count)] = a_drawn_node(rng)
            case "pool":
                world |= a_drawn_pool(rng)


def situation(world: Spec, **facts: Any) -> Any:
    """Return the situation of a drawn fleet."""
    objects: list[Any] = [a_node(f"n{i}", **node) for i, node in enumerate(world["nodes"])]
    for key, (place, cpu, rules) in world["pods"].items():
        node = f"n{place}" if place < len(world["nodes"]) else None
        metadata = {"labels": {"app": "web" if key % 2 else "api"}}
        objects.append(a_pod(f"p{key}", node, cpu, spec=rules, metadata=metadata))
    spec = {"limits": world["limits"]} if world["limits"] else {}
    if world["spot"]:
        spec["template"] = {"spec": {"requirements": [ANY_CAPACITY], "expireAfter": "Never"}}
    pool = a_pool(spec=spec, consolidateAfter="30s")
    config = {
        "consolidation": {"search": world["search"]},
        "featureGates": {"SpotToSpotConsolidation": world["gate"]},
    }
    settings = resolve(config, {}).settings
    return a_situation(a_cluster(*objects), [pool], settings=settings, **facts)


@pytest.mark.property
def test_passes_that_remember_decide_as_those_that_do_not() -> None:
    rng = random.Random(21)
    for _ in range(examples(HISTORIES, usual=20)):
        cache = RejectionCache()
        for world in histories(rng):
            remembering = decide(situation(world, refusals=cache, catalog=CATALOG))
            assert remembering == decide(situation(world, catalog=CATALOG)), world


def a_world(**parts: Any) -> Spec:
    return {"limits": None, "search": "default", "gate": False, "spot": True, **parts}


REPELLED = a_world(
    nodes=[{"size": "small"}, {"size": "medium"}],
    pods={1: (0, "1.5", {}), 2: (1, "2.3", RULES[6])},
    spot=False,
)
COUNTED = (an_affinity("podAntiAffinity", HOST, SELECTOR), a_spread(HOST), a_spread(ZONE))
"""Rules that keep a pod off the medium node while a pod with the label of its own runs there."""
SPOT = a_world(nodes=[{"size": "large", "capacity_type": "spot"}], pods={1: (0, "1", {})})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (REPELLED, {**REPELLED, "pods": {1: (0, "1.5", {}), 2: (1, "2.3", {})}}),
        (SPOT, {**SPOT, "gate": True}),
        *(
            (
                {**REPELLED, "pods": {1: (0, "1.5", rule), 3: (1, "2.3", {})}},
                {**REPELLED, "pods": {1: (0, "1.5", rule), 4: (1, "2.3", {})}},
            )
            for rule in COUNTED
        ),
    ],
)
def test_what_changes_without_any_room_is_asked_again(before: Spec, after: Spec) -> None:
    cache, found = RejectionCache(), []
    for world in (before, after):
        found.append(decide(situation(world, refusals=cache, catalog=CATALOG)))
        assert found[-1] == decide(situation(world, catalog=CATALOG))
    assert (found[0].commands, found[0].blocked) != (found[1].commands, found[1].blocked)


class CountingScheduler:
    """A scheduler that counts the questions that it is asked."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.questions = 0

    def place(self, question: Question) -> Placement:
        self.questions += 1
        return self._scheduler.place(question)

    def pod_values(self, pods: Iterable[Pod]) -> Mapping[str, float]:
        return self._scheduler.pod_values(pods)

    def placement_inputs(
        self, pods: Sequence[Pod], without: frozenset[str]
    ) -> PlacementInputs | None:
        return self._scheduler.placement_inputs(pods, without)

    def cannot_share(self, pods: Sequence[Pod], without: frozenset[str], price: float) -> bool:
        return self._scheduler.cannot_share(pods, without, price)

    def exceeds_price(
        self, pods: Sequence[Pod], without: frozenset[str], price: float, *, spot: bool
    ) -> bool:
        return self._scheduler.exceeds_price(pods, without, price, spot=spot)

    def strands(self, pods: Iterable[Pod]) -> bool:
        return self._scheduler.strands(pods)


def questions(cache: RejectionCache, last: str, *more: Any) -> int:
    """Return how often a pass asks the scheduler; ``last`` is what the pod of one node requests.

    ``more`` are further objects of the cluster.
    """
    objects: list[Any] = [*more]
    for index in range(12):
        objects.append(a_node(f"n{index}", "medium"))
        objects.append(a_pod(f"p{index}", f"n{index}", "3.5" if index else last))
    wanted = a_situation(a_cluster(*objects), [a_pool()], refusals=cache, catalog=CATALOG)
    counting = CountingScheduler(
        Scheduler(wanted.launch_pools, wanted.cluster, wanted.settings, NOW)
    )
    decisions = decide(
        a_situation(
            wanted.cluster, wanted.pools, refusals=cache, catalog=CATALOG, scheduler=counting
        )
    )
    assert not decisions.commands
    return counting.questions


def test_a_change_where_no_pod_fits_asks_only_about_that_node() -> None:
    cache = RejectionCache()
    first = questions(cache, "3.5")
    assert questions(cache, "3.5") == 0
    assert 0 < questions(cache, "3.6") < first / 2


@pytest.mark.parametrize("rule", TOPOLOGY_RULES)
def test_topology_rules_that_count_as_before_ask_only_about_the_changed_node(rule: Spec) -> None:
    cache = RejectionCache()
    ruled = [
        a_pod(f"ruled-{n}", f"n{n}", "0.1", spec=rule, metadata={"labels": {"app": app}})
        for n, app in enumerate(("web", "api"))
    ]
    first = questions(cache, "3.4", *ruled)
    assert questions(cache, "3.4", *ruled) == 0
    assert 0 < questions(cache, "3.45", *ruled) < first / 2


def questions_about_another_label(rule: Spec) -> int:
    """Return how many questions another label of one pod leads to, if a pod elsewhere has a rule.

    On the way back to the first label nothing is asked again.
    """
    cache = RejectionCache()
    ruled = a_pod("ruled", "n0", "0.1", spec=rule, metadata={"labels": {"app": "web"}})
    first, other = (
        a_pod("counted", "n5", "0.1", metadata={"labels": {"app": app}}) for app in ("api", "web")
    )
    questions(cache, "3.4", ruled, first)
    asked = questions(cache, "3.4", ruled, other)
    assert questions(cache, "3.4", ruled, first) == questions(cache, "3.4", ruled, other) == 0
    return asked


def test_a_rule_is_asked_about_again_if_it_counts_other_pods() -> None:
    assert questions_about_another_label(a_spread(ZONE)) > questions_about_another_label({})


@pytest.mark.parametrize(("count", "may_compare"), [(40, True), (60, False)])
def test_a_rule_that_counts_on_too_many_nodes_is_not_compared(
    count: int, may_compare: bool
) -> None:
    objects: list[Any] = [a_node(f"n{index}", "medium") for index in range(count)]
    objects += [
        a_pod(f"p{index}", f"n{index}", "3.5", metadata={"labels": {"app": "web"}})
        for index in range(count)
    ]
    ruled = a_pod("ruled", "n0", "1", spec=an_affinity("podAffinity", HOST, SELECTOR))
    wanted = a_situation(a_cluster(*objects, ruled), [a_pool()], catalog=CATALOG)
    scheduler = Scheduler(wanted.launch_pools, wanted.cluster, wanted.settings, NOW)
    pod = next(pod for pod in wanted.cluster.pods if pod.metadata.name == "ruled")
    assert (scheduler.placement_inputs([pod], frozenset()) is not None) is may_compare


def test_a_cluster_that_is_as_it_was_some_passes_ago_is_not_asked_again() -> None:
    cache = RejectionCache()
    questions(cache, "3.5")
    assert questions(cache, "3.6") > 0
    assert questions(cache, "3.5") == questions(cache, "3.6") == 0


def test_a_starting_node_is_asked_about_only_if_it_takes_a_pod() -> None:
    cache = RejectionCache()
    questions(cache, "3.5")
    small, large = (a_node("new", size, initialized=False) for size in ("small", "large"))
    assert questions(cache, "3.5", small) == 0
    assert questions(cache, "3.5", large) > 0
    assert questions(cache, "3.5") == 0, "the node has gone again"


@pytest.mark.property
def test_nodes_that_are_said_not_to_share_one_cannot_be_replaced_by_one() -> None:
    rng = random.Random(34)
    certain = doubtful = 0
    for _ in range(examples(HISTORIES, usual=30)):
        for world in islice(histories(rng), 0, None, 3):
            drawn = situation(world, catalog=CATALOG)
            work = open_pass(drawn).work
            candidates = list(work.candidate_set.candidates)
            rng.shuffle(candidates)
            chosen = candidates[: rng.randint(1, 4)]
            price = sum(candidate.price for candidate in chosen)
            cannot = work.simulation.cannot_share(chosen, price)
            toll = work.simulation.effort
            found = propose_removal(chosen, open_pass(drawn).work)
            if cannot:
                certain += 1
                assert isinstance(found, CandidateRefusal), world
                assert toll == _toll_of(chosen, drawn), "it counts as the simulation it replaces"
            else:
                doubtful += isinstance(found, CandidateRefusal)
    assert certain > 30
    assert doubtful > 5, "counting does not prove everything"


@pytest.mark.property
def test_passes_that_state_no_reasons_decide_the_same() -> None:
    rng = random.Random(36)
    other = 0
    for _ in range(examples(HISTORIES, usual=30)):
        for world in islice(histories(rng), 0, None, 3):
            drawn = situation(world, catalog=CATALOG)
            whole, brief = decide(drawn), decide(replace(drawn, states_reasons=False))
            assert brief.commands == whole.commands, world
            assert (brief.work, brief.deferred) == (whole.work, whole.deferred)
            kept = [[(b.node, b.reason) for b in found.blocked] for found in (brief, whole)]
            assert kept[0] == kept[1], world
            other += brief.blocked != whole.blocked
    assert other > 10, "some reasons were not looked for"


def _toll_of(chosen: Sequence[Candidate], drawn: DisruptionInputs) -> SimulationEffort:
    simulation = open_pass(drawn).work.simulation
    simulation.simulate_removal(chosen, consolidating=True)
    return simulation.effort


@pytest.mark.parametrize("apart", [True, False])
def test_pods_that_each_need_a_new_node_cannot_share_one(*, apart: bool) -> None:
    rule = an_affinity("podAntiAffinity", HOST, SELECTOR) if apart else {}
    objects: list[Any] = []
    for index in range(3):
        objects.append(a_node(f"n{index}", "medium"))
        objects.append(
            a_pod(
                f"p{index}",
                f"n{index}",
                "1",
                metadata={"labels": SELECTOR["matchLabels"]},
                spec=rule,
            )
        )
    work = open_pass(a_situation(a_cluster(*objects), [a_pool()], catalog=CATALOG)).work
    candidates = list(work.candidate_set.candidates)
    assert len(candidates) == 3
    assert work.simulation.cannot_share(candidates, price=1000.0) is apart
