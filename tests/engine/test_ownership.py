"""Which launch made an instance: its tag alone proves nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec.structs import replace

from reconciler.adapters.simulated.memory import MemoryJournal
from reconciler.engine.ownership import could_have_launched, launches_of
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.ownership import Owner
from reconciler.ports.cloud import Instance, Launch, LaunchOption
from reconciler.ports.journal import Intent, IntentOutcome, Outcome, Verb

AT = datetime(2026, 3, 3, 12, 0, tzinfo=UTC)
OURS = Owner("shop", "cluster")
OPTIONS = [("m7i.large", "us-east-1a"), ("m7i.xlarge", "us-east-1b")]


def a_launch(verb: Verb = Verb.LAUNCH, at: datetime = AT) -> Intent:
    claim = decode({"metadata": {"name": "claim"}}, NodeClaim)
    options = tuple(LaunchOption(kind, zone, "on-demand", 1.0) for kind, zone in OPTIONS)
    launch = Launch(
        "launch-1", claim, decode({"metadata": {"name": "c"}}, EC2NodeClass), options, {}
    )
    body = msgspec.json.encode(launch).decode()
    return Intent("launch-1", verb, "claim", at, parameters={"launch": body})


def an_instance(kind: str = "m7i.large", zone: str = "us-east-1a", **fields: object) -> Instance:
    made = Instance("i-1", kind, zone, "on-demand", "running", AT, {})
    return replace(made, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "zone", "minutes", "made"),
    [
        ("m7i.large", "us-east-1a", 0, True),
        ("m7i.xlarge", "us-east-1b", 3, True),
        ("", "us-east-1a", 0, True),
        ("m7i.large", "us-east-1b", 0, False),
        ("m7i.metal", "us-east-1a", 0, False),
        ("m7i.large", "us-east-1a", -5, True),
        ("m7i.large", "us-east-1a", -6, False),
    ],
)
def test_a_launch_made_only_what_it_requested_and_not_before(
    kind: str, zone: str, minutes: int, made: bool
) -> None:
    """Clocks may differ by five minutes; a field that EC2 left out is not compared."""
    instance = an_instance(kind, zone, launched_at=AT + timedelta(minutes=minutes))
    assert could_have_launched(a_launch(), instance) is made


def test_only_a_launch_makes_instances() -> None:
    assert could_have_launched(a_launch(Verb.LAUNCH_BATCH), an_instance())
    assert not could_have_launched(a_launch(Verb.TAINT), an_instance())


@pytest.mark.parametrize(
    ("tags", "minutes", "is_ours"),
    [
        ({"reconciler/intent": "launch-1"}, 0, True),
        ({"reconciler/intent": "launch-2"}, 0, False),
        ({}, 0, False),
        ({"reconciler/intent": "launch-1", "reconciler/fleet": "other"}, 0, False),
        ({"reconciler/intent": "launch-1"}, 22, True),
        ({"reconciler/intent": "launch-1"}, 23, False),
    ],
)
def test_an_instance_is_ours_by_its_tags_and_until_its_launch_can_no_longer_show_it(
    tags: dict[str, str], minutes: int, is_ours: bool
) -> None:
    """A launch that ended shows its instance within 15 minutes, and clocks differ by five."""
    journal = MemoryJournal()
    journal.begin([a_launch()])
    ended = [IntentOutcome("launch-1", Outcome.FAILED, "no answer")]
    journal.finish(ended, AT + timedelta(minutes=2))
    later = AT + timedelta(minutes=minutes)
    instance = an_instance(tags={**OURS.tags, **tags}, launched_at=later)
    assert bool(launches_of([instance], journal, OURS)) is is_ours
