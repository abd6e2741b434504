"""The steps of a reboot: keep new pods off, drain, call EC2, and wait for another boot.

Each pass advances every reboot as much as possible, without waiting. The pods that a drain leaves
stay on the node and start again with it. A node that does not come back is replaced.

EC2 has no client token for a reboot. The boot that it is to end is recorded before the call, so
that after a crash the node itself shows whether the call had an effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from reconciler.engine.effects import Effects
from reconciler.engine.observation import Collected, Observation
from reconciler.engine.reboots import episode
from reconciler.engine.steps import lifecycle
from reconciler.engine.steps.commands import format_cause, record_phase, unfence
from reconciler.engine.world import World
from reconciler.model.duration import parse_duration
from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import INITIALIZED, REBOOTING_TAINT
from reconciler.model.karpenter.nodeclaim import REBOOTING, NodeClaim
from reconciler.model.kubernetes.node import Node
from reconciler.ports.journal import Intent, Outcome, Verb
from reconciler.ports.progress import EventKind
from reconciler.ports.state import CommandPhase, RunningCommand

_ENDED = (episode.SUCCEEDED, episode.FAILED)


def _begin_all(
    effects: Effects, command: RunningCommand, claims: dict[str, NodeClaim], seen: Collected
) -> None:
    """Begin the reboots of a command that have not begun, and change their ``claims``."""
    for name in command.node_claims:
        if (claim := claims.get(name)) is not None and not _has_begun(claim, command):
            claims[name] = _begin(effects, claim, command, seen)


def advance_reboots(effects: Effects, seen: Collected) -> None:
    """Advance every reboot as much as possible now, and end the commands that are done.

    Nothing is rebooted while the owner of some instance is unclear.
    """
    if seen.unclear_owners:
        return
    claims = {claim.name: claim for claim in seen.claims}
    running = [command for command in seen.commands if not command.removes_nodes]
    for command in running:
        _begin_all(effects, command, claims, seen)
    nodes = seen.nodes()
    for claim in list(claims.values()):
        if claim.is_rebooting and not claim.is_deleting:
            node = nodes.get(claim.status.provider_id)
            claims[claim.name] = _Reboot(effects, seen, claim, node).advance()
    for command in running:
        _end_command(effects, command, list(map(claims.get, command.node_claims)))


def _has_begun(claim: NodeClaim, command: RunningCommand) -> bool:
    """Return whether the command has rebooted the node, or is doing so, or never can."""
    known = claim.condition(REBOOTING)
    since = known.last_transition_time if known is not None else None
    return claim.is_deleting or (since is not None and since >= command.started_at)


def _begin(
    effects: Effects, claim: NodeClaim, command: RunningCommand, seen: Observation
) -> NodeClaim:
    limit = command.termination_grace_period
    drain_limit = parse_duration(limit) if limit else None
    fresh = episode.request(claim, seen.at, drain_limit, command.message)
    effects.world.store.put_node_claims([fresh])
    return fresh


def _end_command(
    effects: Effects, command: RunningCommand, claims: Sequence[NodeClaim | None]
) -> None:
    """End a command whose nodes have been rebooted, or are removed."""
    why = ""
    for claim in claims:
        known = claim.condition(REBOOTING) if claim is not None else None
        if known is not None and known.reason == episode.FAILED:
            why = known.message
        elif claim is None or claim.is_deleting:
            why = "the node is removed"
        elif known is None or known.reason not in _ENDED:
            return
    if not why:
        record_phase(effects, command, CommandPhase.DONE)
        return
    record_phase(effects, replace(command, failed=True), CommandPhase.ROLLED_BACK, why)
    text = f"{command.reason}: {why}"
    effects.world.notify(EventKind.COMMAND_ROLLED_BACK, text, command=command.id)


class _Reboot:
    """One reboot in a pass; ``node`` is None while the cluster does not show the node."""

    def __init__(
        self, effects: Effects, seen: Observation, claim: NodeClaim, node: Node | None
    ) -> None:
        self._effects = effects
        self._now = seen.at
        self._claim = claim
        self._node = node

    @property
    def _world(self) -> World:
        return self._effects.world

    def advance(self) -> NodeClaim:
        """Take the next step, and return the claim as it is recorded afterwards."""
        limit = episode.deadline(self._claim, has_node=self._node is not None)
        if limit is not None and self._now > limit[0]:
            timed_out = episode.is_issued(self._claim)
            self._fail(limit[1], "recovery_timeout" if timed_out else "provider_error")
        elif self._node is not None and episode.is_issued(self._claim):
            self._await_boot(self._node)
        elif self._node is not None and episode.is_requested(self._claim):
            self._settle_call(self._node)
        elif self._node is not None:
            self._drain(self._node)
        return self._claim

    def _drain(self, node: Node) -> None:
        """Evict the pods of the node, then call EC2.

        Pods are never deleted: those that the drain leaves at its limit stay on the node.
        """
        try:
            limit = episode.drain_limit(self._claim)
        except ValueError as error:
            self._reject(node, str(error))
            return
        if not node.has_taint(REBOOTING_TAINT):
            self._effects.execute_all([self._fence(node)])
            return  # a pod may still be bound; the next observation shows it
        since = episode.requested_at(self._claim) or self._now
        elapsed = self._now - since
        intent = self._intent(Verb.DRAIN, node.name, {"since": str(since)})
        is_over = limit is not None and elapsed >= max(limit, episode.DRAIN_MIN)
        if limit is None or limit:
            self._effects.begin([intent])
            if not is_over and (not self._has_drained(node) or elapsed < episode.DRAIN_MIN):
                return
            self._effects.finish([intent], Outcome.SUCCEEDED)
        self._call(node)

    def _reject(self, node: Node, why: str) -> None:
        """End a reboot whose request is not valid; the node stays."""
        if node.has_taint(REBOOTING_TAINT):
            self._unfence(node, why)
            return  # the next observation shows the node without the taint
        before = self._claim
        self._put(episode.fail(before, self._now, why))
        text = f"{node.name} is not rebooted: {why}"
        self._report_end(EventKind.REBOOT_FAILED, text, "invalid_request", before)

    def _unfence(self, node: Node, why: str) -> bool:
        return self._effects.execute_all([unfence(self._effects, node.name, reason=why)])[0]

    def _has_drained(self, node: Node) -> bool:
        try:
            step = self._world.cluster.drain(node.name, None, self._now)
        except ClusterError as error:  # other nodes continue; this one is retried
            self._report(EventKind.FAILED, str(error))
            return False
        return step is not None and step.is_done

    def _call(self, node: Node) -> None:
        """Record the boot that the call is to end, then call EC2."""
        self._put(episode.attempt(self._claim, node.boot_id, self._now))
        instance = lifecycle.instance_id(self._claim)
        intent = self._reboot_intent()
        (answer,) = self._effects.execute_for_answers(
            [([intent], partial(self._world.compute.reboot, instance))]
        )
        if answer.error is None:
            self._issue(node)
        elif answer.is_refusal:
            self._fail(f"EC2 refused the reboot: {answer.error}", "provider_error")

    def _settle_call(self, node: Node) -> None:
        """Find out what became of a call whose answer was lost, and repeat it if it had no effect.

        A node that is not ready may be booting, and a second call would interrupt that.
        """
        called = episode.last_call(self._claim) or self._now
        if node.boot_id != episode.boot_to_end(self._claim):
            self._effects.finish([self._reboot_intent()], Outcome.SUCCEEDED, "it has another boot")
            self._issue(node)
        elif abs(self._now - called) < episode.REPEATED_AFTER:
            return
        elif node.is_ready:
            self._call(node)
        else:
            self._effects.finish([self._reboot_intent()], Outcome.SUCCEEDED, "it is not ready")
            self._issue(node)

    def _issue(self, node: Node) -> None:
        self._put(episode.issue(self._claim, self._now))
        self._report(EventKind.REBOOTING, f"{node.name} is rebooting")
        self._uninitialize(node)

    def _await_boot(self, node: Node) -> None:
        """End the reboot once the node is ready after another boot."""
        if not self._uninitialize(node) or node.boot_id == episode.boot_to_end(self._claim):
            return
        if node.has_taint(REBOOTING_TAINT):
            if self._unfence(node, "it has booted again"):
                self._report(EventKind.REBOOT_OBSERVED, f"{node.name} has booted again")
            return  # the taint would count in this pass, and pods that wait would get another node
        if node.is_ready:
            before = self._claim
            self._put(episode.succeed(before, self._now))
            self._report_end(
                EventKind.REBOOTED, f"{node.name} is ready after its reboot", "succeeded", before
            )

    def _uninitialize(self, node: Node) -> bool:
        """Remove the label of an initialized node; return whether it has none any more."""
        if INITIALIZED not in node.metadata.labels:
            return True
        try:
            self._world.cluster.uninitialize(node.name)
        except ClusterError as error:
            self._report(EventKind.FAILED, str(error))
            return False
        return True

    def _fail(self, why: str, result: str) -> None:
        """Replace the node: its claim is deleted, with the limit of its drain."""
        before = self._claim
        try:
            limit = episode.drain_limit(self._claim)
        except ValueError:
            limit = None
        failed = episode.fail(self._claim, self._now, why)
        text = f"the reboot failed: {why}"
        gone = lifecycle.delete_with_reason(failed, self._now, DisruptionReason.UNHEALTHY, text)
        if limit is not None:
            gone = lifecycle.with_drain_deadline(gone, self._now + limit)
        if episode.is_requested(self._claim):
            self._effects.finish([self._reboot_intent()], Outcome.FAILED, why)
        self._put(gone)
        name = self._node.name if self._node is not None else self._claim.name
        self._report_end(EventKind.REBOOT_FAILED, f"{name} is replaced: {why}", result, before)

    def _put(self, claim: NodeClaim) -> None:
        self._world.store.put_node_claims([claim])
        self._claim = claim

    def _report_end(self, kind: EventKind, text: str, result: str, before: NodeClaim) -> None:
        """Report the end of the reboot that ``before`` shows, with what metrics count."""
        claim, facts = self._claim, {"result": result}
        times = {"seconds": episode.requested_at(before), "recovery": episode.issued_at(before)}
        for name, since in times.items():
            if since is not None:
                facts[name] = str((self._now - since).total_seconds())
        self._world.notify(
            kind, text, node_claim=claim.name, node_pool=claim.node_pool, facts=facts
        )

    def _report(self, kind: EventKind, text: str) -> None:
        claim = self._claim
        self._world.notify(kind, text, node_claim=claim.name, node_pool=claim.node_pool)

    def _fence(self, node: Node) -> tuple[list[Intent], partial[None]]:
        since = {"since": str(episode.requested_at(self._claim))}
        intent = self._intent(Verb.TAINT, node.name, since)
        return [intent], partial(self._world.cluster.fence, node.name)

    def _reboot_intent(self) -> Intent:
        """Return the intent of the call: the same one whenever it is repeated."""
        facts = {
            "instance": lifecycle.instance_id(self._claim),
            "requested": str(episode.requested_at(self._claim)),
        }
        return self._intent(Verb.REBOOT, self._claim.name, facts)

    def _intent(self, verb: Verb, target: str, facts: dict[str, str]) -> Intent:
        known = self._claim.condition(REBOOTING)
        why = format_cause(DisruptionReason.UNHEALTHY, known.message if known is not None else "")
        return self._effects.intent(verb, target, facts, reason=why)
