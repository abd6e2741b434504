"""Attacks by which whoever may create a ResourceClaim keeps the planner busy."""

from __future__ import annotations

import time

import pytest

from reconciler.model.settings import KarpenterVersion
from tests.hostile.threats import Threat, attack
from tests.placement.builders import TYPES, Object, a_pod, a_pool, placed
from tests.placement.devices import (
    DRIVER,
    a_claim_template,
    a_class,
    a_gpu_type,
    a_request,
    a_template,
    an_alternative,
    gpus,
)

BIG = a_gpu_type("g-big", 64, 30.0, a_template(gpus(16)))
INDEX = f'device.attributes["{DRIVER}"].index == {{}}'
TEXT = '"' + "a" * 900 + '"'


def plan_with(*requests: Object) -> str:
    """Return the code of the reason why a pod with these requests is not placed."""
    pod = a_pod("app-0")
    pod["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimTemplateName": "t"}]
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "d"}]
    objects = [a_pool(), a_class(), a_claim_template("t", *requests), pod]
    found = placed(objects, types=(*TYPES, BIG), karpenter=KarpenterVersion.V1_15)
    return found.unschedulable["default/app-0"][0].code


@attack(Threat.EXHAUSTION, "a pattern in the selector of a device that backtracks without end")
@pytest.mark.parametrize(
    "pattern",
    ["a*a*a*b", "(a|a)" * 40 + "b", "a?" * 80 + "a" * 80 + "b", "(a+)+b"],
)
def test_no_pattern_of_a_device_selector_backtracks(pattern: str) -> None:
    start = time.process_time()
    assert plan_with(a_request("gpu", 1, f'{TEXT}.matches("{pattern}")'))
    nested = (
        f'[1,2,3,4,5,6,7,8].exists(a, [1,2,3,4,5,6,7,8].exists(b, {TEXT}.matches("{pattern}")))'
    )
    assert plan_with(a_request("gpu", 1, nested))
    assert time.process_time() - start < 10


@attack(Threat.EXHAUSTION, "requests for devices with more alternatives than can ever be tried")
@pytest.mark.parametrize("mode", ["All", "ExactCount"])
def test_a_search_for_devices_ends_at_its_limit(mode: str) -> None:
    def request(number: int) -> Object:
        choices = [
            an_alternative(f"a{k}", 1, INDEX.format((number + k) % 16), allocationMode=mode)
            for k in range(8)
        ]
        for choice in choices:
            if mode == "All":
                del choice["count"]
        return {"name": f"r{number}", "firstAvailable": choices}

    none = a_request("none", 1, f'device.attributes["{DRIVER}"].model == "none"')
    start = time.process_time()
    assert plan_with(*map(request, range(14)), none)
    assert time.process_time() - start < 10
