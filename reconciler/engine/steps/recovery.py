"""Recovery after a crash or a lost answer: check the world first, then decide.

An intent without an outcome may have had its effect or not. A launch is searched in EC2 by the tag
that holds its id. If there is no instance, the launch is requested again with the same client
token, so that one intent never has two instances. A reboot is left to the node, which reports
another boot. Every other verb is repeated by the next pass anyway, so its intent is closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from reconciler.engine.effects import Effects
from reconciler.engine.ownership import INTENT_TAG, could_have_launched, unclear_owners
from reconciler.engine.steps import batching, lifecycle, provision
from reconciler.model.errors import CloudError, TransientCloudError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.ownership import Owner
from reconciler.ports.cloud import Instance, Launch, LaunchAnswer
from reconciler.ports.journal import REQUESTED, Intent, IntentOutcome, Outcome, Verb
from reconciler.ports.progress import EventKind

LAG: Final = timedelta(seconds=5)
"""How long EC2 may take to list an instance; before that, a launch is not repeated.

A server that forgets or ignores client tokens would launch a second instance.
"""

REPEATED_WITHIN: Final = timedelta(hours=1)
"""How long a launch may be repeated: EC2 shows terminated instances for about as long.

Otherwise a record restored from a backup could launch nodes that were replaced long ago.
"""


def recover(effects: Effects, types: provision.TypeLookup, owner: Owner) -> provision.LaunchTally:
    """Settle every intent in doubt whose outcome EC2 or the cluster shows.

    Launches of this process whose calls have not ended are left to them. Returns the results of the
    launches that have ended since the last pass.
    """
    ended = provision.read_answers(effects, types)
    calling = provision.launches_under_way(effects.world)
    in_doubt = effects.world.journal.in_doubt()
    recorded = effects.world.store.node_claims() if in_doubt else ()
    rebooting = {claim.name for claim in recorded if claim.is_rebooting}
    draining = {
        claim.status.node_name
        for claim in recorded
        if claim.metadata.deletion_timestamp or claim.is_rebooting
    }
    launches, batches, waiting = list[Intent](), dict[str, Intent](), list[Intent]()
    ended_intents: list[IntentOutcome] = []
    for entry in in_doubt:
        if entry.intent.verb in REQUESTED:
            continue  # a request that has not been executed yet
        if entry.intent.id in calling:
            waiting.append(entry.intent)
        elif entry.intent.verb is Verb.LAUNCH:
            launches.append(entry.intent)
        elif entry.intent.verb is Verb.LAUNCH_BATCH:
            batches[entry.intent.id] = entry.intent
        elif entry.intent.verb is Verb.REBOOT and entry.intent.target in rebooting:
            continue  # the node shows whether it has booted again (``engine/reboots``)
        elif entry.intent.verb is not Verb.DRAIN:
            ended_intents.append(
                IntentOutcome(entry.intent.id, Outcome.FAILED, "interrupted; planned again")
            )
        elif entry.intent.target not in draining:
            ended_intents.append(
                IntentOutcome(entry.intent.id, Outcome.SUCCEEDED, "the node is gone")
            )
    effects.end(ended_intents)
    claims = {claim.name: claim for claim in effects.world.store.node_claims()}
    _settle_launches(effects, launches, batches, claims, types, owner)
    _forget_unrequested(effects, (*launches, *waiting), claims)
    return ended


def _settle_launches(
    effects: Effects,
    intents: Sequence[Intent],
    batches: Mapping[str, Intent],
    claims: Mapping[str, NodeClaim],
    types: provision.TypeLookup,
    owner: Owner,
) -> None:
    """Settle the launches in doubt whose instances EC2 shows, and repeat the others.

    Their claims are recorded first, so that nothing else is launched in their place. Nothing is
    repeated while the owner of some instance is unclear: our records may be older than the fleet.
    """
    world = effects.world
    calls = [(intent, batching.journalled_call(intent, batches)) for intent in intents]
    unrecorded = [
        lifecycle.mark_launching(call.node_claim, intent.at)
        for intent, call in calls
        if intent.target not in claims
    ]
    if unrecorded:
        world.store.put_node_claims(unrecorded)
    calls_by_token: dict[str, list[tuple[Intent, Launch]]] = {batch: [] for batch in batches}
    for intent, call in calls:
        calls_by_token.setdefault(call.token, []).append((intent, call))
    if not calls_by_token:
        return
    try:
        shown = _instances_by_intent(
            world.compute.find(list(calls_by_token)), [*intents, *batches.values()]
        )
    except TransientCloudError as error:
        world.notify(
            EventKind.RETRYING, str(error), node_claim=intents[0].target if intents else ""
        )
        return
    again: list[tuple[Intent, Launch]] = []
    for token, members in calls_by_token.items():
        if token in batches:
            again += _settle_batch(
                effects, batches[token], members, shown.get(token, ()), claims, types
            )
        else:
            again += _settle_launch(effects, *members[0], shown.get(token, ()), claims, types)
    if again and _has_unclear_owners(effects, owner):
        return
    again = _launches_to_repeat(effects, again, batches, claims, types)
    repeated = {call.batch for _, call in again}
    provision.request_launches(
        effects, again, [batches[batch] for batch in batches if batch in repeated], types
    )


def _instances_by_intent(
    instances: Sequence[Instance], intents: Sequence[Intent]
) -> Mapping[str, Sequence[Instance]]:
    """Return the instances by the intent that launched them; a copied tag is not enough."""
    known = {intent.id: intent for intent in intents}
    found: dict[str, list[Instance]] = {}
    for instance in instances:
        intent = known.get(instance.tags.get(INTENT_TAG, ""))
        if intent is not None and could_have_launched(intent, instance):
            found.setdefault(intent.id, []).append(instance)
    return found


def _has_unclear_owners(effects: Effects, owner: Owner) -> bool:
    """Return whether the owner of some instance is unclear, or EC2 does not answer."""
    world = effects.world
    try:
        listed = world.compute.instances()
    except TransientCloudError as error:
        world.notify(EventKind.RETRYING, str(error))
        return True
    claims = world.store.node_claims()
    return bool(unclear_owners(listed, claims, world.journal, owner, world.clock.now()))


def _settle_launch(
    effects: Effects,
    intent: Intent,
    call: Launch,
    shown: Sequence[Instance],
    claims: Mapping[str, NodeClaim],
    types: provision.TypeLookup,
) -> list[tuple[Intent, Launch]]:
    """Settle a launch that is not in a batch; return it if it has to be repeated."""
    answer = _answer_from_instances(shown)
    if answer is not None:
        if isinstance(answer, LaunchAnswer):
            message = f"{intent.target} was launched before"
            effects.world.notify(EventKind.RECOVERED, message, node_claim=intent.target)
        provision.record_outcomes(effects, [((intent, call), answer)], types)
    elif _may_repeat(effects, intent, claims.get(intent.target)):
        return [(intent, call)]
    return []


def _settle_batch(
    effects: Effects,
    batch: Intent,
    members: Sequence[tuple[Intent, Launch]],
    shown: Sequence[Instance],
    claims: Mapping[str, NodeClaim],
    types: provision.TypeLookup,
) -> list[tuple[Intent, Launch]]:
    """Settle the launches of a batch that are in doubt; return them if it has to be repeated.

    Only the complete batch can be repeated: a request for fewer instances would be another call.
    If it launched any instance, the call has ended, and claims without an instance are removed.
    """
    if not members:
        provision.close_batches(effects, [batch])
        return []
    assigned = {name: i for name, claim in claims.items() if (i := lifecycle.instance_id(claim))}
    targets = [intent.target for intent, _ in members]
    instances = batching.assign_instances(targets, shown, assigned)
    _record_settled(effects, members, instances, assigned, types)
    settled = instances.keys() | assigned.keys()
    missing = [launch for launch in members if launch[0].target not in settled]
    if missing:
        first = missing[0][0]
        if not _may_repeat(effects, first, claims.get(first.target)):
            return []
        if not shown and len(missing) == len(batching.batch_claims(batch)):
            return missing
        error = CloudError(
            f"EC2 returned {len(instances)} more instances of {batch.id}, and none for this claim",
            where="CreateFleet",
        )
        provision.record_outcomes(effects, [(launch, error) for launch in missing], types)
    provision.close_batches(effects, [batch])
    return []


def _record_settled(
    effects: Effects,
    members: Sequence[tuple[Intent, Launch]],
    instances: Mapping[str, Instance],
    assigned: Mapping[str, str],
    types: provision.TypeLookup,
) -> None:
    """Record the launches whose instances EC2 shows, and end those whose claims have theirs."""
    answered = [
        (launch, LaunchAnswer(instances[launch[0].target]))
        for launch in members
        if launch[0].target in instances
    ]
    for (intent, _), _ in answered:
        message = f"{intent.target} was launched before"
        effects.world.notify(EventKind.RECOVERED, message, node_claim=intent.target)
    provision.record_outcomes(effects, answered, types)
    effects.end(
        [
            IntentOutcome(intent.id, Outcome.SUCCEEDED, assigned[intent.target])
            for intent, _ in members
            if intent.target in assigned and intent.target not in instances
        ]
    )


def _answer_from_instances(instances: Sequence[Instance]) -> LaunchAnswer | Exception | None:
    """Return the answer to a launch according to the instances of its intent; None without any.

    If a server ignored the client token, the oldest instance is kept and the others are orphans.
    """
    alive = [instance for instance in instances if not instance.is_terminating]
    if alive:
        return LaunchAnswer(min(alive, key=lambda i: (i.launched_at, i.id)))
    if instances:
        return CloudError("its instance was launched and terminated again", where="EC2")
    return None


def _may_repeat(effects: Effects, intent: Intent, claim: NodeClaim | None) -> bool:
    """Return whether the call is old enough for EC2 to list its instance."""
    # A time in the future means that the clock was set back; it counts as long ago.
    if abs(effects.world.clock.now() - _last_requested(intent, claim)) >= LAG:
        return True
    message = f"checking whether EC2 has already launched {intent.target}"
    effects.world.notify(EventKind.LOOKING, message, node_claim=intent.target)
    return False


def _launches_to_repeat(
    effects: Effects,
    again: Sequence[tuple[Intent, Launch]],
    batches: Mapping[str, Intent],
    claims: Mapping[str, NodeClaim],
    types: provision.TypeLookup,
) -> list[tuple[Intent, Launch]]:
    """Return the launches that are repeated; old ones are given up and planned again."""
    now = effects.world.clock.now()
    is_recent = [
        now - _last_requested(intent, claims.get(intent.target)) <= REPEATED_WITHIN
        for intent, _ in again
    ]
    recent = [launch for launch, keep in zip(again, is_recent, strict=True) if keep]
    old = [launch for launch, keep in zip(again, is_recent, strict=True) if not keep]
    why = CloudError("it was requested long ago, and EC2 shows no instance", where="EC2")
    provision.record_outcomes(effects, [(launch, why) for launch in old], types)
    open_batches = {call.batch for _, call in recent}
    ended_batches = {call.batch for _, call in again} - open_batches - {""}
    provision.close_batches(effects, [batches[batch] for batch in sorted(ended_batches)])
    return recent


def _last_requested(intent: Intent, claim: NodeClaim | None) -> datetime:
    """Return when a launch was last requested."""
    return (lifecycle.launch_requested_at(claim) if claim is not None else None) or intent.at


def _forget_unrequested(
    effects: Effects, launches: Sequence[Intent], claims: Mapping[str, NodeClaim]
) -> None:
    """Remove the claims without an instance for which no launch is in doubt."""
    world = effects.world
    requested = {intent.target for intent in launches}
    unlaunched = [c.name for c in claims.values() if not c.status.provider_id]
    reasons = {name: "it was never launched" for name in unlaunched if name not in requested}
    if reasons:
        world.store.forget_node_claims(reasons, world.clock.now())
    for name in reasons:
        world.notify(EventKind.FAILED, f"{name} was never launched", node_claim=name)
