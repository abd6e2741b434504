"""The allocation of devices as in Karpenter 1.15, recorded from its test suite, and its laws."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.decode import decode
from reconciler.model.kubernetes.devices import Device, DeviceClass, ResourceClaim, ResourceSlice
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import parse_resources
from reconciler.observed.state import ClusterState
from reconciler.placement.devices.inventory import (
    DeviceState,
    Inventory,
    InventoryBook,
    PoolDevices,
    meets_all,
    pools_of,
)
from reconciler.placement.devices.needs import ClaimNeeds, ClaimReader
from reconciler.placement.devices.search import Allocated, allocate
from tests.examples import examples
from tests.placement.devices import DRIVER
from tests.tables import fixture_cases

RELEASE = "karpenter-1.15"
CLASSES = {
    "gpu": f'device.driver == "{DRIVER}"',
    "nic": 'device.driver == "nic.example.com"',
    "h100": f'device.attributes["{DRIVER}"].model == "H100"',
}


def _classes() -> dict[str, DeviceClass]:
    return {
        name: decode(
            {
                "metadata": {"name": name},
                "spec": {"selectors": [{"cel": {"expression": expression}}]},
            },
            DeviceClass,
        )
        for name, expression in CLASSES.items()
    }


def _needs(claims: list[dict[str, Any]]) -> tuple[ClaimNeeds, ...]:
    """Return what a pod with these claims requests."""
    objects = [
        decode({"metadata": {"name": f"c{i}"}, "spec": {"devices": claim}}, ResourceClaim)
        for i, claim in enumerate(claims)
    ]
    references = [{"name": c.metadata.name, "resourceClaimName": c.metadata.name} for c in objects]
    pod = decode({"metadata": {"name": "pod"}, "spec": {"resourceClaims": references}}, Pod)
    cluster = ClusterState(
        device_classes=_classes(), resource_claims={claim.key: claim for claim in objects}
    )
    found = ClaimReader(cluster).needs(pod)
    assert found is not None
    assert found.problem is None, found.problem
    return found.claims


def _inventory(pools: list[dict[str, Any]]) -> Inventory:
    known = []
    for pool in pools:
        fields = {k: v for k, v in pool.items() if k != "isComplete"}
        found = decode(fields, PoolDevices)
        complete = pool.get("isComplete", True)
        known.append(msgspec.structs.replace(found, is_complete=complete))
    return InventoryBook().inventory(known)


def _state(inventory: Inventory, case: dict[str, Any]) -> DeviceState:
    state = inventory.empty
    for index, device in enumerate(inventory.devices):
        if device.name in case["used"]:
            state = inventory.with_device(state, index)
        if device.name in case["consumed"]:
            consumed = parse_resources(case["consumed"][device.name])
            state = inventory.with_device(state, index, consumed)
    return state


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "devices", "allocation"))
def test_devices_are_allocated_as_in_karpenter(case: dict[str, Any]) -> None:
    inventory = _inventory(case["input"]["pools"])
    state = _state(inventory, case["input"])

    for claims, expected in zip(case["input"]["steps"], case["expect"]["steps"], strict=True):
        found = allocate(inventory, state, _needs(claims))
        if expected is None:
            assert not isinstance(found, Allocated)
            continue
        assert isinstance(found, Allocated)
        names = [(inventory.devices[pick.device].name, pick.request) for pick in found.picks]
        assert (len(names) if isinstance(expected, int) else dict(names)) == expected
        state = found.state


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "devices", "selectors"))
def test_selectors_match_as_in_karpenter(case: dict[str, Any]) -> None:
    device = decode(case["input"]["device"], Device)
    (listed,) = InventoryBook().inventory([PoolDevices(DRIVER, "pool", (device,))]).devices

    found = meets_all(listed, case["input"]["expressions"])

    assert (found is True) is case["expect"]["matches"]


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "devices", "attribute"))
def test_attributes_are_found_as_in_karpenter(case: dict[str, Any]) -> None:
    device = decode(case["input"]["device"], Device)
    (listed,) = InventoryBook().inventory([PoolDevices(DRIVER, "pool", (device,))]).devices

    found = listed.attribute(case["input"]["attribute"])

    expected = case["expect"]["value"]
    assert found == (tuple(expected) if expected else None)


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "devices", "pools"))
def test_slices_make_pools_as_in_karpenter(case: dict[str, Any]) -> None:
    slices = [decode(item, ResourceSlice) for item in case["input"]["slices"]]
    pools = pools_of(slices)
    inventory = InventoryBook().inventory(pools)

    expect = case["expect"]
    assert sorted(device.name for device in inventory.devices) == expect["devices"]
    assert (inventory.is_complete, len(pools)) == (expect["complete"], expect["pools"])


MODELS = ("a", "b")


@st.composite
def _pools(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return a pool with exclusive, partitioned and shared devices."""
    devices = []
    for index in range(draw(st.integers(1, 6))):
        device: dict[str, Any] = {
            "name": f"d{index}", "attributes": {"model": {"string": draw(st.sampled_from(MODELS))}}
        }  # fmt: skip
        kind = draw(st.sampled_from(("exclusive", "part", "shared")))
        if kind == "part":
            amount = str(draw(st.integers(1, 3)))
            device["consumesCounters"] = [
                {"counterSet": "set", "counters": {"slices": {"value": amount}}}
            ]
        if kind == "shared":
            device["allowMultipleAllocations"] = True
            device["capacity"] = {"memory": {"value": str(draw(st.integers(1, 6)))}}
        devices.append(device)
    total = str(draw(st.integers(1, 6)))
    counters = [{"name": "set", "counters": {"slices": {"value": total}}}]
    return [{"driver": DRIVER, "pool": "p", "devices": devices, "counters": counters}]


@st.composite
def _claims(draw: st.DrawFn) -> list[dict[str, Any]]:
    requests = []
    for index in range(draw(st.integers(1, 3))):
        exact: dict[str, Any] = {"deviceClassName": "gpu", "count": draw(st.integers(1, 3))}
        if draw(st.booleans()):
            model = draw(st.sampled_from(MODELS))
            text = f'device.attributes["{DRIVER}"].model == "{model}"'
            exact["selectors"] = [{"cel": {"expression": text}}]
        if draw(st.booleans()):
            exact["capacity"] = {"requests": {"memory": str(draw(st.integers(1, 4)))}}
        requests.append({"name": f"r{index}", "exactly": exact})
    rule = {draw(st.sampled_from(("matchAttribute", "distinctAttribute"))): f"{DRIVER}/model"}
    return [{"requests": requests, "constraints": [rule] if draw(st.booleans()) else []}]


@settings(max_examples=examples(400), deadline=None)
@given(_pools(), _claims())
def test_an_allocation_uses_no_more_than_there_is(
    pools: list[dict[str, Any]], claims: list[dict[str, Any]]
) -> None:
    inventory, needs = _inventory(pools), _needs(claims)
    state = inventory.empty
    used: list[int] = []

    while isinstance(found := allocate(inventory, state, needs), Allocated):
        picked = [pick.device for pick in found.picks]
        assert len(picked) == sum(r["exactly"]["count"] for r in claims[0]["requests"])
        used += (index for index in picked if not inventory.devices[index].is_shared)
        state = found.state
        assert len(set(used)) == len(used)
        assert all(left >= 0 for left in state.left)
        for device in inventory.devices:
            for capacity in device.capacities if device.is_shared else ():
                assert state.consumed[capacity.index] <= capacity.total


@settings(max_examples=examples(400), deadline=None)
@given(_pools(), _claims())
def test_a_search_finds_devices_if_any_choice_of_them_suffices(
    pools: list[dict[str, Any]], claims: list[dict[str, Any]]
) -> None:
    """Skipping devices that are alike and giving devices back loses no solution."""
    inventory, needs = _inventory(pools), _needs(claims)

    found = isinstance(allocate(inventory, inventory.empty, needs), Allocated)

    assert found is _exists(inventory, inventory.empty, needs[0], [])


def _exists(
    inventory: Inventory, state: DeviceState, claim: ClaimNeeds, taken: list[tuple[str, int]]
) -> bool:
    """Return whether any choice of devices satisfies a claim, by trying each one."""
    slots = [request[0] for request in claim.requests for _ in range(request[0].count)]
    if len(taken) == len(slots):
        values = [inventory.devices[i].attribute(f"{DRIVER}/model") for _, i in taken]
        return all(
            len(set(values)) == (len(values) if rule.is_distinct else 1)
            for rule in claim.constraints
        )
    wanted = slots[len(taken)]
    requested = dict(wanted.capacity)
    for index, device in enumerate(inventory.devices):
        if not inventory.matching(wanted.conditions) >> index & 1:
            continue
        totals = {capacity.name: capacity for capacity in device.capacities}
        if not requested.keys() <= totals.keys():
            continue
        amounts = {name: requested.get(name, c.total) for name, c in totals.items()}
        after = inventory.with_device(state, index, amounts)
        over = any(after.consumed[c.index] > c.total for c in totals.values() if device.is_shared)
        if over or (not device.is_shared and state.used >> index & 1) or min(after.left) < 0:
            continue
        if _exists(inventory, after, claim, [*taken, (wanted.name, index)]):
            return True
    return False
