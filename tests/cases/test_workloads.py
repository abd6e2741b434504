"""The pods of a plan are the pods that the cluster would have."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.cases import Answer, check_complete, findings_of, parameters, plan_of, pods_of


def requests_of(plan: Any) -> dict[str, str]:
    """Return the requests of the first launch."""
    requests: dict[str, str] = plan["nodeClaims"][0]["requests"]
    return requests


def three_of_the_deployment(plan: Any) -> None:
    assert pods_of(plan) == {"default/web": 3}


def pods_of_a_generated_job(plan: Any) -> None:
    assert sum(pods_of(plan).values()) == 3
    assert all(name.startswith("default/train-") for name in pods_of(plan))


def minimum_of_the_autoscalers(plan: Any) -> None:
    assert pods_of(plan) == {"default/web": 6, "default/worker": 4}
    rows = {row["name"]: row for row in plan["workloads"]}
    assert {n: (r["min"], r["present"], r["max"]) for n, r in rows.items()} == {
        "web": (6, 6, 20),
        "worker": (4, 4, 20),
    }
    assert plan["atMaximum"]["unschedulable"] == []


def peaks_and_overhead(plan: Any) -> None:
    # 2.75 CPU and 3232Mi of the pod, 300m and 200Mi of the DaemonSet's on the same node
    assert requests_of(plan) == {"cpu": "3050m", "memory": "3432Mi", "pods": "2"}


def defaults_in_a_list(plan: Any) -> None:
    assert pods_of(plan) == {"team/api": 10}
    assert requests_of(plan) == {"cpu": "5", "memory": "10Gi", "pods": "10"}


def defaults_of_a_limit_range(plan: Any) -> None:
    assert requests_of(plan) == {"cpu": "9", "memory": "6Gi", "pods": "3"}


def scheduling_of_a_runtime_class(plan: Any) -> None:
    assert [u["pod"] for u in plan["unschedulable"]] == ["default/app-00000", "default/app-00001"]
    assert all("kata" in str(u) for u in plan["unschedulable"])


def pods_beyond_a_quota(plan: Any) -> None:
    assert pods_of(plan) == {"default/app": 2}
    (finding,) = findings_of(plan, "quota-exceeded")
    assert "8 pods" in finding["message"]
    assert "Deployment default/app" in finding["message"]
    assert finding["severity"] == "warning"


def pods_of_a_rollout(plan: Any) -> None:
    assert pods_of(plan) == {"default/app": 3}
    assert requests_of(plan) == {"cpu": "9", "memory": "12Gi", "pods": "3"}


def nodes_at_their_limit(plan: Any) -> None:
    assert plan["cost"]["byNodePool"]["general"]["nodesAfter"] == 2
    (finding,) = findings_of(plan, "static-limit")
    assert "limits.nodes" in finding["message"]


ANSWERS: Final[dict[str, Answer]] = {
    "dump-of-owners": three_of_the_deployment,
    "generate-name": pods_of_a_generated_job,
    "hpa-without-replicas": minimum_of_the_autoscalers,
    "init-sidecar-overhead": peaks_and_overhead,
    "limitrange": defaults_of_a_limit_range,
    "list-and-limitrange": defaults_in_a_list,
    "quota": pods_beyond_a_quota,
    "rollout": pods_of_a_rollout,
    "runtimeclass": scheduling_of_a_runtime_class,
    "static-limit": nodes_at_their_limit,
}
SETTINGS: Final = {"static-limit": ("--set", "featureGates.StaticCapacity=true")}
OPEN: Final[frozenset[str]] = frozenset()


def test_every_case_is_answered() -> None:
    check_complete("workloads", ANSWERS)


@pytest.mark.parametrize("case", parameters("workloads", ANSWERS, OPEN))
def test_a_plan_has_the_pods_that_the_cluster_would_have(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ANSWERS[case](plan_of(capsys, "workloads", case, *SETTINGS.get(case, ())))
