"""Deletion costs of pods: only that annotation is written, and no value of somebody else."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.adapters.kubernetes.api import cluster_checks
from reconciler.adapters.kubernetes.kinds import POD_COSTS, cluster_role, pod_costs_role
from reconciler.model.diagnostics import Verdict
from reconciler.model.settings import (
    DEFAULT_FEATURE_GATES,
    FeatureGate,
    KarpenterVersion,
    Settings,
)
from reconciler.ports.cluster import CostWrites, PodCost
from tests.adapters.kubernetes.apiserver import Call, Object, RefusedError
from tests.adapters.kubernetes.sandbox import Sandbox, a_pod

KEY = "controller.kubernetes.io/pod-deletion-cost"


class _Pods:
    """Pods of a cluster, and what writes their costs."""

    def __init__(self, sandbox: Sandbox, *names: str) -> None:
        self.kube = sandbox.kube
        for name in names:
            self.kube.add(a_pod(name))
        self.kube.calls.clear()
        self._costs = sandbox.cluster.pod_costs()

    def pod(self, name: str) -> Object:
        return self.kube.of("pods")[name]

    def cost(self, name: str) -> str | None:
        found: str | None = (self.pod(name)["metadata"].get("annotations") or {}).get(KEY)
        return found

    def annotate(self, name: str, value: str) -> None:
        """Set the cost as a person does, or another controller."""

        def change(pod: Object) -> None:
            pod["metadata"].setdefault("annotations", {})[KEY] = value

        self.kube.change("pods", name, change)

    def write(self, wanted: dict[str, str | None]) -> CostWrites:
        return self._costs.write(
            [
                PodCost("default", name, self.pod(name)["metadata"]["uid"], "n0", "web",
                        self.cost(name), value)
                for name, value in wanted.items()
            ]
        )  # fmt: skip


def test_a_cost_is_set_changed_and_removed_and_nothing_else_is_touched(sandbox: Sandbox) -> None:
    pods = _Pods(sandbox, "a")
    before = pods.pod("a")["spec"]

    assert pods.write({"a": "-3"}) == CostWrites({"updated": 1})
    assert pods.cost("a") == "-3"
    pods.write({"a": "-1"})
    assert pods.cost("a") == "-1"
    pods.write({"a": None})
    assert pods.cost("a") is None

    assert pods.pod("a")["spec"] == before
    assert {call.permission for call in pods.kube.calls} == {("patch", "", "pods")}
    for call in pods.kube.calls:
        assert set(call.body) == {"apiVersion", "kind", "metadata"}
        assert set(call.body["metadata"]) <= {"name", "namespace", "uid", "annotations"}
        assert set(call.body["metadata"].get("annotations", {})) <= {KEY}
        assert "force" not in call.query


@pytest.mark.parametrize("value", ["100", "-5", "yes"])
def test_a_value_of_somebody_else_is_neither_changed_nor_removed(
    value: str, sandbox: Sandbox
) -> None:
    pods = _Pods(sandbox, "a")
    pods.annotate("a", value)

    assert pods.write({"a": "-3"}) == CostWrites({"skipped_conflict": 1})
    assert pods.cost("a") == value
    pods.write({"a": None})
    assert pods.cost("a") == value


def test_a_person_takes_over_a_value_that_was_written(sandbox: Sandbox) -> None:
    pods = _Pods(sandbox, "a")
    pods.write({"a": "-3"})
    pods.annotate("a", "50")

    assert pods.write({"a": "-2"}) == CostWrites({"skipped_conflict": 1})
    pods.write({"a": None})
    assert pods.cost("a") == "50"


def test_a_value_of_somebody_else_is_not_tried_again_until_it_changes(sandbox: Sandbox) -> None:
    pods = _Pods(sandbox, "a")
    pods.annotate("a", "100")
    pods.write({"a": "-3"})
    calls = len(pods.kube.calls)

    assert pods.write({"a": "-4"}) == CostWrites({"skipped_conflict": 1})
    assert len(pods.kube.calls) == calls
    pods.annotate("a", "101")
    pods.write({"a": "-4"})
    assert len(pods.kube.calls) == calls + 1


def test_a_pod_of_the_same_name_that_came_later_gets_nothing(sandbox: Sandbox) -> None:
    pods = _Pods(sandbox, "a")
    cost = PodCost("default", "a", "another-uid", "n0", "web", None, "-3")

    assert sandbox.cluster.pod_costs().write([cost]) == CostWrites({"skipped_conflict": 1})
    assert pods.cost("a") is None


def test_other_pods_are_written_if_one_fails(sandbox: Sandbox) -> None:
    pods = _Pods(sandbox, "a", "b")

    def fail(call: Call) -> None:
        if call.method == "PATCH" and call.name == "a":
            raise RefusedError(422, "Invalid", "no")

    pods.kube.fault = fail

    assert pods.write({"a": "-3", "b": "-3"}) == CostWrites({"error": 1, "updated": 1})
    assert pods.cost("b") == "-3"


def test_without_the_right_one_error_names_the_role_and_the_rest_is_not_tried(
    sandbox: Sandbox,
) -> None:
    pods = _Pods(sandbox, "a", "b")
    rules: Any = cluster_role("run", writes=True)["rules"]
    pods.kube.rules = rules

    found = pods.write({"a": "-3", "b": "-3"})

    assert found.results == {}
    assert found.error is not None
    assert "missing permission: patch pods" in str(found.error)
    assert "clusterrole-pod-costs.yaml" in found.error.remedy
    assert len(pods.kube.calls) == 1
    pods.write({"a": None})
    assert len(pods.kube.calls) == 1, "nothing was ever written, so nothing is removed"


def test_the_optional_role_is_what_is_needed_and_check_asks_for_it(sandbox: Sandbox) -> None:
    pods = _Pods(sandbox, "a")
    gates = {**DEFAULT_FEATURE_GATES, FeatureGate.POD_DELETION_COST_MANAGEMENT: True}
    settings = Settings(karpenter=KarpenterVersion.V1_15, feature_gates=gates)
    rules: Any = cluster_role("run", writes=True)["rules"]
    pods.kube.rules = rules
    rows = list(cluster_checks(sandbox.api, settings, writes=True))
    assert [r.name for r in rows if r.verdict is Verdict.FAILED] == [POD_COSTS.name]
    more: Any = pod_costs_role("costs")["rules"]
    pods.kube.rules = [*rules, *more]
    rows = list(cluster_checks(sandbox.api, settings, writes=True))
    assert not [r.name for r in rows if r.verdict is Verdict.FAILED]

    assert pods.write({"a": "-3"}) == CostWrites({"updated": 1})
