"""``reconciler state adopt``: take over nodes of Karpenter, or nodes missing from a lost state.

Shown first, done with ``--yes``. For nodes of Karpenter's, Karpenter must not run any more: it
terminates every instance of its cluster that has no NodeClaim of its own, and both would act on
the same nodes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconciler.options import switch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.assembly.takeover import Takeover
    from reconciler.engine.takeover import AdoptionCandidate
    from reconciler.inspection.replies import AdoptionReply
    from reconciler.observed.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionRequest:
    """Which fleet adopts nodes, and whether it is done (``is_confirmed``) or only shown."""

    fleet: FleetRequest
    output: str
    is_confirmed: bool = switch(
        "--yes", "apply the changes: record the NodeClaims and tag the instances"
    )
    is_karpenter_gone: bool = switch(
        "--karpenter-is-gone",
        "confirm that Karpenter is scaled to zero (needed without --snapshot)",
    )


def run(request: AdoptionRequest) -> int:
    """List the instances to adopt; with ``--yes`` adopt them.

    Raises:
        PolicyError: Karpenter still runs, or the user has not confirmed that it does not.
    """
    from reconciler import exitcode
    from reconciler.assembly.assembly import assemble_takeover

    snapshot = _read_snapshot(request.fleet)
    problems: Sequence[str] = ()
    with assemble_takeover(request.fleet, writes=request.is_confirmed) as takeover:
        stakes = takeover.survey(snapshot)
        if request.output == "text":
            sys.stdout.write(_render_table(stakes, takeover))
        adoptable = sum(stake.claim is not None for stake in stakes)
        acts = bool(request.is_confirmed and adoptable)
        if acts:
            if any(_belongs_to_karpenter(stake, takeover) for stake in stakes):
                _refuse_two_owners(snapshot, is_karpenter_gone=request.is_karpenter_gone)
            problems = takeover.adopt(stakes)
    if request.output != "text":
        from reconciler.render.reply import render_reply, sections_of

        reply = _reply(stakes, takeover, problems, is_done=acts)
        title = f"Instances of cluster {takeover.cluster}"
        sys.stdout.write(render_reply(reply, sections_of(reply), request.output, title=title))
    for problem in problems:
        print(f"cannot tag instances: {problem}", file=sys.stderr)
    if problems:
        print("fix the problem, then run the same command again", file=sys.stderr)
        return exitcode.FAILED
    if acts and request.output == "text":
        print(f"Adopted {adoptable} into fleet {takeover.fleet}.")
    return exitcode.DONE


def _belongs_to_karpenter(stake: AdoptionCandidate, takeover: Takeover) -> bool:
    """Return whether the tags of an adopted instance show that it never was this fleet's."""
    from reconciler.model.ownership import FLEET_TAG

    if stake.claim is None or stake.is_recorded:
        return False
    return stake.instance.tags.get(FLEET_TAG) != takeover.fleet


def _reply(
    stakes: Sequence[AdoptionCandidate],
    takeover: Takeover,
    problems: Sequence[str],
    *,
    is_done: bool,
) -> AdoptionReply:
    """Return the outcome of each instance."""
    from reconciler.inspection.replies import AdoptedInstance, AdoptionReply
    from reconciler.model.karpenter.labels import NODEPOOL

    instances = tuple(
        AdoptedInstance(
            id=stake.instance.id,
            instance_type=stake.instance.instance_type,
            zone=stake.instance.zone,
            launched_at=stake.instance.launched_at,
            per_hour=takeover.price_of(stake),
            node_pool=stake.instance.tags.get(NODEPOOL, ""),
            node_claim=stake.claim.name if stake.claim is not None else "",
            becomes=_outcome_code(stake),
            refused=stake.rejection,
            notes=stake.notes,
        )
        for stake in stakes
    )
    return AdoptionReply(
        fleet=takeover.fleet,
        cluster=takeover.cluster,
        done=is_done,
        instances=instances,
        problems=tuple(problems),
    )


def _outcome_code(stake: AdoptionCandidate) -> str:
    """Return ``ours``, ``tagged`` if it is already recorded, or ``refused``."""
    if stake.claim is None:
        return "refused"
    return "tagged" if stake.is_recorded else "ours"


def _read_snapshot(request: FleetRequest) -> Snapshot | None:
    if request.snapshot is None:
        return None
    from reconciler.assembly.snapshots import read_snapshot_at

    return read_snapshot_at(request.snapshot, request)


def _refuse_two_owners(snapshot: Snapshot | None, *, is_karpenter_gone: bool) -> None:
    """Refuse to adopt nodes of Karpenter unless it is known not to run.

    The snapshot shows pods with Karpenter's label. A controller outside the cluster, or one
    started after the snapshot, cannot be seen.
    """
    from reconciler.engine.ownership import running_karpenters
    from reconciler.model.errors import PolicyError

    if snapshot is None and not is_karpenter_gone:
        raise PolicyError(
            "without a snapshot it is unknown whether Karpenter still runs",
            remedy="pass --snapshot FILE, or --karpenter-is-gone once Karpenter is scaled to zero",
        )
    running = running_karpenters(snapshot.pods) if snapshot is not None else ()
    if running:
        raise PolicyError(
            f"Karpenter is still running (pod {running[0]}); a node cannot have two owners",
            remedy="scale Karpenter to zero, take a new snapshot, and run the command again",
        )


def _render_table(stakes: Sequence[AdoptionCandidate], takeover: Takeover) -> str:
    from reconciler.model.karpenter.labels import NODEPOOL
    from reconciler.render.listing import clock_time, columns

    if not stakes:
        return f"Cluster {takeover.cluster} has no instances to adopt.\n"
    rows = [
        (
            stake.instance.id,
            stake.instance.instance_type,
            stake.instance.zone,
            clock_time(stake.instance.launched_at),
            _dollars(takeover.price_of(stake)),
            stake.instance.tags.get(NODEPOOL, ""),
            stake.claim.name if stake.claim is not None else "",
            _describe_outcome(stake),
        )
        for stake in stakes
    ]
    header = (
        "INSTANCE",
        "TYPE",
        "ZONE",
        "LAUNCHED",
        "$/HOUR",
        "NODEPOOL",
        "NODECLAIM",
        "BECOMES",
    )
    adoptable = sum(stake.claim is not None for stake in stakes)
    return columns([header, *rows]) + f"\n{adoptable} of {len(stakes)} can be adopted.\n"


def _dollars(price: float | None) -> str:
    return "unknown" if price is None else f"{price:.4f}"


def _describe_outcome(stake: AdoptionCandidate) -> str:
    if stake.claim is None:
        return f"refused: {stake.rejection}"
    what = "tags restored" if stake.is_recorded else "ours"
    return "; ".join((what, *stake.notes))
