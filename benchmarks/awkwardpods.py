"""Pods of one tenant that are awkward in many ways, for ``benchmarks.awkward`` and its tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tests.placement.builders import (
    HOST,
    PREFERRED,
    ZONE,
    Object,
    a_pod,
    apart,
    near,
    on,
    spread,
    wanted,
)
from tests.placement.devices import a_claim, a_class, a_request

TENANT: Final = "crowd"

Awkward = Callable[[int], list[Object]]
"""Returns n awkward pods, or pods that are awkward n times, and what belongs to them."""


def _pod(number: int, **fields: object) -> Object:
    """Return the pod with that number, labelled ``app=aNUMBER``."""
    pod = a_pod(f"p-{number:04}", "100m", "64Mi", **fields)  # type: ignore[arg-type]
    pod["metadata"] |= {"namespace": TENANT, "labels": {"app": f"a{number}", "tenant": TENANT}}
    return pod


def _term(key: str, operator: str, value: str) -> Object:
    """Return a term about pods whose label ``app`` is, or is not, a value."""
    expression = {"key": "app", "operator": operator, "values": [value]}
    return {"topologyKey": key, "labelSelector": {"matchExpressions": [expression]}}


def _of_all(key: str) -> Object:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"tenant": TENANT}}}


def _each(make: Callable[[int], Mapping[str, object]]) -> Awkward:
    """Return n pods with what is made from their numbers."""
    return lambda count: [_pod(number, **make(number)) for number in range(count)]


def _one(make: Callable[[int], Mapping[str, object]]) -> Awkward:
    """Return one pod that is awkward n times."""
    return lambda count: [_pod(0, **make(count))]


def _spread_over(key: str, number: int) -> Object:
    expression = {"key": "app", "operator": "NotIn", "values": [f"z{number}"]}
    selector = {"matchExpressions": [expression]}
    return {**spread(key), "labelSelector": selector}


def _soft_spread_over(key: str, number: int) -> Object:
    return {**_spread_over(key, number), "whenUnsatisfiable": "ScheduleAnyway"}


def _preferring_nodes(values: Sequence[int]) -> Object:
    terms = [
        {"weight": 1 + value % 100, "preference": {
            "matchExpressions": [wanted("example.com/size", "NotIn", f"v{value}")]}}
        for value in values
    ]  # fmt: skip
    return {"affinity": {"nodeAffinity": {PREFERRED: terms}}}


def _preferring_distance(values: Sequence[int]) -> Object:
    terms = [
        {"weight": 1 + v % 100, "podAffinityTerm": _term(ZONE, "NotIn", f"z{v}")} for v in values
    ]
    return {"affinity": {"podAntiAffinity": {PREFERRED: terms}}}


def _with_volumes(count: int) -> list[Object]:
    made: list[Object] = []
    for number in range(count):
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": f"c{number}"}}
        made.append(_pod(number, volumes=[claim]))
        zone = wanted(ZONE, "In", f"zone-{'abc'[number % 3]}")
        node_affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
        made.append({
            "kind": "PersistentVolume", "metadata": {"name": f"v{number}"},
            "spec": {"nodeAffinity": node_affinity, "csi": {"driver": "ebs.csi.aws.com"}},
        })  # fmt: skip
        made.append({
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"c{number}", "namespace": TENANT},
            "spec": {"volumeName": f"v{number}"},
        })  # fmt: skip
    return made


def _behind_budgets(operator: str, value: str) -> Awkward:
    """Return n pods and n PodDisruptionBudgets; one selects the pods of its value, or the others.

    ``value`` is the beginning of the label's value.
    """

    def make(count: int) -> list[Object]:
        made = [_pod(number) for number in range(count)]
        for number in range(count):
            selected = {"key": "app", "operator": operator, "values": [f"{value}{number}"]}
            made.append({
                "kind": "PodDisruptionBudget",
                "metadata": {"name": f"b{number:04}", "namespace": TENANT},
                "spec": {"minAvailable": 0, "selector": {"matchExpressions": [selected]}},
                "status": {"disruptionsAllowed": 1},
            })  # fmt: skip
        return made

    return make


def _large(count: int) -> list[Object]:
    """Return pods with 300 containers, init containers, labels, annotations and owners each."""
    made = []
    for number in range(count):
        pod = _pod(number)
        containers = [
            {"name": f"c{i}", "resources": {"requests": {"cpu": "1m", "memory": f"{1 + i % 5}Ki"}}}
            for i in range(300)
        ]
        pod["spec"]["containers"] = containers
        pod["spec"]["initContainers"] = [
            {**item, **({"restartPolicy": "Always"} if i % 2 else {})}
            for i, item in enumerate(containers)
        ]
        pod["metadata"]["labels"] |= {f"example.com/l{i}": f"v{number}" for i in range(300)}
        pod["metadata"]["annotations"] = {f"example.com/a{i}": "x" * 50 for i in range(300)}
        (owner,) = pod["metadata"]["ownerReferences"]
        pod["metadata"]["ownerReferences"] = [{**owner, "name": f"o{i}"} for i in range(300)]
        made.append(pod)
    return made


def _behind_label_keys(_: int) -> Object:
    keys = [f"example.com/k{i}" for i in range(20)]
    return {"topologySpreadConstraints": [{**_of_all(ZONE), "maxSkew": 1, "matchLabelKeys": keys,
                                           "whenUnsatisfiable": "DoNotSchedule"}]}  # fmt: skip


def _in_namespaces(number: int) -> Object:
    """Return anti-affinity towards namespaces that 20 expressions select."""
    labels = [{"key": f"example.com/n{i}", "operator": "DoesNotExist"} for i in range(20)]
    term = {**_term(HOST, "NotIn", f"z{number}"), "namespaceSelector": {"matchExpressions": labels}}
    return {"affinity": apart(term)}


def _labelled(count: int) -> list[Object]:
    """Return one pod with n labels, by each of which it spreads with other revisions."""
    keys = [f"example.com/k{i}" for i in range(count)]
    rule = {**spread(ZONE), "matchLabelKeys": keys}
    pod = _pod(0, topologySpreadConstraints=[rule])
    pod["metadata"]["labels"] |= dict.fromkeys(keys, "x" * 63)
    return [pod]


def _repelling_with_keys(count: int) -> list[Object]:
    """Return one pod with n labels and n rules, each of which adds a label to its selector."""
    keys = [f"example.com/k{i}" for i in range(count)]
    terms = [{**_of_all(HOST), "matchLabelKeys": [key]} for key in keys]
    pod = _pod(0, affinity=apart(*terms))
    pod["metadata"]["labels"] |= dict.fromkeys(keys, "x")
    return [pod]


def _with_containers(count: int) -> list[Object]:
    """Return one pod with n containers, init containers, sidecars and ephemeral containers each."""
    pod = _pod(0)
    requests = {"cpu": "1m", "memory": "1Ki"}
    made = [{"name": f"c{i}", "resources": {"requests": requests}} for i in range(count)]
    pod["spec"] |= {
        "containers": made,
        "initContainers": [*made, *({**item, "restartPolicy": "Always"} for item in made)],
        "ephemeralContainers": made,
    }
    return [pod]


def _owned(count: int) -> list[Object]:
    """Return one pod with n owners."""
    pod = _pod(0)
    (owner,) = pod["metadata"]["ownerReferences"]
    owners = [{**owner, "name": f"o{i}", "uid": f"u{i}"} for i in range(count)]
    pod["metadata"]["ownerReferences"] = owners
    return [pod]


def _with_claims_of_volumes(count: int) -> list[Object]:
    """Return one pod with n volumes that exist, in one zone."""
    made = _with_volumes(3 * count)  # a pod, its volume and its claim, for each of three zones
    names = [f"c{i}" for i in range(0, 3 * count, 3)]
    claims = [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in names]
    return [_pod(0, volumes=claims), *made[1::9], *made[2::9]]


def _new_volume(name: str, storage_class: str) -> Object:
    spec = {"storageClassName": storage_class}
    return {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}


def _selecting_devices(count: int) -> list[Object]:
    """Return n pods with a claim of their own, whose device meets a selector of its own."""
    made: list[Object] = [a_class()]
    for number in range(count):
        text = f'device.attributes["gpu.example.com"].index != {16 + number}'
        claim = a_claim(f"d{number}", a_request("r", 1, text))
        claim["metadata"]["namespace"] = TENANT
        pod = _pod(number, resourceClaims=[{"name": "d", "resourceClaimName": f"d{number}"}])
        pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "d"}]
        made += [claim, pod]
    return made


def _taking_eight_devices(count: int) -> list[Object]:
    """Return n pods with a claim of their own for eight devices, half of those of a node."""
    made: list[Object] = [a_class()]
    for number in range(count):
        claim = a_claim(f"d{number}", *(a_request(f"r{i}") for i in range(8)))
        claim["metadata"]["namespace"] = TENANT
        pod = _pod(number, resourceClaims=[{"name": "d", "resourceClaimName": f"d{number}"}])
        pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "d"}]
        made += [claim, pod]
    return made


def _sized(operator: str, *values: str) -> Object:
    return wanted("example.com/size", operator, *values)


def _all_of_it(count: int) -> dict[str, object]:
    """Return a pod's fields with n tolerations, labels of nodes, conditions and preferences."""
    conditions = [_sized("NotIn", f"v{i}") for i in range(count)]
    preferred = _preferring_nodes(range(count))["affinity"]["nodeAffinity"]
    required = on(conditions)["nodeAffinity"]
    return {
        "affinity": {"nodeAffinity": {**required, **preferred}},
        "tolerations": [{"key": f"t{i}"} for i in range(count)],
        "nodeSelector": {f"example.com/s{i}": "x" for i in range(count)},
    }


def _without(*names: str) -> Callable[[int], dict[str, object]]:
    return lambda count: {k: v for k, v in _all_of_it(count).items() if k not in names}


WAYS: Final[Mapping[str, Awkward]] = {
    "requests of its own": lambda n: [
        a_pod(f"p-{i:04}", f"{100 + i}m", f"{64 + i}Mi") for i in range(n)
    ],
    "node affinity of its own": _each(
        lambda i: {"affinity": on([wanted("example.com/size", "NotIn", f"v{i}")])}
    ),
    "tolerations of its own": _each(lambda i: {"tolerations": [{"key": f"t{i}"}]}),
    "repels all others, by host": _each(
        lambda i: {"affinity": apart(_term(HOST, "NotIn", f"z{i}"))}
    ),
    "repels all others, by zone": _each(
        lambda i: {"affinity": apart(_term(ZONE, "NotIn", f"z{i}"))}
    ),
    "repels one other, by host": _each(
        lambda i: {"affinity": apart(_term(HOST, "In", f"a{i + 1}"))}
    ),
    "repels its own tenant's": _each(lambda _: {"affinity": apart(_of_all(HOST))}),
    "follows another, by host": _each(
        lambda i: {"affinity": near(_term(HOST, "In", f"a{max(i - 1, 0)}"))}
    ),
    "follows any, by zone": _each(lambda i: {"affinity": near(_term(ZONE, "NotIn", f"z{i}"))}),
    "spreads by a rule of its own, over zones": _each(
        lambda i: {"topologySpreadConstraints": [_spread_over(ZONE, i)]}
    ),
    "spreads by a rule of its own, over hosts": _each(
        lambda i: {"topologySpreadConstraints": [_spread_over(HOST, i)]}
    ),
    "repels by a key of its own": _each(
        lambda i: {"affinity": apart(_of_all(f"example.com/k{i}"))}
    ),
    "spreads over a key of its own": _each(
        lambda i: {"topologySpreadConstraints": [_soft_spread_over(f"example.com/k{i}", i)]}
    ),
    "prefers nodes of its own": _each(lambda i: _preferring_nodes([i])),
    "prefers distance by a rule of its own": _each(lambda i: _preferring_distance([i])),
    "follows any by zone, repels all by host": _each(
        lambda i: {
            "affinity": {
                **near(_term(ZONE, "NotIn", f"z{i}")),
                **apart(_term(HOST, "NotIn", f"z{i}")),
            }
        }
    ),
    "spreads over zones and hosts, repels all by host": _each(
        lambda i: {
            "topologySpreadConstraints": [_spread_over(ZONE, i), _spread_over(HOST, i)],
            "affinity": apart(_term(HOST, "NotIn", f"z{i}")),
        }
    ),
    "spreads with a skew of its own": _each(
        lambda i: {"topologySpreadConstraints": [{**_spread_over(ZONE, i), "maxSkew": 1 + i}]}
    ),
    "20 host ports of its own": _each(lambda i: {"ports": range(10_000 + 20 * i, 10_020 + 20 * i)}),
    "a host port of its own": _each(lambda i: {"ports": [10_000 + i]}),
    "the same host port": _each(lambda _: {"ports": [10_000]}),
    "a volume of its own": _with_volumes,
    "n PodDisruptionBudgets for each": _behind_budgets("NotIn", "z"),
    "a PodDisruptionBudget of its own": _behind_budgets("In", "a"),
    "a device claim of its own": _each(
        lambda i: {"resourceClaims": [{"name": "d", "resourceClaimName": f"d{i}"}]}
    ),
    "300 containers, labels and owners each": _large,
    "20 matchLabelKeys each": _each(_behind_label_keys),
    "repels in the namespaces that a rule selects": _each(_in_namespaces),
    "20 preferred nodes each": _each(lambda i: _preferring_nodes(range(20 * i, 20 * i + 20))),
    "20 preferred distances each": _each(
        lambda i: _preferring_distance(range(20 * i, 20 * i + 20))
    ),
    "20 soft spreads each": _each(
        lambda i: {
            "topologySpreadConstraints": [
                _soft_spread_over(ZONE, j) for j in range(20 * i, 20 * i + 20)
            ]
        }
    ),
    "20 alternatives each": _each(
        lambda i: {
            "affinity": on(
                *([wanted("example.com/size", "In", f"v{j}")] for j in range(20 * i, 20 * i + 20))
            )
        }
    ),
    "a priority of its own": _each(lambda i: {"priority": i, "preemptionPolicy": "Never"}),
    "urgent, with a priority of its own": _each(lambda i: {"priority": 1_000_000 + i}),
    "behind scheduling gates": _each(lambda i: {"schedulingGates": [{"name": f"g{i}"}]}),
    "overhead of its own": _each(lambda i: {"overhead": {"cpu": f"{i}m", "memory": f"{i}Ki"}}),
    "a new volume of its own": _each(
        lambda i: {
            "volumes": [
                {
                    "name": "data",
                    "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": f"s{i}"}}},
                }
            ]
        }
    ),
    "20 device claims each": _each(
        lambda i: {
            "resourceClaims": [
                {"name": f"d{j}", "resourceClaimName": f"d{i}-{j}"} for j in range(20)
            ]
        }
    ),
    "a node selector of its own": _each(lambda i: {"nodeSelector": {f"example.com/s{i}": "x"}}),
    "a hostname of its own": _each(
        lambda i: {"affinity": on([wanted(HOST, "In", f"crowd-{i:04}")])}
    ),
    "not on 20 hosts of its own": _each(
        lambda i: {"affinity": on([wanted(HOST, "NotIn", *(f"h{i}-{j}" for j in range(20)))])}
    ),
    "a zone and a type of its own": _each(
        lambda i: {
            "affinity": on(
                [
                    wanted(ZONE, "In", f"zone-{'abc'[i % 3]}"),
                    wanted("node.kubernetes.io/instance-type", "NotIn", f"t{i}"),
                ]
            )
        }
    ),
    "one pod: n alternatives": _one(
        lambda n: {"affinity": on(*([wanted("example.com/size", "In", f"v{i}")] for i in range(n)))}
    ),
    "one pod: n conditions": _one(
        lambda n: {"affinity": on([wanted("example.com/size", "NotIn", f"v{i}") for i in range(n)])}
    ),
    "one pod: n rules": _one(
        lambda n: {"affinity": apart(*(_term(HOST, "NotIn", f"z{i}") for i in range(n)))}
    ),
    "one pod: n spreads": _one(
        lambda n: {"topologySpreadConstraints": [_spread_over(ZONE, i) for i in range(n)]}
    ),
    "one pod: n soft spreads": _one(
        lambda n: {"topologySpreadConstraints": [_soft_spread_over(ZONE, i) for i in range(n)]}
    ),
    "one pod: n preferred nodes": _one(lambda n: _preferring_nodes(range(n))),
    "one pod: n preferred distances": _one(lambda n: _preferring_distance(range(n))),
    "one pod: n tolerations": _one(lambda n: {"tolerations": [{"key": f"t{i}"} for i in range(n)]}),
    "one pod: n host ports": _one(lambda n: {"ports": range(10_000, 10_000 + n)}),
    "one pod: n values that are excluded": _one(
        lambda n: {"affinity": on([_sized("NotIn", *(f"v{i}" for i in range(n)))])}
    ),
    "one pod: n values": _one(
        lambda n: {"affinity": on([_sized("In", *(f"v{i}" for i in range(n)))])}
    ),
    "one pod: n bounds": _one(
        lambda n: {"affinity": on([_sized("Gt" if i % 2 else "Lt", f"{i}") for i in range(n)])}
    ),
    "one pod: n keys of conditions": _one(
        lambda n: {"affinity": on([wanted(f"example.com/k{i}", "Exists") for i in range(n)])}
    ),
    "one pod: n namespaces": _one(
        lambda n: {
            "affinity": apart({**_of_all(HOST), "namespaces": [f"other-{i}" for i in range(n)]})
        }
    ),
    "one pod: n rules about n namespaces": _one(
        lambda n: {
            "affinity": apart(
                *({**_of_all(f"example.com/k{i}"), "namespaceSelector": {}} for i in range(n))
            )
        }
    ),
    "one pod: n matchLabelKeys": _labelled,
    "one pod: n rules with a matchLabelKey": _repelling_with_keys,
    "one pod: n keys of spreads": _one(
        lambda n: {
            "topologySpreadConstraints": [_spread_over(f"example.com/k{i}", i) for i in range(n)]
        }
    ),
    "one pod: n spreads and alternatives": _one(
        lambda n: {
            "topologySpreadConstraints": [_spread_over(ZONE, i) for i in range(n)],
            "affinity": on(*([_sized("NotIn", f"v{i}")] for i in range(n))),
        }
    ),
    "one pod: n spreads and tolerations": _one(
        lambda n: {
            "topologySpreadConstraints": [
                {**_spread_over(ZONE, i), "nodeTaintsPolicy": "Honor"} for i in range(n)
            ],
            "tolerations": [{"key": f"t{i}"} for i in range(n)],
        }
    ),
    "one pod: n rules and tolerations": _one(
        lambda n: {
            "affinity": apart(*(_term(HOST, "NotIn", f"z{i}") for i in range(n))),
            "tolerations": [{"key": f"t{i}"} for i in range(n)],
        }
    ),
    "one pod: n alternatives and tolerations": _one(
        lambda n: {
            "affinity": on(*([_sized("NotIn", f"v{i}")] for i in range(n))),
            "tolerations": [{"key": f"t{i}"} for i in range(n)],
        }
    ),
    "one pod: n alternatives and node labels": _one(
        lambda n: {
            "affinity": on(*([_sized("NotIn", f"v{i}")] for i in range(n))),
            "nodeSelector": {f"example.com/s{i}": "x" for i in range(n)},
        }
    ),
    "one pod: n preferences and conditions": _one(_without("tolerations", "nodeSelector")),
    "one pod: n preferences and tolerations": _one(
        lambda n: {
            **_preferring_nodes(range(n)),
            "tolerations": [{"key": f"t{i}"} for i in range(n)],
        }
    ),
    "one pod: n of all conditions": _one(_all_of_it),
    "one pod: n containers of each kind": _with_containers,
    "one pod: n owners": _owned,
    "one pod: n volumes": _with_claims_of_volumes,
    "one pod: n new volumes": _one(
        lambda n: {"volumes": [_new_volume(f"v{i}", f"s{i}") for i in range(n)]}
    ),
    "one pod: n resources": _one(lambda n: {"more": {f"example.com/r{i}": "1" for i in range(n)}}),
    "one pod: n resources of overhead": _one(
        lambda n: {"overhead": {f"example.com/r{i}": "1" for i in range(n)}}
    ),
    "one pod: n scheduling gates": _one(
        lambda n: {"schedulingGates": [{"name": f"example.com/g{i}"} for i in range(n)]}
    ),
    "one pod: n device claims": _one(
        lambda n: {
            "resourceClaims": [{"name": f"d{i}", "resourceClaimName": f"d{i}"} for i in range(n)]
        }
    ),
    "a resource of its own": _each(lambda i: {"more": {f"example.com/r{i}": "1"}}),
    "20 resources of its own": _each(
        lambda i: {"more": {f"example.com/r{j}": "1" for j in range(20 * i, 20 * i + 20)}}
    ),
    "20 tolerations of its own": _each(
        lambda i: {"tolerations": [{"key": f"t{j}"} for j in range(20 * i, 20 * i + 20)]}
    ),
    "a bound of its own": _each(lambda i: {"affinity": on([_sized("Gt", f"{i}")])}),
    "excludes 100 values of its own": _each(
        lambda i: {"affinity": on([_sized("NotIn", *(f"v{i}-{j}" for j in range(100)))])}
    ),
    "repels 20 namespaces of its own": _each(
        lambda i: {
            "affinity": apart({**_of_all(HOST), "namespaces": [f"o{i}-{j}" for j in range(20)]})
        }
    ),
    "20 node labels of its own": _each(
        lambda i: {"nodeSelector": {f"example.com/s{j}": "x" for j in range(20 * i, 20 * i + 20)}}
    ),
    "20 new volumes of its own": _each(
        lambda i: {"volumes": [_new_volume(f"v{j}", f"s{i}-{j}") for j in range(20)]}
    ),
    "a device with a selector of its own": _selecting_devices,
    "a claim of its own for eight devices": _taking_eight_devices,
    "a scheduler of its own": _each(lambda i: {"schedulerName": f"scheduler-{i}"}),
    "a priority class of its own": _each(lambda i: {"priorityClassName": f"class-{i}"}),
    "a grace period of its own": _each(lambda i: {"terminationGracePeriodSeconds": i}),
}
