"""From a planned NodeClaim to an instance.

The order makes it safe. The intent, with everything that the call needs, is durable before the
call. The claim is recorded before its instance exists. The errors in an answer are read even if it
has an instance, since one CreateFleet can return both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol

from reconciler.engine.effects import Effects
from reconciler.engine.steps import lifecycle
from reconciler.engine.steps.batching import BatchedLaunches, LaunchCall
from reconciler.engine.steps.nomination import NOMINATED
from reconciler.engine.world import RequestedLaunches, World
from reconciler.model.errors import CloudError, LeaseLostError, ReconcilerError, TransientCloudError
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import (
    INSTANCE_TYPE,
    NODECLASS_HASH,
    NODECLASS_HASH_VERSION,
    NODEPOOL,
    NODEPOOL_HASH,
    NODEPOOL_HASH_VERSION,
    REQUESTED_DRIVERS,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimSpec
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodepool import NodePool, requirements_of
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.pod import ResourceRequirements
from reconciler.model.resources import parse_resources
from reconciler.placement.question import LaunchCatalog
from reconciler.plan.make.launch import is_interruptible, launch_choices, reservation_type
from reconciler.plan.value.nodes import PlannedNodeClaim
from reconciler.ports.cloud import Instance, Launch, LaunchAnswer, LaunchOption, Refusal
from reconciler.ports.journal import Intent, IntentOutcome, Outcome
from reconciler.ports.progress import EventKind
from reconciler.ports.state import StateStore, Unavailable

PRICE_OVERLAID: Final = "karpenter.sh/price-overlay-applied"
UNAVAILABLE_FOR: Final = timedelta(minutes=3)
UNAVAILABLE_AT_MOST: Final = timedelta(minutes=30)
"""A refused offering is unavailable for three minutes, and longer after each further refusal.

It is requested again only after that time, so the count is kept longer than the longest pause.
"""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The facts that launches of one NodePool need.

    ``uncovered`` are the types at prices without commitments, None if there are no commitments.
    """

    node_pool: NodePool
    node_class: EC2NodeClass
    node_pool_hash: tuple[str, str]
    node_class_hash: tuple[str, str]
    catalog: LaunchCatalog
    uncovered: LaunchCatalog | None = None

    def for_claim(self, planned: PlannedNodeClaim) -> Blueprint:
        """Return the blueprint of a planned claim: commitments count if the plan relies on them."""
        source = planned.launch.price_source
        is_covered = source is not None and bool(source.note)
        if self.uncovered is None or is_covered:
            return self
        return with_fields(self, catalog=self.uncovered)

    @property
    def types(self) -> Sequence[InstanceType]:
        """The instance types as resolved by the pool's class and priced by NodeOverlays."""
        return self.catalog.types

    @property
    def price_overlaid(self) -> frozenset[str]:
        """The instance types whose price a NodeOverlay changed."""
        return getattr(self.catalog, "price_overlaid", frozenset())

    def instance_type(self, name: str) -> InstanceType | None:
        """Return the instance type with the name, or None."""
        return self.catalog.get(name)


def make_node_claim(planned: PlannedNodeClaim, blueprint: Blueprint, now: datetime) -> NodeClaim:
    """Return the NodeClaim of a planned one; its spec never changes afterwards."""
    template = blueprint.node_pool.spec.template
    pool_hash, pool_version = blueprint.node_pool_hash
    class_hash, class_version = blueprint.node_class_hash
    return NodeClaim(
        metadata=Metadata(
            name=planned.name,
            labels={**planned.labels, NODEPOOL: planned.node_pool},
            annotations={
                **template.metadata.annotations,
                NODEPOOL_HASH: pool_hash,
                NODEPOOL_HASH_VERSION: pool_version,
                NODECLASS_HASH: class_hash,
                NODECLASS_HASH_VERSION: class_version,
                NOMINATED: " ".join(planned.pods),
                **_requested_drivers(planned),
            },
            creation_timestamp=now,
        ),
        spec=NodeClaimSpec(
            node_class_ref=template.spec.node_class_ref,
            requirements=planned.requirements,
            resources=ResourceRequirements(requests=dict(planned.requests)),
            taints=planned.taints,
            startup_taints=planned.startup_taints,
            expire_after=template.spec.expire_after,
            termination_grace_period=template.spec.termination_grace_period,
        ),
    )


def _requested_drivers(planned: PlannedNodeClaim) -> dict[str, str]:
    """Return the annotation with the drivers for whose devices initialization waits."""
    if not planned.device_drivers:
        return {}
    return {REQUESTED_DRIVERS: ",".join(planned.device_drivers)}


def launch_options(claim: NodeClaim, blueprint: Blueprint) -> tuple[LaunchOption, ...]:
    """Return the offerings that a launch of ``claim`` may use, all of one capacity type."""
    requirements = requirements_of(claim.spec.requirements)
    requests = parse_resources(claim.spec.resources.requests)
    named = requirements.requirement_on(INSTANCE_TYPE)
    kinds = (
        blueprint.types
        if named.complement
        else [k for name in sorted(named.values) if (k := blueprint.instance_type(name))]
    )
    _, choices = launch_choices(requirements, requests, kinds)
    return tuple(
        LaunchOption(
            choice.kind.name,
            offering.zone,
            offering.capacity_type,
            offering.price,
            offering.reservation_id or "",
            reservation_type(offering),
            is_interruptible(offering),
        )
        for choice in choices
        for offering in sorted(choice.offerings, key=lambda o: (o.price, o.zone))
    )


def blueprint_of(
    claim: NodeClaim,
    blueprints: Mapping[str, Blueprint],
    planned: Mapping[str, PlannedNodeClaim],
) -> Blueprint | None:
    """Return the blueprint of a claim: that of its NodePool, limited to what was planned for it."""
    blueprint = blueprints.get(claim.node_pool)
    if blueprint is None or claim.name not in planned:
        return blueprint
    return blueprint.for_claim(planned[claim.name])


def make_launch(claim: NodeClaim, blueprint: Blueprint, tags: Mapping[str, str]) -> Launch | None:
    """Return the call that launches ``claim``, without an intent; None without offerings."""
    options = launch_options(claim, blueprint)
    if not options:
        return None
    overlaid = any(o.instance_type in blueprint.price_overlaid for o in options)
    marked = claim.metadata.annotations.get(PRICE_OVERLAID) == "true"
    return Launch("", claim, blueprint.node_class, options, tags, price_overlaid=overlaid or marked)


def launch(effects: Effects, batched: BatchedLaunches, types: TypeLookup) -> LaunchTally:
    """Journal the launches, record their claims, call EC2, and record the answers received.

    Refused offerings are recorded as unavailable, so that the
    next plan uses others.
    """
    effects.begin(batched.intents)
    return request_launches(effects, batched.calls, batched.batches, types)


@dataclass(frozen=True, slots=True)
class LaunchTally:
    """How many launches were answered, and how many of them gave an instance."""

    answered: int = 0
    instances: int = 0

    @property
    def all_failed(self) -> bool:
        return self.answered > 0 and self.instances == 0


def request_launches(
    effects: Effects,
    calls: Sequence[LaunchCall],
    batches: Sequence[Intent],
    types: TypeLookup,
) -> LaunchTally:
    """Record the claims of journalled launches, call EC2, and record the answers received.

    The call may take longer than the pass; a later pass reads its answers then (``read_answers``).
    """
    if not calls:
        return LaunchTally()
    world = effects.world
    now = world.clock.now()
    world.store.put_node_claims(
        [lifecycle.mark_launching(call.node_claim, now) for _, call in calls]
    )
    name = f"launch {calls[0][0].id}"
    world.requested[name] = RequestedLaunches(tuple(calls), tuple(batches))
    try:
        world.calls.start(name, partial(world.compute.launch, [call for _, call in calls]))
    except BaseException:
        del world.requested[name]  # the launches stay in doubt, and recovery checks them
        raise
    return _read_answer(effects, name, types)


def read_answers(effects: Effects, types: TypeLookup) -> LaunchTally:
    """Record what EC2 has answered to the launches that earlier passes of this process began."""
    read = [_read_answer(effects, name, types) for name in list(effects.world.requested)]
    return LaunchTally(sum(r.answered for r in read), sum(r.instances for r in read))


def launches_under_way(world: World) -> frozenset[str]:
    """Return the ids of the launches and batches whose calls in this process are still running."""
    requested = world.requested.values()
    batches = (batch.id for group in requested for batch in group.batches)
    return frozenset((*batches, *(intent.id for group in requested for intent, _ in group.calls)))


def _refusals(answered: Sequence[AnsweredLaunch]) -> Iterator[Refusal]:
    """Yield the refused offerings of all answers."""
    for (_, call), answer in answered:
        if isinstance(answer, LaunchAnswer):
            yield from _refusals_with_offerings(answer, call)


def _take_answers(world: World, name: str) -> Sequence[LaunchAnswer | TransientCloudError] | None:
    """Return the answers to one group of launches, None while the call is under way.

    After an error the launches stay in doubt, and recovery checks them.
    """
    try:
        answer = world.calls.answer(name)
    except BaseException:
        del world.requested[name]
        raise
    if answer is None:
        return None
    del world.requested[name]
    if answer.error is not None:
        raise answer.error
    assert isinstance(answer.value, Sequence), "each launch has an answer"
    return answer.value


def _read_answer(effects: Effects, name: str, types: TypeLookup) -> LaunchTally:
    """Record the answers to one group of launches, if EC2 has answered.

    A refused offering is recorded once per call, however many launches it concerns. A batch has
    ended when all its launches have.
    """
    world = effects.world
    requested = world.requested[name]
    answers = _take_answers(world, name)
    if answers is None:
        return LaunchTally()
    answered = list(zip(requested.calls, answers, strict=True))
    mark_unavailable(world, list(_refusals(answered)))
    recorded = {claim.name: claim for claim in world.store.node_claims()}
    known: list[AnsweredLaunch] = []
    open_batches: set[str] = set()
    for (intent, call), answer in answered:
        if call.batch in open_batches:
            continue  # the call of the batch failed: reported once, and all of it stays in doubt
        claim = recorded.get(call.node_claim.name, call.node_claim)
        known.append(((intent, with_fields(call, node_claim=claim)), answer))
        if call.batch and isinstance(answer, TransientCloudError):
            open_batches.add(call.batch)
    instances = record_outcomes(effects, known, types)
    close_batches(effects, [batch for batch in requested.batches if batch.id not in open_batches])
    return LaunchTally(len(answered), instances)


def close_batches(effects: Effects, batches: Sequence[Intent]) -> None:
    """Journal that batches have ended: each of their launches has its own outcome."""
    effects.finish(batches, Outcome.SUCCEEDED, "all launches have an outcome")


class TypeLookup(Protocol):
    """Finds an instance type by name, as the class of a NodePool resolves it."""

    def __call__(self, node_pool: str, name: str) -> InstanceType | None: ...


AnsweredLaunch = tuple[LaunchCall, LaunchAnswer | Exception]
"""A launch, and what EC2 has answered to it."""


def _outcomes(
    world: World, answered: Sequence[AnsweredLaunch]
) -> tuple[dict[str, tuple[NodeClaim, Instance]], dict[str, tuple[NodeClaim, str]]]:
    """Return by intent the instances that were launched, and why other launches failed.

    What may succeed when it is repeated is only reported.
    """
    launched: dict[str, tuple[NodeClaim, Instance]] = {}
    failed: dict[str, tuple[NodeClaim, str]] = {}
    for (intent, call), answer in answered:
        if isinstance(answer, TransientCloudError):
            _report(world, EventKind.RETRYING, str(answer), call.node_claim)
            continue
        found = _launched_instance(answer)
        if isinstance(found, str):
            failed[intent.id] = call.node_claim, found
        else:
            launched[intent.id] = call.node_claim, found
    return launched, failed


def record_outcomes(effects: Effects, answered: Sequence[AnsweredLaunch], types: TypeLookup) -> int:
    """Record the outcomes of launches; return how many gave an instance.

    Claims are written first: a launch without an outcome is in doubt, so a crash in between leaves
    a trace. After a failure the claim is removed, and the next plan decides again.
    """
    world = effects.world
    launched, failed = _outcomes(world, answered)
    now = world.clock.now()
    launched_claims = [
        lifecycle.mark_launched(
            claim, instance, types(claim.node_pool, instance.instance_type), now
        )
        for claim, instance in launched.values()
    ]
    if launched_claims:
        world.store.put_node_claims(launched_claims)
    if failed:
        world.store.forget_node_claims({c.name: why for c, why in failed.values()}, now)
    ended = [
        IntentOutcome(i, Outcome.SUCCEEDED, instance.id) for i, (_, instance) in launched.items()
    ]
    ended += [IntentOutcome(i, Outcome.FAILED, why) for i, (_, why) in failed.items()]
    effects.end(ended)
    for claim, instance in launched.values():
        what = f"{instance.instance_type} {instance.capacity_type} in {instance.zone}"
        _report(world, EventKind.LAUNCHED, f"{claim.name}: {what}", claim)
    for claim, why in failed.values():
        _report(world, EventKind.LAUNCH_FAILED, why, claim)
    return len(launched)


def _launched_instance(answer: LaunchAnswer | Exception) -> Instance | str:
    """Return the instance of a launch that has ended, or why there is none."""
    if isinstance(answer, ReconcilerError) and not isinstance(answer, LeaseLostError):
        return str(answer)
    if isinstance(answer, Exception):
        raise answer
    if answer.instance is None:
        return str(_refusal_error(answer.refused))
    if answer.instance.is_terminating:
        return f"{answer.instance.id} was terminated immediately"
    return answer.instance


def _report(world: World, kind: EventKind, text: str, claim: NodeClaim) -> None:
    world.notify(kind, text, node_claim=claim.name, node_pool=claim.node_pool)


def _refusals_with_offerings(answer: LaunchAnswer, call: Launch) -> list[Refusal]:
    """Return the refusals with the offerings that they concern.

    An error of EC2 need not name its offering. Where no instance was launched, such an error
    concerns all requested offerings. It names no reservation: that of the requested offering
    counts, so that the others of its type and zone stay available.
    """
    found: list[Refusal] = []
    for r in answer.refused:
        is_named = bool(r.instance_type and r.zone)
        if not is_named and answer.instance is not None:
            continue
        concerned = [
            with_fields(
                r, instance_type=o.instance_type, zone=o.zone, reservation_id=o.reservation_id
            )
            for o in call.options
            if r.instance_type in ("", o.instance_type) and r.zone in ("", o.zone)
        ]
        found += concerned or ([r] if is_named else [])
    return list(dict.fromkeys(found))


def _refusal_error(refused: Sequence[Refusal]) -> ReconcilerError:
    if not refused:
        return CloudError("EC2 returned neither an instance nor a reason", where="CreateFleet")
    first = refused[0]
    more = f" and {len(refused) - 1} more offerings" if len(refused) > 1 else ""
    pool = "/".join(filter(None, (first.instance_type, first.zone, first.capacity_type)))
    return CloudError(f"{first.code} for {pool}{more}", where="CreateFleet")


def unavailable_offerings(store: StateStore, now: datetime) -> Sequence[Unavailable]:
    """Return the offerings that are unavailable now.

    None is unavailable for longer than half an hour: a later time was recorded before the clock
    was set back.
    """
    return [u for u in store.unavailable(now) if u.until - now <= UNAVAILABLE_AT_MOST]


def mark_unavailable(world: World, refused: Sequence[Refusal]) -> None:
    """Record refused offerings; each further refusal doubles the time of unavailability."""
    if not refused:
        return
    now = world.clock.now()
    before = {u.offering: u.refusals for u in world.store.unavailable(now - UNAVAILABLE_AT_MOST)}
    marks = []
    for refusal in sorted(set(refused), key=lambda r: r.offering):
        kind, zone, capacity_type, reservation = refusal.offering
        count = before.get(refusal.offering, 0) + 1
        pause = min(UNAVAILABLE_FOR * 2 ** (count - 1), UNAVAILABLE_AT_MOST)
        marks.append(
            Unavailable(kind, zone, capacity_type, now + pause, count, refusal.code, reservation)
        )
        shown = "/".join(filter(None, refusal.offering))
        world.notify(EventKind.UNAVAILABLE, f"{shown}: {refusal.code}")
    world.store.put_unavailable(marks)
