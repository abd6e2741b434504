"""Why a backtest costs more than nodes without any constraint would."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reconciler._resources import resource_path
from reconciler.backtest.gap import select_moments
from reconciler.cli.main import main
from tests.engine.world import a_pool
from tests.simulated.simulations import words, write_fleet

ABOVE_BOUND = ("idleNodes", "pastDecisions", "podRules", "wholeNodes")
CONSTRAINTS = ("podRules", "hostRules", "podRequirements", "nodePoolRequirements", "capacityTypes")
ANY = ("on-demand", "spot")
Run = Callable[..., dict[str, Any]]


def web(capacity_types: Sequence[str] = ANY, *requirements: Mapping[str, Any]) -> dict[str, Any]:
    return a_pool(
        "web",
        policy="WhenEmptyOrUnderutilized",
        after="30s",
        capacity_types=capacity_types,
        template={"requirements": [*requirements]},
    )


def only(instance_type: str) -> dict[str, Any]:
    return {
        "key": "node.kubernetes.io/instance-type",
        "operator": "In",
        "values": [instance_type],
    }


def trace(pods: int = 3, cpu: str = "700m", **spec: Any) -> bytes:
    """Return a trace of equal pods that come one after another and run for an hour."""
    requests = {"cpu": cpu, "memory": "512Mi"}
    shape = {"containers": [{"name": "main", "resources": {"requests": requests}}], **spec}
    lines: list[dict[str, Any]] = [
        {"apiVersion": "reconciler/v1", "kind": "Trace", "seconds": 7200},
        {"class": "web", "labels": {"app": "web"}, "spec": shape},
    ]
    for n in range(pods):
        times = {"created": 300 * n, "bound": 300 * n + 40, "deleted": 300 * n + 3640}
        lines.append({"pod": f"trace/web-{n}", "class": "web", **times})
    return "\n".join(map(json.dumps, lines)).encode()


@pytest.fixture
def side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(content: bytes, pool: Mapping[str, Any], *more: str) -> dict[str, Any]:
        write_fleet(tmp_path, [pool])
        (tmp_path / "trace.jsonl").write_bytes(content)
        given_trace = ("--trace", str(tmp_path / "trace.jsonl"))
        assert main(["simulate", *words(tmp_path, *given_trace, "-o", "json", *more)]) == 0
        report = json.loads(capsys.readouterr().out)
        with open(resource_path("schemas", "simulation.v1.json"), encoding="utf-8") as schema:
            Draft202012Validator(json.load(schema)).validate(report)
        found: dict[str, Any] = report["backtest"]["sides"]["head"]
        return found

    return run


def assert_adds_up(side: Mapping[str, Any]) -> None:
    gap = side["gap"]
    assert sum(gap.values()) == pytest.approx(side["dollars"], abs=2e-6)
    above = sum(gap[name] for name in ABOVE_BOUND)
    assert above == pytest.approx(side["dollars"] - side["lowerBound"], abs=2e-6)
    assert min(gap.values()) >= 0


@pytest.mark.parametrize("seeds", ["1", "3"])
def test_the_parts_and_the_minimum_add_up_to_the_cost(side: Run, seeds: str) -> None:
    found = side(trace(), web(("on-demand",), only("c7i.large")), "--seeds", seeds)
    assert_adds_up(found)
    assert found["gap"]["idleNodes"] > 0, "nodes start before they have pods"
    assert found["gap"]["wholeNodes"] > 0, "one pod does not fill a node"


def test_a_trace_without_constraints_has_no_part_of_them(side: Run) -> None:
    found = side(trace(), web())
    assert_adds_up(found)
    assert {found["gap"][name] for name in CONSTRAINTS} == {0}


def test_more_moments_than_are_evaluated_add_up_as_well(side: Run) -> None:
    found = side(trace(pods=40, cpu="300m"), web(("on-demand",)))
    assert_adds_up(found)


def test_a_dear_family_costs_what_its_nodes_cost_more(side: Run) -> None:
    """An m7i.large takes as many of the pods as a c7i.large, for $0.10 instead of $0.11."""
    found = side(trace(), web(ANY, only("c7i.large")))
    assert_adds_up(found)
    share = found["gap"]["nodePoolRequirements"] / found["lowerBound"]
    assert share == pytest.approx(1 - 0.10 / 0.11, abs=1e-4)
    assert found["gap"]["capacityTypes"] == found["gap"]["podRequirements"] == 0


def test_nodes_on_demand_cost_what_spot_would_save(side: Run) -> None:
    found = side(trace(), web(("on-demand",)))
    assert_adds_up(found)
    assert found["gap"]["capacityTypes"] / found["lowerBound"] == pytest.approx(0.6, abs=1e-4)
    assert found["gap"]["nodePoolRequirements"] == 0


def test_a_node_selector_is_a_requirement_of_pods(side: Run) -> None:
    selector = {"node.kubernetes.io/instance-type": "c7i.large"}
    found = side(trace(nodeSelector=selector), web())
    assert_adds_up(found)
    assert found["gap"]["podRequirements"] > 0
    assert found["gap"]["nodePoolRequirements"] == 0


def test_pods_that_repel_each_other_cost_more_nodes(side: Run) -> None:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    found = side(trace(affinity=affinity), web())
    assert_adds_up(found)
    assert found["gap"]["hostRules"] > 0
    assert found["gap"]["podRequirements"] == 0


def test_the_terminal_and_the_page_show_the_parts(
    side: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = side(trace(), web(("on-demand",)))
    amount = f"({found['gap']['capacityTypes'] / found['dollars']:.1%})"
    for form in ("text", "html"):
        given_trace = ("--trace", str(tmp_path / "trace.jsonl"), "-o", form)
        assert main(["simulate", *words(tmp_path, *given_trace)]) == 0
        shown = capsys.readouterr().out
        assert "What the cost consists of" in shown
        assert "capacity types of NodePools" in shown
        assert amount in shown


@given(st.lists(st.floats(0, 1e6), max_size=60), st.integers(1, 20))
def test_chosen_amounts_stand_for_all(amounts: list[float], most: int) -> None:
    found = select_moments(amounts, most)
    assert len(found) <= most
    assert all(amounts[number] > 0 for number in found)
    if any(amounts):
        assert sum(found.values()) == pytest.approx(1)
