"""What a command that is rolled back leaves behind: nodes that were launched and took no pod.

Karpenter keeps them as ordinary nodes, and so do we for a while: the next try finds them there
instead of launching them once more. But a limit was judged as if the old nodes had gone. They
stay, so what was to replace them goes again where both together are more than the pool may have;
and what nobody has come to need is empty, whatever ``consolidateAfter`` says
(``disruption/emptiness.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from reconciler.disruption.consolidatable import LEFT_OVER
from reconciler.disruption.vain import IN_VAIN, times_in_vain
from reconciler.engine import lifecycle
from reconciler.engine.effects import Effects
from reconciler.engine.observation import marked_claims
from reconciler.model.nodeclaim import NodeClaim
from reconciler.model.nodepool import NodePool
from reconciler.model.resources import NODES, parse_resources, pods
from reconciler.plan.deciding import vanished_pools
from reconciler.ports import RunningCommand


def mark(effects: Effects, command: RunningCommand, now: datetime, *, failed: bool) -> None:
    """Record of the replacements of a command which no pod has taken that nobody needs them now.

    Where it ``failed``, the nodes that they could not replace are left alone for longer
    each time (``disruption/vain.py``).
    """
    store = effects.world.store
    left = [
        lifecycle.with_condition(claim, LEFT_OVER, "True", now, LEFT_OVER, command.id)
        for claim in store.node_claims()
        if claim.name in command.replacements
        and not claim.is_deleting
        and not lifecycle.had_pods(claim)
    ]
    if left and failed:
        named = [c for c in store.node_claims() if c.name in command.node_claims]
        left += [_once_more_in_vain(claim, effects.revision, now) for claim in named]
    if left:
        store.put_node_claims(left)


def _once_more_in_vain(claim: NodeClaim, revision: str, now: datetime) -> NodeClaim:
    times = times_in_vain(claim) + 1
    fresh = lifecycle.without_condition(claim, IN_VAIN)
    return lifecycle.with_condition(fresh, IN_VAIN, "True", now, revision, str(times))


def forgive(effects: Effects) -> None:
    """Retry failed replacements at once where git has changed: the cause may be fixed."""
    store = effects.world.store
    known = ((claim, claim.condition(IN_VAIN)) for claim in store.node_claims())
    fixed = [
        lifecycle.without_condition(claim, IN_VAIN)
        for claim, tried in known
        if tried is not None and tried.reason != effects.revision
    ]
    if fixed:
        store.put_node_claims(fixed)


def keep_limits(effects: Effects, pools: Sequence[NodePool], now: datetime) -> None:
    """Delete left-over claims of each pool that is beyond its limits, until it no longer is.

    ``pools`` are those of git. A NodePool that left git keeps the limits that were recorded last.

    Those that are not ready go first, the youngest first. No pod runs on any, so nothing is
    disrupted by it: it is a launch that is taken back, and asks no budget.
    """
    world = effects.world
    claims = [c for c in world.store.node_claims() if not c.is_deleting]
    left = [c for c in claims if c.is_true(LEFT_OVER) and c.status.provider_id]
    if not left:
        return
    going = marked_claims(world.store.commands())
    staying = [c for c in claims if c.name not in going]
    recorded = [o.data for o in world.store.objects()]
    for pool in (*pools, *vanished_pools(recorded, pools)):
        if pool.spec.limits:
            spare = sorted((c for c in left if c.node_pool == pool.name), key=_first_to_go)
            used = _used(c for c in staying if c.node_pool == pool.name)
            _let_go(effects, pool, spare, used, now)


def _let_go(
    effects: Effects, pool: NodePool, spare: Sequence[NodeClaim], used: Counter[str], now: datetime
) -> None:
    world, limits = effects.world, pool.limits()
    for claim in spare:
        beyond = sorted(name for name, most in limits.items() if used[name] > most)
        if not beyond:
            return
        used.subtract(_capacity(claim))
        why = f"it would exceed the limit of NodePool {pool.name} for {', '.join(beyond)}"
        gone = lifecycle.deleted(claim, now)
        gone = lifecycle.with_condition(gone, "DisruptionReason", "True", now, "RolledBack", why)
        world.store.put_node_claims([gone])
        text = f"{claim.name} is terminated again: {why}"
        world.tell("Failed", text, node_claim=claim.name, node_pool=pool.name)


def _first_to_go(claim: NodeClaim) -> tuple[bool, float, str]:
    created = claim.metadata.creation_timestamp
    age = -created.timestamp() if created is not None else 0.0
    return claim.is_true(lifecycle.INITIALIZED), age, claim.name


def _used(claims: Iterable[NodeClaim]) -> Counter[str]:
    used: Counter[str] = Counter()
    for claim in claims:
        used.update(_capacity(claim))
    return used


def _capacity(claim: NodeClaim) -> Mapping[str, int]:
    """Return what a claim counts for a limit, in thousandths."""
    return {**parse_resources(claim.status.capacity), NODES: pods(1)}
