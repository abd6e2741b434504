"""Saved plans that an operator applies to a real fleet: cut, forged, of another fleet, and used.

``test_saved_plans`` attacks what the planner compares. Here the command runs as in a pipeline, and
the calls that EC2, SSM and IAM receive are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.cli.test_end_to_end import Shop, shop
from tests.hostile.test_saved_plans import FORGED_LAUNCHES, QUIET, sealed
from tests.hostile.threats import Threat, attack

__all__ = ("shop",)

FORGED = {name: how for name, how in FORGED_LAUNCHES.items() if name != "another capacity type"}
"""The fleet launches spot capacity already."""
READING = ("Describe", "Get", "List")


def saved(shop: Shop, *more: str) -> bytes:
    """Return the file of a plan, made as a pipeline makes it."""
    out = shop.folder.parent / "plan.json"
    shop.run("plan", "--out", str(out), *more)
    return out.read_bytes()


def applied(shop: Shop, content: bytes, *more: str) -> tuple[int, str, list[str]]:
    """Apply a file; return the status, the error, and the operations that were called."""
    file = shop.folder.parent / "given.json"
    file.write_bytes(content)
    before = len(shop.cloud.calls)
    shop.capsys.readouterr()
    _, folder, *options = shop.words("apply", *QUIET, *more)
    code = main(["apply", str(file), folder, *options])
    error = shop.capsys.readouterr().err
    return code, error, [call.operation for call in shop.cloud.calls[before:]]


def _without_digest(content: bytes) -> bytes:
    return json.dumps({**json.loads(content), "digest": ""}).encode()


def _edited(content: bytes) -> bytes:
    data = json.loads(content)
    data["nodeClaims"][0]["launch"]["instanceType"] = "m7i.xlarge"
    return json.dumps(data).encode()


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "cut in the middle": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content.rstrip()[:-1],
    "twice in one file": lambda content: content + content,
    "edited": _edited,
    "without a digest": _without_digest,
}


@attack(Threat.PLAN, "a damaged or edited plan, applied to a real fleet")
@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_plan_makes_no_call(damage: Callable[[bytes], bytes], shop: Shop) -> None:
    """Guards: the decoding and the digest in ``read_saved_plan``, before anything is opened."""
    code, error, called = applied(shop, damage(saved(shop)))
    assert (code, called) == (1, [])
    assert error.count("\n") == 1
    assert not (shop.folder / ".reconciler").exists()


@attack(Threat.PLAN, "a plan with forged launches and the matching digest, for a real fleet")
@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_forged_plan_only_reads(change: Callable[[dict[str, Any]], None], shop: Shop) -> None:
    """Guard: ``plan_differences``."""
    data = json.loads(saved(shop))
    change(data)
    code, error, called = applied(shop, sealed(data))
    assert code == 4, error
    assert called
    assert [operation for operation in called if not operation.startswith(READING)] == []
    assert shop.cloud.running_instances() == {}


@attack(Threat.PLAN, "a plan of another fleet with the same content, for a real fleet")
def test_a_plan_of_another_fleet_makes_no_call(shop: Shop) -> None:
    """Guard: the name of the fleet in ``apply``."""
    content = saved(shop, "--set", "fleet=other")
    code, error, called = applied(shop, content)
    assert (code, called) == (1, [])
    assert 'belongs to fleet "other"' in error


@attack(Threat.PLAN, "a plan that was applied, replayed when its nodes are gone")
def test_a_replayed_plan_only_reads(shop: Shop) -> None:
    """Guard: the record of plans that were carried out."""
    content = saved(shop)
    assert applied(shop, content)[0] == 0
    assert shop.rests(2)
    client: Any = shop.cloud.connect("ec2", 1)
    for identity in list(shop.cloud.running_instances()):
        client.terminate_instances(InstanceIds=[identity])
    code, error, called = applied(shop, content)
    assert code == 4, error
    assert "it was already applied" in error
    assert [operation for operation in called if not operation.startswith(READING)] == []
    assert shop.cloud.running_instances() == {}
