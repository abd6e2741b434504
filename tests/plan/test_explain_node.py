"""Explanations of one node and one pool: the answers of the rules, and the actions of the plan."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from msgspec.structs import replace

from reconciler.desired.objects import node_pools
from reconciler.desired.settings.layers import resolve
from reconciler.disruption.gates.limits import FleetLimits
from reconciler.model.history import NO_HISTORY, DisruptionRecord, History, Move, Rollout
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.plan.explain.answer import Explanation
from reconciler.plan.explain.calendar import SPAN, explain_node_pool
from reconciler.plan.explain.node import explain_node_in_detail
from reconciler.plan.explain.reasons import explain_node
from reconciler.plan.make.gather import facts_of
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.planning import plan_of
from tests.plan.test_planner import NOW, a_class, a_node, a_pod, a_pool, inputs

ACT = {"consolidateAfter": "0s", "budgets": [{"nodes": "1"}]}
PROTECTED = "karpenter.sh/do-not-disrupt"


def inputs_of(*observed: dict, rules: dict | None = None, **config: object) -> Inputs:
    pool = a_pool(disruption=rules or ACT)
    settings = resolve(config, {}).settings
    return inputs([pool, a_class()], observed, settings=settings)


def explanation_of(question: Inputs, node: str) -> Explanation:
    plan = plan_of(question)
    answer = explain_node(plan, node, f"claim-{node}")
    return explain_node_in_detail(answer, facts_of(question), plan)


def pool_explanation_of(question: Inputs) -> Explanation:
    [pool] = node_pools(question.fleet)
    return explain_node_pool(pool, question.settings, question.cluster.nodes, question.now)


def test_a_protected_node_names_the_owner_and_the_cost_of_its_protection() -> None:
    pod = a_pod("p", 500, "n")
    pod["metadata"] |= {
        "annotations": {PROTECTED: "true"},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "api"}],
    }
    facts = explanation_of(inputs_of(*a_node("n"), pod), "n").facts
    assert facts[0] == "large on-demand in z-a, $0.3500/hour; 1 pod to reschedule"
    assert facts[1] == "blocked: pod web/p is annotated karpenter.sh/do-not-disrupt"
    assert (
        facts[2]
        == f"to allow disruption: remove the annotation {PROTECTED} from ReplicaSet web/api"
    )
    assert facts[3].startswith("cheapest replacement considered: small for $0.05")
    assert facts[4] == "potential savings: $219/month"


def test_a_node_whose_pods_have_changed_states_when_consolidation_considers_it() -> None:
    rules = {"consolidateAfter": "1h", "budgets": [{"nodes": "1"}]}
    claim, node = a_node("n")
    claim["status"]["lastPodEventTime"] = f"{NOW - timedelta(minutes=20):%FT%TZ}"
    question = inputs_of(claim, node, a_pod("p", 500, "n"), rules=rules)
    early = explanation_of(question, "n")
    assert early.verdict == "there is no reason to disrupt it yet"
    assert (
        f"consolidation considers it from {NOW + timedelta(minutes=40):%F %H:%M} UTC on: "
        "consolidateAfter of NodePool general is 1h, counted from the last change of its pods"
    ) in early.facts
    late = explanation_of(replace(question, now=NOW + timedelta(minutes=40)), "n")
    assert late.verdict.startswith("to be disrupted for underutilization")


def test_a_node_at_minimum_cost_states_what_would_have_to_change() -> None:
    node = a_node("n", "medium")
    for item in node:
        item["metadata"]["labels"]["karpenter.sh/capacity-type"] = "spot"
    facts = explanation_of(inputs_of(*node, a_pod("p", 500, "n")), "n").facts
    assert "medium spot in z-a, $0.0950/hour; 1 pod to reschedule" in facts
    assert any(fact.startswith("consolidation blocked: a spot node") for fact in facts)
    assert any(fact.startswith("to allow disruption: allow more") for fact in facts)


def test_a_node_that_a_rule_of_its_pods_keeps_names_the_rule_and_not_the_price() -> None:
    port = [{"containerPort": 80, "hostPort": 80}]
    fleet = []
    for n in ("a", "b"):
        pod = a_pod(f"p-{n}", 100, n)
        pod["spec"]["containers"][0]["ports"] = port
        node = a_node(n, "small")
        for item in node:
            item["metadata"]["labels"]["karpenter.sh/capacity-type"] = "spot"
        fleet += [*node, pod]
    facts = explanation_of(inputs_of(*fleet), "a").facts
    assert "the pods' host ports keep pods of Pod web/p-a off the other nodes" in facts
    assert any(
        f.startswith("to allow disruption: relax that rule, which would save") for f in facts
    )
    assert not any("allow more instance types" in fact for fact in facts)


def test_a_deferred_node_names_the_command_before_it() -> None:
    fleet = [o for n in ("a", "b") for o in (*a_node(n), a_pod(f"p-{n}", 6000, n))]
    question = inputs_of(*fleet)
    [command] = plan_of(question).commands
    [other] = {"a", "b"} - {*command.nodes}
    answer = explanation_of(question, other)
    assert answer.verdict == "it can be consolidated, in a later pass"
    assert f"other commands of this plan come first: {command.id}" in " ".join(answer.facts)
    assert explanation_of(question, command.nodes[0]).verdict.startswith("to be disrupted")


def test_a_blocking_setting_is_named() -> None:
    question = inputs_of(*a_node("n"), a_pod("p", 500, "n"), minimumSavings=9)
    answer = explanation_of(question, "n")
    assert any("(minimumSavings)" in fact for fact in answer.facts)


def test_an_unknown_node_is_reported_as_unknown() -> None:
    question = inputs_of(*a_node("n"))
    plan = plan_of(question)
    answer = explain_node(plan, "gone", "")
    assert explain_node_in_detail(answer, facts_of(question), plan) == answer


def test_the_calendar_covers_seven_days_without_a_gap() -> None:
    night = {"nodes": "0", "schedule": "0 22 * * *", "duration": "8h", "reasons": ["Drifted"]}
    question = inputs_of(*a_node("n"), rules={**ACT, "budgets": [{"nodes": "1"}, night]})
    [pool] = node_pools(question.fleet)
    limits = FleetLimits.from_nodes([pool], question.settings, question.cluster.nodes)
    spans = limits.spans(pool, NOW, NOW + SPAN)
    assert (spans[0].start, spans[-1].end) == (NOW, NOW + SPAN)
    assert all(a.end == b.start for a, b in pairwise(spans))
    closed = sum(
        (s.end - s.start for s in spans if not s.allowed[DisruptionReason.DRIFTED]), timedelta()
    )
    assert closed == 7 * timedelta(hours=8)
    assert all(s.allowed[DisruptionReason.EMPTY] == 1 for s in spans)


@pytest.mark.parametrize(
    ("rules", "config", "code", "message"),
    [
        (
            {"budgets": [{"nodes": "0"}]},
            {},
            "NeverOpen",
            (
                "no disruption for drift, emptiness and underutilization in the next 7 days: "
                "budgets[0] allows 0 nodes"
            ),
        ),
        (
            {"budgets": [{"nodes": "10%"}, {"nodes": "50%", "reasons": ["Empty"]}]},
            {},
            "Shadowed",
            "budgets[1] has no effect: budgets[0] is always at least as strict",
        ),
        (
            {"budgets": [{"nodes": "0", "schedule": "0 0 31 2 *", "duration": "1h"}]},
            {},
            "NeverHits",
            'budgets[0]: schedule "0 0 31 2 *" never starts, so it always applies',
        ),
        (
            {"budgets": [{"nodes": "0", "schedule": "0 0 1 6 *", "duration": "1h"}]},
            {},
            "OutOfSeason",
            "budgets[0] next applies at 2026-06-01 00:00 UTC",
        ),
        (
            {},
            {"disruption": {"suspend": [{"owner": "me", "until": "2026-01-05T12:00:00Z"}]}},
            "LongHole",
            "no disruption for drift for 48 hours from 2026-01-03 12:00 UTC: me",
        ),
        (
            {},
            {"disruption": {"budgets": [{"nodes": "0", "reasons": ["Drifted"]}]}},
            "NeverOpen",
            "no disruption for drift in the next 7 days: the fleet's disruption.budgets[0]",
        ),
        ({"consolidateAfter": "Never"}, {}, "ConsolidationDisabled", "consolidateAfter is Never"),
    ],
)
def test_gaps_and_conflicts_are_reported(
    rules: dict, config: dict, code: str, message: str
) -> None:
    answer = pool_explanation_of(inputs_of(*a_node("n"), rules={**ACT, **rules}, **config))
    found = {reason.code: reason.message for reason in reversed(answer.reasons)}
    assert found[code].startswith(message)


def guarded(history: History, **config: object) -> Explanation:
    question = inputs_of(
        *a_node("n"), *a_node("m"), rules={**ACT, "budgets": [{"nodes": "2"}]}, **config
    )
    [pool] = node_pools(question.fleet)
    nodes = question.cluster.nodes
    return explain_node_pool(pool, question.settings, nodes, NOW, history)


def test_a_pool_without_nodes_is_explained_with_those_that_are_planned() -> None:
    question = inputs_of(rules={**ACT, "budgets": [{"nodes": "2"}, {"nodes": "50%"}]})
    [pool] = node_pools(question.fleet)
    found = explain_node_pool(pool, question.settings, (), NOW, planned={pool.name: 6})
    assert "no nodes yet: counted with the 6 planned nodes" in found.verdict
    rules, row = found.facts
    assert rules == "rules: at most 2 nodes; at most 50% of the nodes"
    assert row.endswith("drift 2, emptiness 2, underutilization 2")
    nothing = explain_node_pool(pool, question.settings, (), NOW)
    assert "(0 nodes in this NodePool)" in nothing.verdict


NO_LIMIT = "otherwise any number of nodes at once for emptiness and underutilization"


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"nodes": "1"}, "at most 1 node"),
        ({"nodes": "0"}, "never any nodes"),
        ({"nodes": "0", "reasons": ["Drifted"]}, f"never any nodes for drift; {NO_LIMIT}"),
        (("0 7 * * mon-fri", "13h", "America/New_York"), "Mon–Fri 07:00–20:00 America/New_York"),
        (("0 22 * * *", "8h", None), "daily 22:00–06:00 UTC"),
        (("30 9 * * sat,sun", "90m", None), "Sat, Sun 09:30–11:00 UTC"),
        (("0 0 * * 0-2,4", "24h", None), "Mon, Tue, Thu, Sun 00:00–00:00 UTC"),
        (("0 0 * * sat", "48h", None), "Sat from 00:00 for 48h UTC"),
        (("@daily", "1h", None), "daily 00:00–01:00 UTC"),
        (("0 0 1 * *", "48h", None), "from day 1 of each month 00:00 for 48h UTC"),
        (("0 0 1 * mon", "48h", None), '"0 0 1 * mon" for 48h UTC'),
        (("0 */4 * * *", "1h", None), '"0 */4 * * *" for 1h UTC'),
        (("0 9 * 3 *", "1h", None), '"0 9 * 3 *" for 1h UTC'),
    ],
)
def test_the_rules_of_a_pool_are_said_in_words(budget: object, words: str) -> None:
    if isinstance(budget, tuple):
        schedule, duration, zone = budget
        named = {} if zone is None else {"timeZone": zone}
        budget = {"nodes": "0", "schedule": schedule, "duration": duration, **named}
        words = f"closed {words}; otherwise any number of nodes at once"
    answer = pool_explanation_of(inputs_of(*a_node("n"), rules={**ACT, "budgets": [budget]}))
    assert answer.facts[0] == f"rules: {words}"


def test_windows_and_budgets_of_the_fleet_are_among_the_rules_of_a_pool() -> None:
    night = {"schedule": "0 22 * * *", "duration": "8h", "timeZone": "Europe/Berlin"}
    config = {
        "windows": [{**night, "reasons": ["Drifted"]}, {**night, "nodePools": ["other"]}],
        "budgets": [{"nodes": "5%"}],
    }
    question = inputs_of(*a_node("n"), rules={**ACT, "budgets": []}, disruption=config)
    assert pool_explanation_of(question).facts[0] == (
        "rules: at most 5% of the nodes of the fleet;"
        " open only daily 22:00–06:00 Europe/Berlin for drift"
    )


def test_an_exhausted_daily_maximum_is_a_gap_until_the_next_disruption_is_allowed() -> None:
    taken = (DisruptionRecord(NOW - timedelta(hours=20), "general"),)
    answer = guarded(History(taken), maximumPerDay="1")
    assert answer.facts[1].endswith("16:00 UTC: drift 0, emptiness 0, underutilization 0")
    assert answer.facts[2].endswith(": drift 1, emptiness 1, underutilization 1")
    assert [(r.code, r.message) for r in answer.reasons] == [
        (
            "DailyMaximum",
            (
                "1 node of this NodePool may be disrupted within 24 hours: replacing all 2 "
                "takes 2 days or more"
            ),
        )
    ]


def test_a_halted_rollout_is_an_endless_gap_for_methods_that_move_pods() -> None:
    stopped = Rollout("general", failures=3, stopped_at=NOW, stopped_why="no capacity")
    answer = guarded(History(rollouts=(stopped,)), stopAfterFailures=3)
    assert answer.facts[1].endswith(": drift 0, emptiness 2, underutilization 0")
    found = {r.message.partition(":")[0] for r in answer.reasons if r.code == "NeverOpen"}
    assert found == {"no disruption for drift and underutilization in the next 7 days"}


def test_a_full_wave_is_a_gap_until_its_health_gate_passes() -> None:
    move = Move("c", NOW - timedelta(hours=2), ended_at=NOW, healthy_at=NOW)
    wave = Rollout("general", wave=2, size=1, moves=(move,))
    answer = guarded(History(rollouts=(wave,)), waveSize="1", waveSoak="30h")
    assert answer.facts[1].endswith(": drift 0, emptiness 2, underutilization 0")
    assert answer.facts[2].endswith(": drift 1, emptiness 2, underutilization 1")
    hole = next(r.message for r in answer.reasons if r.code == "LongHole")
    assert hole.startswith("no disruption for drift and underutilization for 30 hours from ")
    assert "wave 2 of NodePool general has disrupted 1 of 1 nodes (waveSize)" in hole


def test_nodes_temporarily_excluded_from_consolidation_are_counted() -> None:
    answer = guarded(NO_HISTORY, minimumAge="2000h")
    assert [r.code for r in answer.reasons] == ["TooYoung"]
    assert answer.reasons[0].message.startswith("2 nodes younger than minimumAge")


def gave_up(*hours_ago: int) -> dict[str, str]:
    """Return the annotation of a node that replaced an offering that number of hours ago."""
    moments = [(NOW - timedelta(hours=hours)).isoformat() for hours in hours_ago]
    return {"reconciler/gave-up": " ".join(f"small,z-a,spot@{at}" for at in moments)}


def test_nodes_under_flap_damping_are_counted() -> None:
    nodes = (
        *a_node("a", **gave_up(20, 3)),  # its later memory ends in 21 hours
        *a_node("b", **gave_up(10)),
        *a_node("c", **gave_up(24)),  # has forgotten, at this very moment
        *a_node("d"),
        *a_node("e", pool="other", **gave_up(1)),
    )

    def remembered(**config: object) -> list[str]:
        return [
            r.message
            for r in pool_explanation_of(inputs_of(*nodes, **config)).reasons
            if "undone" in r.message
        ]

    text = "consolidation of 2 nodes must not be undone (undoPeriod), the last until"
    assert remembered(undoPeriod="24h") == [f"{text} 2026-01-04 09:00 UTC"]
    assert remembered() == []
    [own] = remembered(nodePools={"general": {"undoPeriod": "11h"}, "other": {"undoPeriod": "24h"}})
    assert own.startswith("consolidation of 2 nodes must not be undone (nodePools.")
    assert own.endswith("the last until 2026-01-03 20:00 UTC")
    answer = pool_explanation_of(inputs_of(*nodes, undoPeriod="24h"))
    assert [r.code for r in answer.reasons] == ["Remembered"]


def test_a_truncated_calendar_states_its_end() -> None:
    often = {"nodes": "0", "schedule": "*/5 * * * *", "duration": "2m"}
    answer = pool_explanation_of(inputs_of(*a_node("n"), rules={**ACT, "budgets": [often]}))
    assert answer.reasons == ()
    assert answer.facts[-1] == ("too many changes for 7 days; shown until 2026-01-04 08:50 UTC")


def test_overlapping_windows_can_cover_the_complete_week() -> None:
    always = {"nodes": "0", "schedule": "0 * * * *", "duration": "2h"}
    answer = pool_explanation_of(inputs_of(*a_node("n"), rules={**ACT, "budgets": [always]}))
    assert answer.reasons[-1].code == "AlwaysHolds"


def test_a_pool_without_conflicts_has_only_its_calendar() -> None:
    answer = pool_explanation_of(inputs_of(*a_node("n")))
    assert answer.reasons == ()
    rules, row = answer.facts
    assert rules == "rules: at most 1 node"
    assert row.startswith("2026-01-03 12:00 UTC to 2026-01-10 12:00 UTC: ")
    assert row.endswith(": drift 1, emptiness 1, underutilization 1")


def test_the_answer_does_not_depend_on_earlier_questions() -> None:
    question = inputs_of(*a_node("n"), a_pod("p", 500, "n"))
    assert explanation_of(question, "n") == explanation_of(replace(question), "n")
