"""A cluster with cached results shows the same as one that was just started."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from reconciler.desired.workloads.pods import Workloads
from reconciler.model.kubernetes.metadata import LabelSelector
from reconciler.model.kubernetes.pod import TopologySpreadConstraint
from tests.adapters.simulated.builders import (
    Sandbox,
    a_budget,
    a_daemon,
    a_pod,
    a_sandbox,
    an_instance,
)
from tests.examples import examples

HOST = "kubernetes.io/hostname"
STEPS = (
    "look",
    "wait",
    "drain",
    "delete",
    "launch",
    "lose",
    "scale",
    "relabel",
    "taint",
    "untaint",
    "daemon",
)


def _sandbox() -> Sandbox:
    rule = TopologySpreadConstraint(HOST, 2, label_selector=LabelSelector({"app": "web"}))
    pods = [a_pod(f"web-{n}", cpu="900m", topology_spread_constraints=(rule,)) for n in range(5)]
    pods += [a_pod(f"big-{n}", cpu="3") for n in range(2)]
    return a_sandbox(
        *pods,
        nodes=2,
        daemon_sets=(a_daemon(),),
        pod_disruption_budgets=(a_budget(max_unavailable=1),),
        starting_s=10.0,
        leaving_s=20.0,
    )


def _apply(sandbox: Sandbox, step: str, number: int) -> None:
    names = [node.name for node in sandbox.observe_registered().nodes]
    if step == "wait":
        sandbox.clock.advance((5.0, 15.0, 40.0)[number % 3])
    elif step == "launch":
        fresh = an_instance(f"x{number}-{len(sandbox.instances)}", launched_at=sandbox.now)
        sandbox.instances.append(fresh)
    elif step == "lose" and sandbox.instances:
        sandbox.instances.pop(number % len(sandbox.instances))
    elif step in ("scale", "relabel", "daemon"):
        sandbox.workloads = _changed(sandbox.workloads, step, number)
    elif names:
        _change_node(sandbox, step, names[number % len(names)])


def _changed(workloads: Workloads, step: str, number: int) -> Workloads:
    if step == "scale":
        return replace(workloads, pods=workloads.pods[: number % 8])
    if step == "daemon":
        sets = ((), (a_daemon(),), (a_daemon(), a_daemon("other")))[number % 3]
        return replace(workloads, daemon_sets=sets)
    first, *rest = workloads.pods or (a_pod("web-0"),)
    labels = {"app": ("web", "other")[number % 2]}
    fresh = with_fields(first, metadata=with_fields(first.metadata, labels=labels))
    return replace(workloads, pods=(fresh, *rest))


def _change_node(sandbox: Sandbox, step: str, name: str) -> None:
    if step == "drain":
        sandbox.cluster.drain(name, None, sandbox.now)
    elif step == "delete":
        sandbox.cluster.delete_node(name)
    elif step == "taint":
        sandbox.cluster.taint(name)
    elif step == "untaint":
        sandbox.cluster.untaint(name)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 11)), max_size=8))
def test_cached_results_equal_recomputed_ones(steps: list[tuple[str, int]]) -> None:
    lasting, restarted = _sandbox(), _sandbox()

    for step, number in [("look", 0), *steps, ("wait", 1), ("wait", 2)]:
        for sandbox in (lasting, restarted):
            _apply(sandbox, step, number)
        restarted.restart()
        assert lasting.observe_registered() == restarted.observe_registered()
        restarted.restart()
        assert lasting.observe() == restarted.observe()
