"""``watch`` beside a real Karpenter: it predicts what Karpenter then does, and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from reconciler.adapters.threads import background_thread
from reconciler.watch.end.quiet import PAUSE_MIN
from tests.live.beside import (
    APPS,
    BUDGETS,
    CLAIMS,
    CRDS,
    NODE_CLASS,
    NODE_CLASSES,
    POOLS,
    Beside,
    karpenter,
    only,
    watching,
)
from tests.live.kubelets import Kubelets
from tests.live.plane import ControlPlane, control_plane, eventually, is_served
from tests.live.programs import karpenter_folder, missing_karpenter
from tests.yamltext import load

pytestmark = pytest.mark.live

_ON_DEMAND: Final = only("karpenter.sh/capacity-type", "on-demand")
_ANY: Final = only("karpenter.sh/capacity-type", "on-demand", "spot")
_ZONE: Final = "topology.kubernetes.io/zone"
_HOST: Final = "kubernetes.io/hostname"
_TAINT: Final = {"key": "team", "value": "data", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return a control plane with a Karpenter that runs."""
    why = missing_karpenter()
    if why:
        pytest.skip(why)
    work = tmp_path_factory.mktemp("karpenter")
    with control_plane(work) as plane, ExitStack() as stack:
        for file in sorted(karpenter_folder().glob("*.yaml")):
            plane.provide(CRDS, load(file.read_text()))
        for path in (POOLS, NODE_CLASSES):
            eventually(path, lambda path=path: is_served(plane, path))  # type: ignore[misc]
        plane.create(NODE_CLASSES, NODE_CLASS)
        stack.enter_context(karpenter(plane))
        stack.enter_context(background_thread("kubelets", Kubelets(plane, None).listen))
        yield plane


@pytest.fixture(scope="module")
def beside(plane: ControlPlane) -> Iterator[Beside]:
    """Return the cluster once a watch has made its first prediction."""
    Beside(plane, watch=None).pool("first")  # type: ignore[arg-type]
    with watching(plane) as watch:
        beside = Beside(plane, watch)
        beside.clear()
        yield beside


def spread(name: str, key: str) -> dict[str, Any]:
    """Return the constraint that spreads pods evenly."""
    constraint = {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": name}},
    }
    return {"topologySpreadConstraints": [constraint]}


def apart(name: str) -> dict[str, Any]:
    """Return the affinity that keeps pods on different nodes."""
    term = {"topologyKey": _HOST, "labelSelector": {"matchLabels": {"app": name}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"affinity": {"podAntiAffinity": required}}


def sizes(c: Beside) -> None:
    c.pool()
    for replicas, cpu in ((3, "1500m"), (2, "3"), (5, "700m"), (1, "9"), (8, "500m")):
        c.deploy("web", replicas, cpu)
        c.scored("launch")
        c.remove(f"{APPS}/deployments/web")
        c.scored("command")


def zones(c: Beside) -> None:
    c.pool()
    c.deploy("web", 3, "1", **spread("web", _ZONE))
    c.scored("launch")


def hosts(c: Beside) -> None:
    c.pool()
    c.deploy("web", 3, "200m", **apart("web"))
    c.scored("launch")
    c.scale("web", 5)
    c.scored("launch")


def weights(c: Beside) -> None:
    c.pool("preferred", weight=50, template={"requirements": [_ANY, only(_ZONE, "zone-c")]})
    c.pool()
    c.deploy("web", 2, "1500m")
    c.scored("launch")


def limits(c: Beside) -> None:
    small = only("node.kubernetes.io/instance-type", "small")
    c.pool(
        "limited", weight=50, limits={"cpu": "4"}, template={"requirements": [small, _ON_DEMAND]}
    )
    c.pool()
    c.deploy("web", 5, "1500m", **apart("web"))
    c.scored("launch")


def taints(c: Beside) -> None:
    c.pool("data", template={"taints": [_TAINT]})
    c.pool()
    c.deploy("data", 2, "1", tolerations=[_TAINT | {"operator": "Equal"}],
             nodeSelector={"pool": "data"})  # fmt: skip
    c.deploy("web", 2, "1")
    c.scored("launch")


def spot(c: Beside) -> None:
    c.pool(template={"requirements": [_ANY]})
    c.deploy("web", 4, "1500m")
    c.scored("launch")


def selectors(c: Beside) -> None:
    c.pool()
    c.deploy("web", 2, "1", nodeSelector={_ZONE: "zone-b"})
    c.scored("launch")


def preferences(c: Beside) -> None:
    c.pool()
    term = {"weight": 1, "preference": {"matchExpressions": [only(_ZONE, "zone-c")]}}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [term]}
    c.deploy("web", 2, "1", affinity={"nodeAffinity": preferred})
    c.scored("launch")


def daemons(c: Beside) -> None:
    c.pool()
    c.daemons("agent", "500m")
    c.deploy("web", 3, "1500m")
    c.scored("launch")


def least_values(c: Beside) -> None:
    types = {"key": "node.kubernetes.io/instance-type", "operator": "Exists", "minValues": 3}
    c.pool(template={"requirements": [_ON_DEMAND, types]})
    c.deploy("web", 2, "1500m")
    c.scored("launch")


def one_node(c: Beside) -> None:
    c.pool()
    c.deploy("big", 1, "9")
    c.deploy("web", 1, "1")
    c.scored("launch")
    c.remove(f"{APPS}/deployments/big")
    c.scored("command")


def several_nodes(c: Beside) -> None:
    c.pool()
    for number in range(3):
        c.deploy(f"big-{number}", 1, "1300m")
        c.deploy(f"web-{number}", 1, "500m")
        c.scored("launch")
    c.nominations_end()
    for number in range(3):
        c.remove(f"{APPS}/deployments/big-{number}")
    c.scored("command")


def only_empty(c: Beside) -> None:
    c.pool(disruption={"consolidationPolicy": "WhenEmpty"})
    c.deploy("web", 2, "1500m", **apart("web"))
    c.scored("launch")
    c.scale("web", 1)
    c.scored("command")


def budgets(c: Beside) -> None:
    c.pool(disruption={"budgets": [{"nodes": "1"}]})
    c.deploy("web", 3, "1500m", **apart("web"))
    c.scored("launch")
    c.scale("web", 0)
    c.scored("command", 3)


def drift(c: Beside) -> None:
    c.pool()
    c.deploy("web", 2, "1500m", **apart("web"))
    c.scored("launch")
    c.change_pool(template={"metadata": {"labels": {"release": "2"}}})
    c.scored("command")


def drift_one_by_one(c: Beside) -> None:
    c.pool(disruption={"budgets": [{"nodes": "1", "reasons": ["Drifted"]}, {"nodes": "100%"}]})
    c.deploy("web", 2, "1500m", **apart("web"))
    c.scored("launch")
    c.change_pool(template={"metadata": {"labels": {"release": "2"}}})
    c.scored("command", 2)


def expiry(c: Beside) -> None:
    c.pool(template={"expireAfter": "60s"})
    c.deploy("web", 1, "1500m")
    c.scored("launch", 2)


def deletion(c: Beside) -> None:
    c.pool()
    c.deploy("web", 2, "1500m", **apart("web"))
    c.scored("launch")
    c.remove(f"{CLAIMS}/{c.claims()[0]['metadata']['name']}")
    c.scored("launch")


def do_not_disrupt(c: Beside) -> None:
    c.pool()
    for name, notes in (("kept", {"karpenter.sh/do-not-disrupt": "true"}), ("web", {})):
        c.deploy(f"big-{name}", 1, "9")
        c.deploy(name, 1, "1", annotations=notes)
        c.scored("launch")
    c.nominations_end()
    c.remove(f"{APPS}/deployments/big-kept")
    c.remove(f"{APPS}/deployments/big-web")
    c.scored("command")


def disruption_budget(c: Beside) -> None:
    c.pool()
    c.deploy("big", 1, "9")
    c.deploy("web", 1, "1")
    selector = {"matchLabels": {"app": "web"}}
    c.plane.create(BUDGETS, {"metadata": {"name": "web"},
        "spec": {"maxUnavailable": 0, "selector": selector}})  # fmt: skip
    c.scored("launch")
    c.remove(f"{APPS}/deployments/big")
    eventually("a blocked node", lambda: len(c.claims()) == 1)
    c.remove(f"{BUDGETS}/web")
    c.scored("command")


def to_the_end(c: Beside) -> None:
    """One node at a time, and not at once: ``watch`` then simulates the end before it comes."""
    c.pool(disruption={"budgets": [{"nodes": "1"}]})
    c.deploy("web", 3, "1500m", **apart("web"))
    c.scored("launch")
    c.passes(PAUSE_MIN)
    c.scale("web", 1)
    c.scored("command", 2)
    c.scored("end")


SCENARIOS: Final[tuple[Callable[[Beside], None], ...]] = (
    *(sizes, zones, hosts, weights, limits, taints, spot, selectors, preferences, daemons),
    *(least_values, one_node, several_nodes, only_empty, budgets, drift, drift_one_by_one, expiry),
    *(deletion, do_not_disrupt, disruption_budget, to_the_end),
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_each_launch_and_command_is_predicted(
    beside: Beside, scenario: Callable[[Beside], None]
) -> None:
    beside.watch.start_over()
    beside.expected.clear()
    try:
        scenario(beside)
    finally:
        beside.clear()
    printed = "\n".join(beside.watch.lines())
    print(scenario.__name__, {k: beside.watch.scores(k) for k in ("launch", "command", "end")})
    assert set(beside.watch.scores("launch")) <= {"exact", "tie"}, printed
    assert set(beside.watch.scores("command")) <= {"exact", "tie"}, printed
    assert set(beside.watch.scores("end")) <= {"inside"}, printed


def test_nothing_is_written(beside: Beside) -> None:
    calls = map(json.loads, (beside.plane.work / "audit.log").read_text().splitlines())
    asked = {"selfsubjectaccessreviews", "selfsubjectrulesreviews"}
    made = [
        (call["verb"], call["requestURI"])
        for call in calls
        if call.get("objectRef", {}).get("resource") not in asked
    ]
    assert len(made) > len(SCENARIOS)
    assert [call for call in made if call[0] not in ("get", "list", "watch")] == []
