"""What Karpenter 1.15 accepts and how it counts, recorded from its test suites."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.settings.layers import resolve
from reconciler.model.errors import UsageError
from reconciler.model.karpenter.budget import Budget, allowance
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.pod import Pod, PodSpec
from tests.desired.examples import a_class, a_file, a_pool
from tests.tables import fixture_cases

RELEASE = "karpenter-1.15"
NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "api", "eviction_cost"))
def test_the_cost_of_evicting_a_pod(case: dict[str, Any]) -> None:
    given = case["input"]
    spec = PodSpec(priority=given["priority"]) if given["priority"] is not None else PodSpec()
    cost = Pod(Metadata(annotations=given["annotations"]), spec).eviction_cost()
    standard = Pod(Metadata()).eviction_cost()

    found = "higher" if cost > standard else "lower" if cost < standard else "equal"
    assert found == case["expect"]["than_standard"]


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "api", "budget"))
def test_budgets_for_unhealthy_nodes(case: dict[str, Any]) -> None:
    given = case["input"]
    budgets = [msgspec.convert(budget, Budget) for budget in given["budgets"]]

    found = allowance(budgets, given["reason"], given["total"], NOW)
    assert found.nodes == case["expect"]["allowed"]


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "api", "default_constraints"))
def test_default_constraints_are_checked(case: dict[str, Any]) -> None:
    accepted = case["expect"]["accepted"]
    config = {"podTopologySpread": case["input"]}
    if accepted is None:
        with pytest.raises(UsageError):
            resolve(config, {})
    else:
        assert len(resolve(config, {}).settings.default_constraints) == accepted


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "api", "admission"))
def test_a_nodepool_is_accepted_by_its_release(case: dict[str, Any]) -> None:
    given = case["input"]
    config = SourceFile("reconciler.yaml", f'karpenter: "{given["karpenter"]}"\n'.encode())
    pool = a_file(a_pool(disruption=given["disruption"]), a_class())

    _, diagnostics = read_fleet([config, pool])

    assert [d.code for d in diagnostics] == case["expect"]["codes"]


@pytest.mark.parametrize(
    ("alias", "text", "found"),
    [
        ("al2023@latest", "#!/bin/sh\n" + "a" * 16_000, "warning"),
        ("al2023@latest", "#!/bin/sh\n" + "a" * 16_384, "error"),
        ("al2023@latest", "#!/bin/sh\n" + "é" * 8_192, "error"),
        ("al2023@latest", "MIME-Version: 1.0\n" + "a" * 20_000, "warning"),
        ("bottlerocket@latest", "# " + "a" * 20_000, "warning"),
        ("al2023@latest", "#!/bin/sh\n" + "a" * 14_000, None),
    ],
)
def test_user_data_above_the_limit_of_ec2_is_reported_before_a_launch(
    alias: str, text: str, found: str | None
) -> None:
    node_class = a_class(userData=text, amiSelectorTerms=[{"alias": alias}])

    _, findings = read_fleet([a_file(a_pool(), node_class)])

    here = [f for f in findings if f.code == "user-data-size"]
    assert [f.severity.value for f in here] == ([found] if found else [])
    assert all("16,384" in f.message and "fleet.json:" in str(f) for f in here)
