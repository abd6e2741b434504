"""Every case of the table ``taints_ports_resources``."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model import resources
from reconciler.model.decode import decode
from reconciler.model.kubernetes import taint
from reconciler.model.kubernetes.pod import HostPort, Pod
from reconciler.model.kubernetes.taint import Taint, Toleration
from reconciler.model.resources import parse_resources
from reconciler.placement.nodes.ports import PortIndex, UsedPorts
from tests.tables import cases


def port(entry: dict[str, Any]) -> HostPort:
    return HostPort(entry["ip"], entry["port"], entry["protocol"])


def container(entry: dict[str, Any]) -> dict[str, Any]:
    declared = {k: entry[k] for k in ("requests", "limits") if k in entry}
    rest = {k: entry[k] for k in ("name", "ports", "restartPolicy") if k in entry}
    return {"resources": declared, **rest}


def a_pod(spec: dict[str, Any]) -> Pod:
    entries = [{"name": f"c{i}", **c} for i, c in enumerate(spec.get("containers") or [])]
    statuses = [
        {"name": c["name"], "resources": {}, "allocatedResources": c["allocated"]}
        for c in entries
        if "allocated" in c
    ]
    body = {
        "containers": [container(c) for c in entries],
        "initContainers": [container(c) for c in spec.get("initContainers") or []],
        "overhead": spec.get("overhead"),
        "resources": spec.get("podLevel"),
    }
    status = {"containerStatuses": statuses}
    return decode({"metadata": {"name": "p"}, "spec": body, "status": status}, Pod)


def answer(kind: str, given: dict[str, Any]) -> Any:
    match kind:
        case "known_ephemeral_taint":
            return given["taint"] is not None and decode(given["taint"], Taint).is_ephemeral
        case "tolerates":
            tolerations = [decode(t, Toleration) for t in given["tolerations"]]
            return not taint.untolerated_taints([decode(given["taint"], Taint)], tolerations)
        case "merge_taints":
            left = [decode(t, Taint) for t in given["existing"]]
            merged = taint.merge_taints(left, [decode(t, Taint) for t in given["with"]])
            return [
                {k: v for k, v in (("key", t.key), ("effect", t.effect), ("value", t.value)) if v}
                for t in merged
            ]
        case "hostport_match":
            a, b = port(given["a"]), port(given["b"])
            return {
                "a_matches_b": UsedPorts([a]).conflict([b]),
                "b_matches_a": UsedPorts([b]).conflict([a]),
            }
        case "hostport_string":
            return str(port(given))
        case "hostport_conflict":
            own = list(map(port, given["ports"]))
            others = [
                port(one)
                for name, ports in given["reserved"].items() if name != given["pod"]
                for one in ports
            ]  # fmt: skip
            assert bool(PortIndex([others]).conflicting(own)) == UsedPorts(others).conflict(own)
            return UsedPorts(others).conflict(own)
        case "hostports_of_pod":
            ports = a_pod(given).host_ports()
            return [{"ip": p.ip, "port": p.port, "protocol": p.protocol} for p in ports]
        case "fits":
            return resources.fits(
                parse_resources(given["candidate"]), parse_resources(given["total"])
            )
    raise AssertionError(kind)


def amounts(kind: str, given: dict[str, Any]) -> resources.Resources:
    match kind:
        case "pod_resources":
            total = a_pod(given["pod"]).requests()
            assert total.pop("pods") == resources.pod_amount(1)
            return total
        case "max_resources":
            return resources.maximum_resources(map(parse_resources, given["lists"]))
        case "min_resources":
            return resources.minimum_resources(map(parse_resources, given["lists"]))
        case "subtract":
            return resources.subtract_resources(
                parse_resources(given["lhs"]), parse_resources(given["rhs"])
            )
        case "requests_for_pods":
            pods = [a_pod({"containers": [p]}) for p in given["pods"]]
            return resources.add_resources(*(p.requests() for p in pods))
    raise AssertionError(kind)


ARITHMETIC = ("pod_resources", "max_resources", "min_resources", "subtract", "requests_for_pods")


@pytest.mark.parametrize("case", cases("taints_ports_resources"))
def test_taints_ports_and_resources_agree_with_karpenter(case: dict[str, Any]) -> None:
    if case["kind"] in ARITHMETIC:
        expected = case["expect"].get("requests", case["expect"])
        assert amounts(case["kind"], case["input"]) == parse_resources(expected)
    else:
        assert answer(case["kind"], case["input"]) == case["expect"]
