"""Which instances belong to the fleet: tags and records have to agree (decision 15).

Where they disagree, either the records are old or the tags are forged. Trusting one of them could
double a fleet or terminate somebody else's machines. Such an instance is reported and left alone,
and launches and disruption are suspended until a person has decided. The same applies while
Karpenter runs in the cluster: both would launch nodes for the same pods, and Karpenter terminates
instances that carry its tags and have no NodeClaim of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from reconciler.engine.steps import lifecycle
from reconciler.model.decode import decode_json
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.errors import ReconcilerError
from reconciler.model.json import JsonObject
from reconciler.model.karpenter.labels import NODEPOOL
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.ownership import FLEET_TAG, Owner
from reconciler.model.text.counting import format_count
from reconciler.model.text.times import format_time
from reconciler.ports.cloud import Instance, Launch, LaunchOption
from reconciler.ports.journal import Intent, Journal, JournalEntry, Verb

INTENT_TAG: Final = "reconciler/intent"
CLAIM_TAG: Final = "karpenter.sh/nodeclaim"

UNKNOWN: Final = "unknown-instance"
CONTESTED: Final = "contested-instance"
KARPENTER: Final = "karpenter-running"
"""Codes of the findings: the instance is in no record; it is recorded and its tags name another
owner; Karpenter runs in the same cluster."""

OWNERSHIP_CODES: Final = frozenset({UNKNOWN, CONTESTED, KARPENTER})
"""The codes of findings that suspend a fleet."""

_KARPENTER_LABEL: Final = ("app.kubernetes.io/name", "karpenter")
KARPENTER_SELECTOR: Final = "=".join(_KARPENTER_LABEL)
"""The label selector of Karpenter's own pods."""

_KARPENTER_REMEDY: Final = (
    "scale Karpenter to zero; or, if its NodePools and this fleet's share neither pods nor names, "
    "let the operator set kubernetes.allowKarpenter=true"
)

TAGS_SHOWN_AFTER: Final = timedelta(minutes=1)
"""EC2 may show a new instance before its tags: younger instances cause no finding."""

CLOCKS_APART: Final = timedelta(minutes=5)
"""How much our clock and EC2's may differ: AWS rejects calls signed with a larger difference."""

FOUND_WITHIN: Final = timedelta(minutes=15)
"""How long after the end of a launch its instance may still appear as launched."""

_SHOWN: Final = 20
_TAGS_SHOWN: Final = (INTENT_TAG, CLAIM_TAG, "karpenter.sh/nodepool", FLEET_TAG)

PriceOf = Callable[[Instance], float | None]
"""Returns the price of an instance in USD an hour, or None where it is unknown."""

FOREIGN: Final = "foreign-nodeclaims"
UNREAD: Final = "unread-nodeclaims"
ACTS: Final = "karpenter-acts"
"""Codes of the findings: NodeClaims of others are in the cluster; they may not be listed; the plan
is what Karpenter does."""


class UnknownInstancesError(ReconcilerError):
    """Instances carry our tags and are in no record, or the reverse; nothing was launched."""


@dataclass(frozen=True, slots=True)
class UnclearOwners:
    """The live instances whose owner is unclear, each list sorted by id.

    ``unknown`` instances carry the tags of our fleet and cluster and are in no record.
    ``contested`` instances are recorded, and their tags do not name our fleet. ``karpenters`` are
    the pods of a Karpenter that runs in the cluster, which owns every node as much as we do.
    """

    unknown: tuple[Instance, ...] = ()
    contested: tuple[Instance, ...] = ()
    karpenters: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.unknown or self.contested or self.karpenters)

    @property
    def summary(self) -> str:
        """A sentence for a log or an error, with the first ids."""
        parts = []
        if self.karpenters:
            parts.append(f"Karpenter runs in this cluster (pod {self.karpenters[0]})")
        if self.unknown:
            parts.append(f"{_format_ids(self.unknown)} have this fleet's tags but are not recorded")
        if self.contested:
            parts.append(
                f"{_format_ids(self.contested)} are recorded, but their tags name no owner or "
                "another one"
            )
        return "; ".join(parts)

    @property
    def remedy(self) -> str:
        """The possible remedies."""
        advice = []
        if self.karpenters:
            advice.append(_KARPENTER_REMEDY)
        if self.unknown:
            advice.append(
                "run `reconciler state adopt` to list them, and with --yes to adopt them; or "
                f"terminate them, or remove their tag {FLEET_TAG}"
            )
        if self.contested:
            advice.append("restore the tags of the recorded instances, or terminate them")
        return "; ".join(advice)

    def error(self) -> UnknownInstancesError:
        """Return the error that ends a command."""
        return UnknownInstancesError(
            f"no node was launched or disrupted: {self.summary}",
            where="ec2:DescribeInstances" if self.unknown or self.contested else "pods",
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
                f"instance {i.id} {what}: {_describe_instance(i, price_of(i))}",
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
        return (*karpenter_findings(self.karpenters), *found)


def running_karpenters(pods: Iterable[Pod]) -> tuple[str, ...]:
    """Return the names of Karpenter's own pods that run in the cluster, or are about to."""
    key, value = _KARPENTER_LABEL
    found = (p.key for p in pods if p.metadata.labels.get(key) == value and not p.is_terminal)
    return tuple(sorted(found))


def karpenter_findings(pods: Sequence[str]) -> tuple[Diagnostic, ...]:
    """Return the finding about a Karpenter that runs in the cluster, none without one."""
    if not pods:
        return ()
    message = (
        f"Karpenter runs in this cluster (pod {pods[0]}): it serves the same pods, and terminates "
        "instances that have no NodeClaim of its own; `apply` and `run` act only without it"
    )
    return (Diagnostic(Severity.WARNING, KARPENTER, message, hint=_KARPENTER_REMEDY),)


def foreign_findings(claims: Iterable[JsonObject]) -> tuple[Diagnostic, ...]:
    """Return the finding about NodeClaims that others manage, as the API returns them."""
    pools = Counter((c["metadata"].get("labels") or {}).get(NODEPOOL, "") for c in claims)
    if not pools:
        return ()
    message = (
        f"{_format_claims(pools)} beside this fleet: this plan counts the pods on their nodes, "
        "and neither their cost nor what Karpenter does with them"
    )
    hint = "plan with `--set decide=karpenter` to see Karpenter's next actions"
    return (Diagnostic(Severity.WARNING, FOREIGN, message, hint=hint),)


def acting_findings(claims: Iterable[NodeClaim]) -> tuple[Diagnostic, ...]:
    """Return the finding that the nodes of a plan are Karpenter's, none without any."""
    pools = Counter(claim.node_pool for claim in claims)
    if not pools:
        return ()
    message = f"{_format_claims(pools)}: this plan shows what Karpenter does next"
    return (Diagnostic(Severity.INFO, ACTS, message),)


def _format_claims(pools: Mapping[str, int]) -> str:
    """Return whose NodeClaims these are, counted by NodePool."""
    total = sum(pools.values())
    verb = "NodeClaim belongs" if total == 1 else "NodeClaims belong"
    rows = sorted(pools.items())
    listed = ", ".join(f"{name or 'none'} ({count})" for name, count in rows[:_SHOWN])
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    noun = "NodePool" if len(rows) == 1 else "NodePools"
    return f"{total} {verb} to Karpenter ({noun} {listed}{more})"


def unread_claims_finding(why: str) -> Diagnostic:
    """Return the finding that it is unknown whether others have NodeClaims in the cluster."""
    return Diagnostic(
        Severity.WARNING,
        UNREAD,
        f"cannot list NodeClaims, so nodes of Karpenter are not recognized: {why}",
        hint="use the ClusterRole in docs/kubernetes/clusterrole-plan.yaml",
    )


NO_UNCLEAR_OWNERS: Final = UnclearOwners()


def unclear_owners(
    instances: Iterable[Instance],
    claims: Sequence[NodeClaim],
    journal: Journal,
    owner: Owner,
    now: datetime,
) -> UnclearOwners:
    """Return the live instances whose owner is unclear.

    Instances of journalled launches are not among them: ``recovery`` and ``termination`` handle
    those, whatever became of the launch.
    """
    recorded = {lifecycle.instance_id(claim) for claim in claims if claim.status.provider_id}
    unrecorded, contested = [], []
    for instance in sorted(instances, key=lambda i: i.id):
        if instance.is_terminating:
            continue
        if instance.id not in recorded:
            unrecorded.append(instance)
        elif not owner.owns(instance.tags) and now - instance.launched_at >= TAGS_SHOWN_AFTER:
            contested.append(instance)
    launched = launches_of(unrecorded, journal, owner)
    unknown = [i for i in unrecorded if owner.is_named_by(i.tags) and i.id not in launched]
    return UnclearOwners(tuple(unknown), tuple(contested))


def launches_of(
    instances: Iterable[Instance], journal: Journal, owner: Owner
) -> Mapping[str, JournalEntry]:
    """Return the journalled launch that made each instance, by its id; others have none.

    Anyone who can read our tags can copy the id of an intent to another instance. Therefore its
    type and zone must be among those that the launch requested, and the times must match.
    """
    ours = [(i, i.tags.get(INTENT_TAG, "")) for i in instances if owner.owns(i.tags)]
    entries = journal.find_entries({intent for _, intent in ours}) if ours else {}
    return {
        instance.id: entry
        for instance, intent in ours
        if (entry := entries.get(intent)) is not None and _matches_launch(entry, instance)
    }


def _matches_launch(entry: JournalEntry, instance: Instance) -> bool:
    until = None if entry.finished_at is None else entry.finished_at + FOUND_WITHIN
    return could_have_launched(entry.intent, instance, until)


def could_have_launched(intent: Intent, instance: Instance, until: datetime | None = None) -> bool:
    """Return whether a launch could have made the instance, by type, zone and time."""
    options = _launch_options(intent)
    if options is None or instance.launched_at < intent.at - CLOCKS_APART:
        return False
    if until is not None and instance.launched_at > until + CLOCKS_APART:
        return False
    # Fields that the answer of a call left out are empty, and are not compared.
    return not options or any(
        instance.instance_type in ("", option.instance_type) and instance.zone in ("", option.zone)
        for option in options
    )


def _launch_options(intent: Intent) -> Sequence[LaunchOption] | None:
    """Return the offerings that an intent requested, None where it is not a launch.

    A launch within a batch does not repeat them: its instance carries the tag of the batch.
    """
    import msgspec

    if intent.verb not in (Verb.LAUNCH, Verb.LAUNCH_BATCH):
        return None
    body = intent.parameters.get("launch")
    if body is None:
        return ()
    try:
        return decode_json(body, Launch).options
    except msgspec.MsgspecError:
        return ()


def _format_ids(instances: Sequence[Instance]) -> str:
    shown = ", ".join(i.id for i in instances[:5]) + (", …" if len(instances) > 5 else "")
    return f"{format_count(len(instances), 'instance')} ({shown})"


def _describe_instance(instance: Instance, price: float | None) -> str:
    """Return what a person needs to recognise an instance: type, zone, age, price and tags."""
    cost = "price unknown" if price is None else f"${price:.4f}/hour"
    return (
        f"{instance.instance_type} {instance.capacity_type} in {instance.zone}, "
        f"launched {format_time(instance.launched_at)}, {cost}, {_format_tags(instance.tags)}"
    )


def _format_tags(tags: Mapping[str, str]) -> str:
    named = [key for key in sorted(tags) if key in _TAGS_SHOWN or "cluster" in key]
    return "tags " + (", ".join(f"{key}={tags[key]}" for key in named) or "none")
