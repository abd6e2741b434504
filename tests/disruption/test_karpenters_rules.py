"""``decide: karpenter``: a pass ends with the first command, as in Karpenter."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest

from reconciler.desired.settings.layers import resolve
from reconciler.disruption.command import Decisions
from reconciler.model.karpenter.labels import HOSTNAME
from reconciler.model.settings import ConsolidationSearch, DecisionRules, Packing, Settings
from tests.disruption.builders import (
    NOW,
    a_node,
    a_pod,
    a_pool,
    brief,
    decided,
    drifted,
    refusal_of,
    stamp,
)

AS_KARPENTER = Settings(
    decide=DecisionRules.KARPENTER, consolidation_search=ConsolidationSearch.KARPENTER
)
KARPENTERS_SEARCH = Settings(consolidation_search=ConsolidationSearch.KARPENTER)
NEVER = [a_pool(consolidateAfter="Never")]


def both(*objects: object, **facts: object) -> tuple[Decisions, Decisions]:
    """Return our own decisions, and Karpenter's."""
    return decided(*objects, **facts), decided(*objects, settings=AS_KARPENTER, **facts)


def test_one_drifted_node_is_replaced_at_a_time() -> None:
    nodes = [
        part
        for name in ("n1", "n2", "n3")
        for part in (a_node(name), a_pod(f"pod-{name}", name, "3"))
    ]

    own, karpenters = both(*nodes, pools=NEVER, drifted=drifted("n1", "n2", "n3"))

    assert len(own.commands) == 3
    assert brief(karpenters) == [("Drifted", "replace", ("n1",))]


@pytest.mark.parametrize("allowed", [True, False])
def test_the_nodes_of_a_deleted_nodepool_go_at_once_and_without_a_budget(allowed: bool) -> None:
    nodes = [
        part
        for name in ("n1", "n2", "n3")
        for part in (a_node(name, pool="old"), a_pod(f"pod-{name}", name, "3"))
    ]
    old = a_pool("old", budgets=[{"nodes": "1"}])

    own, karpenters = both(
        *nodes, pools=NEVER, last_known=[old], allow_removal={"old"} if allowed else ()
    )

    gone = [("NodePoolDeleted", "delete", (name,)) for name in ("n1", "n2", "n3")]
    assert brief(karpenters) == (gone if allowed else [])
    assert len(own.commands) == (1 if allowed else 0)


def test_a_drifted_node_that_cannot_be_replaced_does_not_end_the_pass() -> None:
    stuck = a_pod("p1", "n1", "3", spec={"nodeSelector": {"team": "none"}})

    _, karpenters = both(
        *(a_node("n1"), stuck, a_node("n2"), a_pod("p2", "n2", "3")),
        pools=NEVER,
        drifted=drifted("n1", "n2"),
    )

    assert brief(karpenters) == [("Drifted", "replace", ("n2",))]


def test_the_first_method_with_a_command_ends_the_pass() -> None:
    own, karpenters = both(
        *(a_node("n1"), a_node("n2"), a_pod("p", "n2", "3")), drifted=drifted("n2")
    )

    assert [reason for reason, _, _ in brief(own)] == ["Empty", "Drifted"]
    assert brief(karpenters) == [("Empty", "delete", ("n1",))]


def test_the_first_node_that_saves_anything_is_consolidated() -> None:
    """Two nodes can be replaced by cheaper ones; their pods cannot share one."""
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": HOSTNAME}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    fields = {"metadata": {"labels": {"app": "web"}}, "spec": {"affinity": apart}}
    pods = [a_pod(f"p-{name}", name, "3", **copy.deepcopy(fields)) for name in ("n1", "n2")]

    objects = (a_node("n1", "large"), a_node("n2", "large"), *pods)

    own, karpenters = both(*objects)

    assert brief(own) == [("Underutilized", "replace", (name,)) for name in ("n1", "n2")]
    assert brief(karpenters) == [("Underutilized", "replace", ("n1",))]
    assert brief(decided(*objects, settings=KARPENTERS_SEARCH)) == brief(karpenters)


def test_a_command_that_is_checked_again_is_right_for_all_its_nodes_or_for_none() -> None:
    """The binary search over all nodes would choose others, and each node alone is not asked."""
    nodes = [
        part
        for number in range(5)
        for part in (a_node(f"n{number}", "large"), a_pod(f"p{number}", f"n{number}", "500m"))
    ]

    def checked(*names: str, more: Sequence[object] = ()) -> list[tuple[str, ...]]:
        claims = frozenset(f"claim-{name}" for name in names)
        found = decided(*nodes, *more, settings=AS_KARPENTER, checked=claims)
        return [command.nodes for command in found.commands]

    assert checked("n1", "n3") == [("n1", "n3")]
    assert checked("n2") == [("n2",)]
    assert checked("n1", "gone") == []
    keep = {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}
    assert checked("n1", "n3", more=[a_pod("kept", "n3", "100m", **keep)]) == []


def test_consolidation_does_not_wait_for_its_running_commands() -> None:
    objects = (a_node("n1", "large"), a_pod("p", "n1", "3"))

    own, karpenters = both(*objects, unsettled={"claim-other"})

    assert own.commands == ()
    assert own.consolidation_waits
    assert brief(karpenters) == [("Underutilized", "replace", ("n1",))]
    assert not karpenters.consolidation_waits


@pytest.mark.parametrize(("going", "candidates", "starts"), [("b", "a", False), ("a", "b", True)])
def test_pods_that_leave_for_a_starting_node_do_not_take_its_room_in_advance(
    going: str, candidates: str, *, starts: bool
) -> None:
    """Both nodes' pods are in one queue, and the node that starts is the first one's that fits."""
    leaving = {"deletionTimestamp": stamp(NOW)}

    own, karpenters = both(
        *(a_node("n1", claim_metadata=leaving), a_pod(going, "n1", "3")),
        *(a_node("n2"), a_pod(candidates, "n2", "3")),
        a_node("n3", initialized=False),
        pools=NEVER,
        drifted=drifted("n2"),
    )

    replacement = [("Drifted", "replace", ("n2",))]
    assert brief(own) == replacement
    assert brief(karpenters) == (replacement if starts else [])
    assert starts or "would schedule against uninitialized" in refusal_of(karpenters, "n2")


def test_karpenters_rules_override_what_a_nodepool_chooses() -> None:
    config = {
        "decide": "karpenter",
        "packing": "cheapest",
        "nodePools": {"web": {"packing": "cheapest", "consolidation": {"search": "thorough"}}},
    }

    settings = resolve(config, {}).settings

    assert settings.decide is DecisionRules.KARPENTER
    assert (settings.packing, settings.pool("web").packing) == (Packing.DEFAULT, Packing.DEFAULT)
    assert settings.pool("web").consolidation_search is ConsolidationSearch.KARPENTER


def test_options_that_karpenter_does_not_have_are_left_out() -> None:
    chosen = {
        "minimumSavings": 5,
        "minimumSavingsPercent": 10,
        "evictionCost": 1,
        "minimumAge": "1h",
        "undoPeriod": "1h",
        "maximumPerDay": 3,
        "waveSize": 2,
        "expirationPolicy": "Graceful",
    }
    disruption = {"decide": "karpenter", **chosen, "nodePools": {"web": chosen}}

    settings = resolve(disruption, {}).settings

    plain = resolve({"decide": "karpenter"}, {}).settings
    assert settings == plain
    assert settings.pool("web") == plain


@pytest.mark.parametrize("decide", ["own", None])
def test_otherwise_the_choice_of_a_nodepool_counts(decide: str | None) -> None:
    config = {
        "nodePools": {"web": {"packing": "cheapest"}},
        **({"decide": decide} if decide else {}),
    }

    assert resolve(config, {}).settings.pool("web").packing is Packing.CHEAPEST


def test_own_rules_are_the_default() -> None:
    assert Settings().decide is DecisionRules.OWN
