"""Clusters whose pods claim devices, each generated from a number.

Karpenter's answers to them are recorded in ``tests/fixtures/karpenter-1.15/claims.json``: another
cluster for a number makes its answer worthless.
"""

from __future__ import annotations

import random
from typing import Any, Final

from tests.placement.builders import (
    CAPACITY_TYPE,
    HOST,
    ZONE,
    ZONES,
    Object,
    a_daemon_set,
    a_node,
    a_pod,
    a_pool,
    a_type,
    apart,
    near,
    rule,
    spread,
    wanted,
)
from tests.placement.devices import (
    DRIVER,
    a_claim,
    a_claim_template,
    a_claiming_pod,
    a_class,
    a_device,
    a_gpu_type,
    a_slice,
    a_template,
    allocated,
)

NIC_DRIVER: Final = "nic.example.com"
TAINT: Final = {"key": "gpu", "value": "y", "effect": "NoSchedule"}
POLICIES: Final = (
    None,
    {"default": "4Gi", "validRange": {"min": "2Gi", "step": "2Gi"}},
    {"default": "8Gi", "validValues": ["8Gi", "16Gi", "24Gi"]},
    {"default": "1Gi", "validRange": {"min": "1Gi", "max": "12Gi"}},
)
SELECTORS: Final = (
    f'device.attributes["{DRIVER}"].model == "h100"',
    f'device.attributes["{DRIVER}"].model == "a10"',
    f'device.attributes["{DRIVER}"].type == "mig"',
    f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0',
    f'device.driver == "{NIC_DRIVER}"',
    f'device.attributes["{DRIVER}"].index >= 1',
    f'has(device.attributes["{DRIVER}"].numa)',
    f'"numa" in device.attributes["{DRIVER}"]',
    "device.allowMultipleAllocations == true",
    f'device.attributes["{DRIVER}"].model.lowerAscii().startsWith("h")',
    f'device.attributes["{DRIVER}"].numa < 1',
)
SAFE_SELECTORS: Final = (
    f'device.driver == "{NIC_DRIVER}"',
    f'device.driver == "{DRIVER}"',
    "device.allowMultipleAllocations == true",
    f'device.attributes["{DRIVER}"].?model.orValue("") == "h100"',
)


def device_world(number: int) -> tuple[list[Object], list[Object]]:
    """Return instance types, and the objects of a cluster."""
    rng = random.Random(number)
    types = [a_type("plain", 8, 0.4), *(_gpu_type(rng, i) for i in range(rng.randint(1, 4)))]
    classes = [
        a_class(),
        a_class("h100", SELECTORS[0]),
        a_class("nic", f'device.driver == "{NIC_DRIVER}"'),
        a_class("any", "true"),
    ]
    templates = [f"t{i}" for i in range(rng.randint(1, 3))]
    pods_of_nodes = _nodes(rng, types[1:], rng.choice([0, 0, 0, 1, 2]))
    shared = [] if pods_of_nodes else [f"c{i}" for i in range(rng.choice([0, 0, 1, 2]))]
    objects = [*_pools(rng), *classes, *pods_of_nodes]
    for name in templates:
        requests, constraints = _claim(rng)
        objects.append(a_claim_template(name, *requests, constraints=constraints))
    for name in shared:
        requests, constraints = _claim(rng)
        objects.append(a_claim(name, *requests, constraints=constraints))
    for group in range(rng.randint(1, 3)):
        objects += _pods(rng, f"p{group}", templates, shared)
    if rng.random() < 0.2:
        objects.append(a_daemon_set("ds", "500m", tolerations=[{"operator": "Exists"}]))
    return types, objects


def _pools(rng: random.Random) -> list[Object]:
    limits = {"limits": {"cpu": "64"}}, {"limits": {"memory": "256Gi"}}
    special: tuple[Object, ...] = ({}, {}, *limits, {"taints": [TAINT]})
    pools = [a_pool("default", **rng.choice(special))]
    if rng.random() < 0.2:
        pools.append(a_pool("second", wanted(CAPACITY_TYPE, "In", "on-demand"), weight=5))
    return pools


def _gpu_type(rng: random.Random, number: int) -> Object:
    name = f"g{number}"
    gpus = rng.choice([_whole, _partitioned, _shared, _mixed, None])
    templates = [] if gpus is None else [gpus(rng)]
    if gpus is None or rng.random() < 0.3:
        templates.append(a_template(_nics(rng), NIC_DRIVER))
    if rng.random() < 0.15 and len(names := [d["name"] for d in templates[0]["devices"]]) > 1:
        linked = {"attribute": f"{DRIVER}/link", "devices": rng.sample(names, 2)}
        templates[0]["bindings"] = [linked]
    for template in templates:
        template["pool"] = f"{name}-{template['driver']}"
    return a_gpu_type(name, rng.choice([4, 8, 16]), round(rng.uniform(0.5, 9), 2), *templates)


def _whole(rng: random.Random) -> Object:
    devices = []
    for i in range(rng.randint(1, 4)):
        facts: dict[str, Any] = {"model": rng.choice(["a10", "h100"]), "index": i, "numa": i // 2}
        devices.append(a_device(f"gpu-{i}", facts, {"memory": rng.choice(["24Gi", "80Gi"])}))
    return a_template(devices)


def _partitioned(rng: random.Random) -> Object:
    devices, counters = [], []
    for gpu in range(rng.randint(1, 2)):
        counter = f"set-{gpu}"
        whole = {"slices": {"value": "7"}, "memory": {"value": "80Gi"}}
        counters.append({"name": counter, "counters": whole})
        parts = [("", "full", "80Gi", whole)]
        for part in range(rng.randint(1, 4)):
            amounts = {"slices": {"value": rng.choice("123")}, "memory": {"value": "20Gi"}}
            parts.append((f"-mig-{part}", "mig", "20Gi", amounts))
        for suffix, kind, memory, amounts in parts:
            facts: dict[str, Any] = {"model": "h100", "type": kind, "parent": gpu}
            consumed = [{"counterSet": counter, "counters": amounts}]
            name = f"gpu-{gpu}{suffix}"
            devices.append(a_device(name, facts, {"memory": memory}, consumesCounters=consumed))
    return a_template(devices, sharedCounters=counters)


def _shared(rng: random.Random) -> Object:
    policy = rng.choice(POLICIES)
    memory = {"value": "24Gi"} if policy is None else {"value": "24Gi", "requestPolicy": policy}
    return a_template(
        [
            a_device(f"gpu-{i}", {"model": "a10", "numa": i}, {"memory": memory},
                     allowMultipleAllocations=True)
            for i in range(rng.randint(1, 3))
        ]
    )  # fmt: skip


def _mixed(rng: random.Random) -> Object:
    devices = []
    for i in range(rng.randint(2, 4)):
        facts: dict[str, Any] = {"model": rng.choice(["a10", "h100"]), "numa": i // 2}
        more = {"allowMultipleAllocations": True} if rng.random() < 0.4 else {}
        devices.append(a_device(f"gpu-{i}", facts, {"memory": "24Gi"}, **more))
    return a_template(devices)


def _nics(rng: random.Random) -> list[Object]:
    return [
        a_device(f"nic-{i}", {"numa": i // 2, f"{DRIVER}/numa": i // 2,
                              "speed": rng.choice([100, 200])})
        for i in range(rng.randint(1, 4))
    ]  # fmt: skip


def _claim(rng: random.Random) -> tuple[list[Object], list[Object]]:
    """Return the requests and the constraints of a claim."""
    requests: list[Object] = []
    for i in range(rng.choice([1, 1, 1, 2, 2, 3])):
        if rng.random() < 0.25:
            parts = [{"name": f"s{j}", **_wanted(rng)} for j in range(rng.randint(1, 3))]
            requests.append({"name": f"r{i}", "firstAvailable": parts})
        else:
            requests.append({"name": f"r{i}", "exactly": _wanted(rng)})
    if rng.random() >= 0.35:
        return requests, []
    rule_: Object = {
        "matchAttribute": f"{DRIVER}/{rng.choice(['numa', 'model', 'parent', 'link'])}"
    }
    if rng.random() < 0.4:
        chosen = rng.choice(requests)
        is_part = "firstAvailable" in chosen and rng.random() < 0.5
        rule_["requests"] = [f"{chosen['name']}/s0" if is_part else chosen["name"]]
    return requests, [rule_]


def _wanted(rng: random.Random) -> Object:
    """Return the content of a request or of an alternative."""
    found: Object = {"deviceClassName": rng.choice(["gpu", "gpu", "gpu", "h100", "nic", "any"])}
    chance = rng.random()
    selectors: tuple[str, ...] = SELECTORS
    if chance < 0.12:
        found |= {"allocationMode": "All", "deviceClassName": rng.choice(["gpu", "nic", "any"])}
        selectors = SAFE_SELECTORS
    elif chance < 0.5:
        found["count"] = rng.choice([1, 1, 2, 2, 3])
    if rng.random() < 0.2:
        found["capacity"] = {"requests": {"memory": rng.choice(["3Gi", "8Gi", "12Gi", "30Gi"])}}
        found["selectors"] = [{"cel": {"expression": "device.allowMultipleAllocations == true"}}]
    elif rng.random() < 0.3:
        found["selectors"] = [{"cel": {"expression": rng.choice(selectors)}}]
    return found


def _nodes(rng: random.Random, types: list[Object], count: int) -> list[Object]:
    """Return nodes, most of them initialized, with what their drivers publish and a claim."""
    found: list[Object] = []
    for i in range(count):
        kind, name, ready = rng.choice(types), f"n{i}", rng.random() < 0.8
        labels = {"node.kubernetes.io/instance-type": kind["name"]}
        cpu = kind["capacity"]["cpu"]
        zone = rng.choice(ZONES)
        found += a_node(name, cpu, zone=zone, labels=labels, initialized=ready)
        if not ready:
            continue
        for template in kind["devices"]:
            found += _published(name, template)
        whole = [(t["driver"], d["name"]) for t in kind["devices"] for d in t["devices"]
                 if not d.get("allowMultipleAllocations")]  # fmt: skip
        if whole and rng.random() < 0.6:
            driver, device = rng.choice(whole)
            status = allocated(name, device, driver=driver, pods=[f"old-{i}"])
            request = {"name": "gpu", "exactly": {"deviceClassName": "any"}}
            found.append(a_claim(f"held-{i}", request, status=status))
            own = [{"name": "x", "resourceClaimName": f"held-{i}"}]
            found.append(a_pod(f"old-{i}", "500m", node=name, resourceClaims=own))
    return found


def _published(node: str, template: Object) -> list[Object]:
    counters, driver = template.get("sharedCounters"), template["driver"]
    pool = {"resourceSliceCount": 2 if counters else 1}
    found = [a_slice(node, template["devices"], driver=driver, pool=pool)]
    if counters:
        name = f"{node}-{driver}-counters"
        found.append(a_slice(node, [], driver=driver, name=name, pool=pool,
                             sharedCounters=counters))  # fmt: skip
    return found


def _pods(rng: random.Random, name: str, templates: list[str], shared: list[str]) -> list[Object]:
    fields: Object = {"labels": {"app": name}}
    chance = rng.random()
    if chance < 0.1:
        fields["topologySpreadConstraints"] = [spread(rng.choice([ZONE, HOST]), name)]
    elif chance < 0.18:
        fields["affinity"] = apart(rule(HOST, name))
    elif chance < 0.22:
        fields["affinity"] = near(rule(rng.choice([HOST, ZONE]), name))
    elif chance < 0.27:
        fields["nodeSelector"] = {ZONE: "zone-b"}
    if rng.random() < 0.6:
        fields["tolerations"] = [{"key": "gpu", "operator": "Exists"}]
    own = rng.sample(templates, min(len(templates), rng.choice([1, 1, 2])))
    if rng.random() < 0.12:
        own = []
    claims = [rng.choice(shared)] if shared and rng.random() < 0.5 else []
    fields["cpu"] = rng.choice(["500m", "1", "2"])
    count = rng.randint(1, 5)
    return [a_claiming_pod(f"{name}-{i}", *own, claims=claims, **fields) for i in range(count)]
