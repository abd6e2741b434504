"""Claims on devices in the files of a fleet: their errors, each at its place."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.desired.rules.devices import check_sharing
from reconciler.desired.workloads.shape import check_workload
from tests.placement.devices import a_claim_template, a_class, a_request, an_alternative


def found(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the code and the place of each finding."""
    findings = check_workload(data["kind"], data)
    return [(f.code, ".".join(map(str, f.pointer))) for f in findings]


def test_valid_claims_and_classes_have_no_finding() -> None:
    request = {"name": "gpu", "firstAvailable": [an_alternative("big"), an_alternative("small")]}
    constraint = {"requests": ["gpu/big"], "matchAttribute": "example.com/numa"}
    assert found(a_class()) == []
    assert found(a_claim_template("t", request, constraints=[constraint])) == []


@pytest.mark.parametrize(
    ("requests", "constraints", "expected"),
    [
        ([a_request("gpu", 1, "device.driver ==")], [],
         ("device-selector", "exactly.selectors.0.cel.expression")),
        ([a_request("gpu", 1, "pod.name")], [],
         ("device-selector", "exactly.selectors.0.cel.expression")),
        ([{"name": "gpu"}], [], ("device-request", "")),
        ([{**a_request(), "firstAvailable": [an_alternative("a")]}], [], ("device-request", "")),
        ([a_request(allocationMode="All")], [], ("device-request", "exactly.count")),
    ],
)  # fmt: skip
def test_a_request_that_the_api_rejects_is_an_error(
    requests: list[Any], constraints: list[Any], expected: tuple[str, str]
) -> None:
    code, at = expected
    place = "spec.spec.devices.requests.0" + (f".{at}" if at else "")
    assert found(a_claim_template("t", *requests, constraints=constraints)) == [(code, place)]


@pytest.mark.parametrize(
    ("constraint", "at"),
    [
        ({"requests": ["gpu"]}, ""),
        ({"matchAttribute": "a/b", "distinctAttribute": "a/b"}, ""),
        ({"requests": ["nic"], "matchAttribute": "a/b"}, ".requests.0"),
    ],
)
def test_a_constraint_that_the_api_rejects_is_an_error(constraint: Any, at: str) -> None:
    place = f"spec.spec.devices.constraints.0{at}"
    template = a_claim_template("t", a_request(), constraints=[constraint])
    assert found(template) == [("device-constraint", place)]


def test_a_field_that_no_request_has_is_an_error() -> None:
    findings = check_workload("ResourceClaimTemplate", a_claim_template("t", a_request(cuont=2)))
    assert "cuont" in {finding.pointer[-1] for finding in findings}


@pytest.mark.parametrize("mode", ["", "disabled", "memory", "unlimited", "4"])
def test_a_mode_of_sharing_gpus_is_valid(mode: str) -> None:
    annotations = {"karpenter.k8s.aws/nvidia-consumable-capacity": mode}
    assert list(check_sharing({"metadata": {"annotations": annotations}})) == []


@pytest.mark.parametrize("mode", ["0", "-1", "shared", "1.5"])
def test_a_mode_that_the_driver_does_not_have_is_an_error(mode: str) -> None:
    annotations = {"karpenter.k8s.aws/nvidia-consumable-capacity": mode}
    (finding,) = check_sharing({"metadata": {"annotations": annotations}})
    assert finding.code == "gpu-sharing"
