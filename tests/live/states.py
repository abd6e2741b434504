"""Random states of a cluster and random pods, as the API server accepts them.

Each feature is frequent enough that a few hundred pods combine any two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

Object = dict[str, Any]

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
NAMESPACES = {"default": {"env": "test"}, "other": {"env": "prod"}}
ANYWHERE: list[Object] = [{"operator": "Exists"}]
"""Tolerations of a pod that runs already."""

_APPS, _ZONES, _RACKS = ("a", "b", "c"), ("z1", "z2", "z3"), ("k1", "k2", "k3", "k4")
_GPU = "example.com/gpu"
_TOLERATIONS: tuple[Object, ...] = (
    {"operator": "Exists"},
    {"key": "team", "operator": "Exists"},
    {"key": "team", "value": "x", "effect": "NoSchedule"},
    {"key": "soft", "operator": "Exists", "effect": "PreferNoSchedule"},
    {"key": "soft", "value": "1"},
    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
)


class RandomState:
    """Nodes and pods of one seed."""

    def __init__(self, seed: int, most_nodes: int = 10) -> None:
        self._random = Random(seed)
        self.nodes = [self._node(f"n{number}") for number in range(self.number(3, most_nodes))]

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def is_so(self, share: float) -> bool:
        """Return true with this probability."""
        return self._random.random() < share

    def one_of(self, *values: Any) -> Any:
        return self._random.choice(values)

    def _node(self, name: str) -> Object:
        labels = {HOSTNAME: name, "kubernetes.io/arch": self.one_of("amd64", "arm64")}
        optional = (("disk", ("ssd", "hdd"), 0.5), ("rack", _RACKS, 0.6), (ZONE, _ZONES, 0.9))
        labels |= {key: self.one_of(*of) for key, of, share in optional if self.is_so(share)}
        if self.is_so(0.5):
            labels["generation"] = str(self.number(1, 9))
        room = {
            "cpu": self.one_of("1", "2", "4", "8"),
            "memory": self.one_of("2Gi", "4Gi", "8Gi", "16Gi"),
            "pods": self.one_of("5", "20", "110"),
            "ephemeral-storage": self.one_of("10Gi", "50Gi"),
        }
        if self.is_so(0.25):
            room[_GPU] = str(self.number(1, 4))
        taints = []
        if self.is_so(0.25):
            effect = self.one_of("NoSchedule", "PreferNoSchedule", "NoExecute")
            taints.append({"key": "team", "value": self.one_of("x", "y"), "effect": effect})
        if self.is_so(0.25):
            value = self.one_of("1", "2")
            taints.append({"key": "soft", "value": value, "effect": "PreferNoSchedule"})
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints, "unschedulable": self.is_so(0.08)},
            "status": {
                "capacity": room,
                "allocatable": room,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }

    def running(self, name: str) -> Object:
        """Return a pod that runs on one of the nodes."""
        pod = self.pod(name)
        node = self.one_of(*self.nodes)["metadata"]["name"]
        pod["spec"] |= {"nodeName": node, "tolerations": ANYWHERE}
        return pod

    def pod(self, name: str) -> Object:
        """Return a pod without a node."""
        labels = {"app": self.one_of(*_APPS)}
        if self.is_so(0.6):
            labels["tier"] = self.one_of("web", "db")
        if self.is_so(0.4):
            labels["revision"] = self.one_of("1", "2")
        namespace = "default" if self.is_so(0.8) else "other"
        spec = self._resources()
        affinity = self._affinity()
        if affinity:
            spec["affinity"] = affinity
        if self.is_so(0.3):
            spreads = [self._spread() for _ in range(self.number(1, 3))]
            keys = [(spread["topologyKey"], spread["whenUnsatisfiable"]) for spread in spreads]
            spec["topologySpreadConstraints"] = list(dict(zip(keys, spreads, strict=True)).values())
        if self.is_so(0.15):
            spec["nodeSelector"] = {"disk": self.one_of("ssd", "hdd")}
        if self.is_so(0.35):
            spec["tolerations"] = [self.one_of(*_TOLERATIONS)]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": spec,
        }

    def _resources(self) -> Object:
        """Return the containers, and the resources of the whole pod if it states them."""
        if self.is_so(0.1):
            amounts = {"cpu": "2", "memory": "2Gi"}
            container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "100m"}}}
            return {"containers": [container], "resources": {"requests": amounts}}
        containers = [self._container(f"c{number}") for number in range(self.number(1, 2))]
        spec: Object = {"containers": containers}
        if self.is_so(0.2):
            first = self._container("i0")
            if self.is_so(0.5):
                first["restartPolicy"] = "Always"
            spec["initContainers"] = [first, self._container("i1")][: self.number(1, 2)]
        return spec

    def _container(self, name: str) -> Object:
        requests = {}
        if self.is_so(0.85):
            requests["cpu"] = self.one_of("50m", "100m", "250m", "500m", "900m", "1500m")
        if self.is_so(0.85):
            requests["memory"] = self.one_of("64Mi", "128Mi", "256Mi", "512Mi", "1500Mi")
        if self.is_so(0.12):
            requests["ephemeral-storage"] = self.one_of("1Gi", "6Gi")
        limits = {_GPU: "1"} if self.is_so(0.1) else {}
        found: Object = {"name": name, "image": "x"}
        found["resources"] = {"requests": requests | limits, "limits": limits}
        if self.is_so(0.1):
            port = {"containerPort": 80, "hostPort": self.one_of(8080, 9090)}
            address = {"hostIP": self.one_of("127.0.0.1", "10.0.0.1")} if self.is_so(0.4) else {}
            found["ports"] = [port | {"protocol": self.one_of("TCP", "UDP")} | address]
        return found

    def _affinity(self) -> Object:
        found = {}
        if self.is_so(0.3):
            found["nodeAffinity"] = self._preferences(
                lambda terms: {"nodeSelectorTerms": terms}, self._node_term, "preference"
            )
        for kind in ("podAffinity", "podAntiAffinity"):
            if self.is_so(0.3):
                found[kind] = self._preferences(list, self._pod_term, "podAffinityTerm")
        return found

    def _preferences(
        self, required: Callable[[list[Object]], Any], term: Callable[[], Object], name: str
    ) -> Object:
        """Return required and preferred terms; ``name`` is where a preference has its term."""
        suffix, found = "DuringSchedulingIgnoredDuringExecution", {}
        if self.is_so(0.5):
            found[f"required{suffix}"] = required([term() for _ in range(self.number(1, 2))])
        if self.is_so(0.7):
            found[f"preferred{suffix}"] = [
                {"weight": self.number(1, 100), name: term()} for _ in range(self.number(1, 2))
            ]
        return found

    def _node_term(self) -> Object:
        if self.is_so(0.1):
            name = self.one_of(*self.nodes)["metadata"]["name"]
            field = {"key": "metadata.name", "operator": self.one_of("In", "NotIn")}
            return {"matchFields": [field | {"values": [name]}]}
        zones, number = [self.one_of(*_ZONES)], [str(self.number(2, 7))]
        expressions: tuple[Object, ...] = (
            {"key": ZONE, "operator": self.one_of("In", "NotIn"), "values": zones},
            {"key": "disk", "operator": self.one_of("Exists", "DoesNotExist")},
            {"key": "generation", "operator": self.one_of("Gt", "Lt"), "values": number},
            {"key": "rack", "operator": "NotIn", "values": ["k1"]},
        )
        return {"matchExpressions": [self.one_of(*expressions)]}

    def _pod_term(self) -> Object:
        found: Object = {"topologyKey": self.one_of(HOSTNAME, ZONE, "rack")}
        found["labelSelector"] = self._selector()
        if self.is_so(0.15):
            found["namespaceSelector"] = self.one_of({}, {"matchLabels": {"env": "prod"}})
        elif self.is_so(0.2):
            found["namespaces"] = self.one_of(["default"], ["other"], ["default", "other"])
        if self.is_so(0.15):
            found[self.one_of("matchLabelKeys", "mismatchLabelKeys")] = ["revision"]
        return found

    def _spread(self) -> Object:
        found: Object = {"maxSkew": self.number(1, 3), "labelSelector": self._selector()}
        found["topologyKey"] = self.one_of(HOSTNAME, ZONE, "rack")
        found["whenUnsatisfiable"] = self.one_of("DoNotSchedule", "ScheduleAnyway")
        if found["whenUnsatisfiable"] == "DoNotSchedule" and self.is_so(0.3):
            found["minDomains"] = self.number(1, 4)
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if self.is_so(0.25):
                found[policy] = self.one_of("Honor", "Ignore")
        if self.is_so(0.2):
            found["matchLabelKeys"] = ["revision"]
        return found

    def _selector(self) -> Object:
        app = self.one_of(*_APPS)
        return self.one_of(
            {"matchLabels": {"app": app}},
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [app]}]},
            {
                "matchExpressions": [
                    {"key": "tier", "operator": self.one_of("Exists", "DoesNotExist")}
                ]
            },
            {"matchLabels": {"tier": "web", "app": app}},
            {},
        )
