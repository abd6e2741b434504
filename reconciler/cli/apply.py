"""``reconciler apply``: carry a plan out, and go on until the fleet is as git wants it.

A saved plan is what a reviewer approved, so it is refused when anything that it was made from has
moved, and when it was carried out before. Killed at any moment, the next run goes on from the
journal.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from reconciler.cli.wiring.assembly import Assembly
    from reconciler.engine.reconcile import Mandate, Pass
    from reconciler.model.settings import Settings
    from reconciler.plan.plan import Plan
    from reconciler.ports import Notifier


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is applied, and how long it may take."""
    from reconciler.cli import inputs

    inputs.add_arguments(parser)
    parser.add_argument("--timeout", default="30m", metavar="DURATION", help="default: 30m")
    parser.add_argument("--interval", default="1s", metavar="DURATION", help="between two looks")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the sum")
    parser.add_argument(
        "-o", "--output", choices=["text", "json"], default="text", help="form of the sum"
    )


def run(args: argparse.Namespace) -> int:
    """Apply until converged; exit 4 where a saved plan is stale."""
    from reconciler.cli import stopping
    from reconciler.cli.exitcode import DONE
    from reconciler.cli.progress import TerminalNotifier
    from reconciler.cli.wiring.assembly import assembled
    from reconciler.engine.loop import Pulse, converge
    from reconciler.model.duration import parse_duration

    approved = take_saved_plan(args)
    out = sys.stderr if args.output == "json" or args.quiet else sys.stdout
    notifier: Notifier = TerminalNotifier(out, colour=out.isatty())
    if args.quiet:
        notifier = stopping.Silence()
    with assembled(args, notifier) as assembly, stopping.on_signal() as stop:
        if approved is not None:
            refuse_repetition(assembly, approved)
        result = converge(
            assembly.world,
            assembly.source,
            mandate_of(assembly.settings, approved),
            deadline=parse_duration(args.timeout),
            pulse=Pulse(busy=parse_duration(args.interval).total_seconds()),
            stop=stop,
        )
        sys.stdout.write(summary(result, assembly, args.output))
    return DONE


def take_saved_plan(args: argparse.Namespace) -> Plan | None:
    """Return the saved plan that the positional argument names, and make it name the fleet.

    A file is a plan, a folder is a fleet; the plan says which folder it was made from.
    """
    from pathlib import Path

    from reconciler.cli.inputs import read_bytes
    from reconciler.plan.plan import from_json

    if args.path is None or not Path(args.path).is_file():
        return None
    plan = from_json(read_bytes(args.path), args.path)
    args.path = plan.source_path or "."
    return plan


def refuse_repetition(assembly: Assembly, approved: Plan) -> None:
    """Raise StalePlanError when the plan was carried out before, or nobody knows any more."""
    from reconciler.model.errors import StalePlanError

    known = assembly.state.store.plan(approved.digest)
    if known is not None and known.carried_out_at is not None:
        raise StalePlanError([f"it was carried out already, at {known.carried_out_at:%F %TZ}"])
    pruned = assembly.state.history.pruned_before()
    if known is None and pruned is not None and approved.at < pruned:
        raise StalePlanError(
            [f"it is older than what is recorded, which begins at {pruned:%F %TZ}"]
        )


def mandate_of(settings: Settings, approved: Plan | None = None) -> Mandate:
    """Return what a pass may do, as the settings have it."""
    from reconciler.engine.reconcile import Mandate

    return Mandate(
        tags_of(settings),
        approved,
        batch_from=settings.batch_launches_from,
        replaces_rebalanced=settings.rebalance_recommendation == "Replace",
    )


def tags_of(settings: Settings) -> Mapping[str, str]:
    """Return the tags of every instance of the fleet."""
    from reconciler.model.ownership import Owner

    return Owner(settings.fleet, settings.cluster_name).tags


def summary(result: Pass, assembly: Assembly, output: str) -> str:
    """Return what the fleet now is."""
    import msgspec

    plan, claims = result.plan, assembly.world.store.node_claims()
    unplaced = [u.pod for u in plan.unschedulable]
    facts = {
        "fleet": assembly.settings.fleet,
        "converged": result.is_quiet,
        "nodeClaims": [c.name for c in claims],
        "cost": plan.cost.after,
        "unschedulable": unplaced,
        "deferred": len(plan.deferred),
    }
    if output == "json":
        return msgspec.json.encode(facts, order="sorted").decode() + "\n"
    state = "converged" if result.is_quiet else "stopped; run it again to go on"
    lines = [f"{assembly.settings.fleet}: {state}"]
    nodes = f"{len(claims)} node{'' if len(claims) == 1 else 's'}"
    lines.append(f"  {nodes}, ${plan.cost.after:.4f} an hour")
    if unplaced:
        shown = ", ".join(unplaced[:5]) + (" …" if len(unplaced) > 5 else "")
        lines.append(f"  {len(unplaced)} pods have no place: {shown}")
        lines.append("  `reconciler explain pod NAME` says why")
    if plan.deferred:
        lines.append(f"  {len(plan.deferred)} wait for a budget or a schedule")
    return "\n".join(lines) + "\n"
