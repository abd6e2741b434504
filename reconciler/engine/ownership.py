"""Which instances are ours: our tags and our records have to agree (decision 15).

Where they disagree nobody can tell whether the records are old or the tags are forged. Acting on
either would double a fleet or terminate somebody else's machines, so such an instance is reported
and left alone, and the fleet stands still until a person has decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from reconciler.engine.steps import lifecycle
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.errors import ReconcilerError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.ownership import FLEET_TAG, Owner
from reconciler.ports.cloud import Instance, Launch, LaunchOption
from reconciler.ports.journal import Intent, Journal, Verb

INTENT_TAG: Final = "reconciler/intent"
CLAIM_TAG: Final = "karpenter.sh/nodeclaim"

UNKNOWN: Final = "unknown-instance"
CONTESTED: Final = "contested-instance"
"""Codes of the findings: no record of ours has it; or a record has it, and its tags name another
owner."""

TAGS_SHOWN_AFTER: Final = timedelta(minutes=1)
"""EC2 may show a new instance before its tags: younger ones are not yet held against anybody."""

CLOCKS_APART: Final = timedelta(minutes=5)
"""How far our clock and EC2's may differ: AWS refuses calls that are signed further apart."""

FOUND_WITHIN: Final = timedelta(minutes=15)
"""How long after its launch was settled an instance may still have been launched by it."""

_SHOWN: Final = 20
_TAGS_SHOWN: Final = (INTENT_TAG, CLAIM_TAG, "karpenter.sh/nodepool", FLEET_TAG)

PriceOf = Callable[[Instance], float | None]
"""Returns what an instance costs in USD an hour, None where that is not known."""


class UnknownInstancesError(ReconcilerError):
    """Instances bear our tags and are in no record, or the reverse; nothing was launched."""


@dataclass(frozen=True, slots=True)
class Doubts:
    """The living instances whose owner is in doubt, each list by id.

    ``unknown`` name our fleet and cluster in their tags and are in no record; ``contested`` are
    in our records, and their tags do not say that they are ours.
    """

    unknown: tuple[Instance, ...] = ()
    contested: tuple[Instance, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.unknown or self.contested)

    @property
    def summary(self) -> str:
        """One sentence for a log or an error, with the first ids."""
        parts = []
        if self.unknown:
            parts.append(f"{_counted(self.unknown)} carry this fleet's tags but are not recorded")
        if self.contested:
            parts.append(
                f"{_counted(self.contested)} are recorded, but their tags name no owner or "
                "another one"
            )
        return "; ".join(parts)

    @property
    def remedy(self) -> str:
        """What a person can do about it."""
        advice = []
        if self.unknown:
            advice.append(
                "run `reconciler state adopt` to list them, and with --yes to adopt them; or "
                f"terminate them, or remove their tag {FLEET_TAG}"
            )
        if self.contested:
            advice.append("restore the tags of the recorded instances, or terminate them")
        return "; ".join(advice)

    def error(self) -> UnknownInstancesError:
        """Return the error that a command ends with."""
        return UnknownInstancesError(
            f"no node was launched or disrupted: {self.summary}",
            where="ec2:DescribeInstances",
            remedy=self.remedy,
        )

    def findings(self, price_of: PriceOf) -> tuple[Diagnostic, ...]:
        """Return a finding for each instance, and one for those beyond the first 20."""
        rows = [(UNKNOWN, "is not recorded for this fleet", i) for i in self.unknown]
        rows += [
            (CONTESTED, "is recorded, but its tags do not name this fleet", i)
            for i in self.contested
        ]
        found = [
            Diagnostic(
                Severity.WARNING,
                code,
                f"instance {i.id} {what}: {_described(i, price_of(i))}",
                hint=(
                    "no node is launched or disrupted until this is resolved; `reconciler "
                    "state adopt` lists what can be adopted"
                )
                if code == UNKNOWN
                else "no node is launched or disrupted until its tags are restored",
            )
            for code, what, i in rows[:_SHOWN]
        ]
        if len(rows) > _SHOWN:
            more = f"{len(rows) - _SHOWN} more instances have an unclear owner"
            hint = "`reconciler state adopt -o json` lists them all"
            found.append(Diagnostic(Severity.WARNING, UNKNOWN, more, hint=hint))
        return tuple(found)


NO_DOUBTS: Final = Doubts()


def doubts(
    instances: Iterable[Instance],
    claims: Sequence[NodeClaim],
    journal: Journal,
    owner: Owner,
    now: datetime,
) -> Doubts:
    """Return the living instances whose owner is in doubt.

    An instance that a launch in our journal made is none of them, whatever became of the launch:
    ``recovery`` and ``termination`` deal with it.
    """
    recorded = {lifecycle.instance_id(claim) for claim in claims if claim.status.provider_id}
    unknown, contested = [], []
    for instance in sorted(instances, key=lambda i: i.id):
        if instance.is_going:
            continue
        if instance.id in recorded:
            if not owner.owns(instance.tags) and now - instance.launched_at >= TAGS_SHOWN_AFTER:
                contested.append(instance)
        elif owner.is_named_by(instance.tags) and not came_of_a_launch(instance, journal, owner):
            unknown.append(instance)
    return Doubts(tuple(unknown), tuple(contested))


def came_of_a_launch(instance: Instance, journal: Journal, owner: Owner) -> bool:
    """Return whether a launch that our journal knows made the instance.

    Whoever may read our tags can copy an intent's id to another instance. So its type and zone
    must be among those that the launch asked for, and it must have been launched at that time.
    """
    if not owner.owns(instance.tags):
        return False
    entry = journal.entry(instance.tags.get(INTENT_TAG, ""))
    if entry is None:
        return False
    until = None if entry.finished_at is None else entry.finished_at + FOUND_WITHIN
    return could_have_made(entry.intent, instance, until)


def could_have_made(intent: Intent, instance: Instance, until: datetime | None = None) -> bool:
    """Return whether a launch of ours could have made the instance: by type, zone and time."""
    options = _options_of(intent)
    if options is None or instance.launched_at < intent.at - CLOCKS_APART:
        return False
    if until is not None and instance.launched_at > until + CLOCKS_APART:
        return False
    # What the answer of a call left out is empty here, and is held against nobody.
    return not options or any(
        instance.instance_type in ("", option.instance_type) and instance.zone in ("", option.zone)
        for option in options
    )


def _options_of(intent: Intent) -> Sequence[LaunchOption] | None:
    """Return the offerings that an intent asked for, None where it is not a launch.

    A launch within a batch does not repeat them: its instance bears the tag of the batch.
    """
    import msgspec

    if intent.verb not in (Verb.LAUNCH, Verb.LAUNCH_BATCH):
        return None
    body = intent.parameters.get("launch")
    if body is None:
        return ()
    try:
        return msgspec.json.decode(body, type=Launch).options
    except msgspec.MsgspecError:
        return ()


def _counted(instances: Sequence[Instance]) -> str:
    shown = ", ".join(i.id for i in instances[:5]) + (", …" if len(instances) > 5 else "")
    return f"{len(instances)} instance{'' if len(instances) == 1 else 's'} ({shown})"


def _described(instance: Instance, price: float | None) -> str:
    """Return what a person needs to recognise an instance: type, place, age, cost and tags."""
    cost = "price unknown" if price is None else f"${price:.4f}/hour"
    at = instance.launched_at.astimezone(UTC)
    return (
        f"{instance.instance_type} {instance.capacity_type} in {instance.zone}, "
        f"launched {at:%Y-%m-%d %H:%M} UTC, {cost}, {_format_tags(instance.tags)}"
    )


def _format_tags(tags: Mapping[str, str]) -> str:
    named = [key for key in sorted(tags) if key in _TAGS_SHOWN or "cluster" in key]
    return "tags " + (", ".join(f"{key}={tags[key]}" for key in named) or "none")
