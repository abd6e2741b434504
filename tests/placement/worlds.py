"""Random clusters with every feature of placement, for the property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.placement.builders import (
    ARCH,
    CAPACITY_TYPE,
    HOST,
    PREFERRED,
    ZONE,
    Object,
    a_daemon_set,
    a_node,
    a_pod,
    a_pool,
    apart,
    near,
    on,
    rule,
    spread,
    wanted,
)

_APPS = ("web", "db", "job")
_TAINT = {"key": "team", "value": "red", "effect": "NoSchedule"}
_SOFT = {"key": "soft", "effect": "PreferNoSchedule"}
_keys = st.sampled_from([ZONE, HOST, CAPACITY_TYPE])
_apps = st.sampled_from(_APPS)
_zones = st.sampled_from(["zone-a", "zone-b", "zone-c"])


@st.composite
def pools(draw: st.DrawFn, name: str) -> Object:
    spec: dict[str, Any] = {}
    if draw(st.booleans()):
        spec["limits"] = draw(st.sampled_from([{"cpu": "24"}, {"nodes": "2"}, {"memory": "64Gi"}]))
    if draw(st.integers(0, 3)) == 0:
        spec["taints"] = [draw(st.sampled_from([_TAINT, _SOFT]))]
    if draw(st.integers(0, 2)) == 0:
        spec["weight"] = draw(st.integers(1, 3))
    requirements = draw(
        st.lists(
            st.sampled_from(
                [
                    wanted(ARCH, "In", "amd64"),
                    wanted(CAPACITY_TYPE, "In", "on-demand"),
                    wanted(ZONE, "NotIn", "zone-c"),
                    wanted("example.com/size", "Gt", "3"),
                    wanted("node.kubernetes.io/instance-type", "Exists", min_values=2),
                ]
            ),
            max_size=2,
            unique_by=lambda entry: str(entry["key"]),
        )
    )
    return a_pool(name, *requirements, **spec)


@st.composite
def rules(draw: st.DrawFn, app: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return parts of a spec and of its affinity with topology rules."""
    other, host_or_zone = draw(_apps), draw(st.sampled_from([ZONE, HOST]))
    skew = draw(st.integers(1, 2))
    soft = {"weight": 5, "podAffinityTerm": rule(draw(_keys), app)}
    return draw(
        st.sampled_from(
            [
                ({}, {}),
                ({"topologySpreadConstraints": [spread(draw(_keys), app, skew)]}, {}),
                ({"topologySpreadConstraints": [spread(ZONE, app), spread(HOST, app, 2)]}, {}),
                ({}, apart(rule(draw(_keys), app))),
                ({}, apart(rule(HOST, other))),
                ({}, near(rule(host_or_zone, app))),
                ({}, near(rule(ZONE, other))),
                ({}, {"podAntiAffinity": {PREFERRED: [soft]}}),
                ({"topologySpreadConstraints": [spread(draw(_keys), app, soft=True)]}, {}),
            ]
        )
    )


@st.composite
def workloads(draw: st.DrawFn, app: str) -> list[Object]:
    """Return a few equal pods, with topology rules and node preferences."""
    spec, affinity = draw(rules(app))
    zone = draw(_zones)
    node_preferences: list[dict[str, Any]] = [
        {},
        {"nodeSelector": {ZONE: zone}},
        {"nodeSelector": {CAPACITY_TYPE: "spot"}},
        {"tolerations": [{"operator": "Exists"}]},
    ]
    if not spec and not affinity:
        # Karpenter counts by the current alternative; the check considers all of them
        either = on([wanted(ARCH, "In", "arm64")], [wanted(ZONE, "In", zone)])
        node_preferences.append({"affinity": either})
    launch_requests = draw(st.sampled_from(node_preferences))
    if affinity:
        spec = {**spec, "affinity": affinity}
    ports = [draw(st.sampled_from([8080, 9090]))] if draw(st.integers(0, 5)) == 0 else []
    cpu = draw(st.sampled_from(["100m", "500m", "1", "3", "7", "20"]))
    memory = draw(st.sampled_from(["64Mi", "1Gi", "6Gi"]))
    fields: dict[str, Any] = {"labels": {"app": app}, "ports": ports, **spec, **launch_requests}
    count = draw(st.integers(1, 5))
    return [a_pod(f"{app}-{i}", cpu, memory, **fields) for i in range(count)]


@st.composite
def worlds(draw: st.DrawFn) -> list[Object]:
    """Return NodePools, nodes with pods, optionally a DaemonSet, and pending pods."""
    objects = [draw(pools(name)) for name in draw(st.sampled_from([["one"], ["one", "two"]]))]
    if draw(st.integers(0, 2)) == 0:
        objects.append(a_daemon_set("agent", draw(st.sampled_from(["100m", "1"]))))
    for index in range(draw(st.integers(0, 3))):
        name, going = f"node-{index}", draw(st.integers(0, 4)) == 0
        objects += a_node(
            name,
            draw(st.sampled_from(["2", "4", "8"])),
            zone=draw(_zones),
            pool="one",
            initialized=draw(st.booleans()),
            deleting=going,
            taints=[_TAINT] if draw(st.integers(0, 4)) == 0 else [],
        )
        for number in range(draw(st.integers(0, 2))):
            # pods with affinity to a moving pod cannot know in advance where it will be
            app = "mover" if going else draw(_apps)
            objects.append(
                a_pod(f"old-{index}-{number}", "500m", "512Mi", node=name, labels={"app": app})
            )
    for app in draw(st.lists(_apps, min_size=1, max_size=3, unique=True)):
        objects += draw(workloads(app))
    return objects
