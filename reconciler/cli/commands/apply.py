"""``reconciler apply``: apply a plan until the fleet matches git.

A saved plan is what a reviewer approved, and not an order: the engine plans again from the inputs
that the command line and the environment name, and carries out its own plan if that equals the
approved one. Otherwise, and when it was carried out before, the plan is refused. Killed at any
moment, the next run goes on from the journal.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from datetime import datetime

    from reconciler.cli.wiring.assembly import Assembly
    from reconciler.engine.reconcile import Mandate, Pass
    from reconciler.model.settings import Settings
    from reconciler.plan.run import ActionState
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.progress import Notifier


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is applied, and how long it may take."""
    from reconciler.cli.shared import request

    request.add_arguments(parser)
    parser.add_argument(
        "folder", nargs="?", metavar="PATH", default=None,
        help="fleet folder, after the file of a saved plan",
    )  # fmt: skip
    parser.add_argument("--plan", metavar="FILE", help="apply a plan saved with `plan --out FILE`")
    parser.add_argument(
        "--timeout",
        default="30m",
        metavar="DURATION",
        help=("give up after this long (default: 30m)"),
    )
    parser.add_argument(
        "--interval",
        default="1s",
        metavar="DURATION",
        help=("time between two reconcile passes while work is in progress"),
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the summary")
    parser.add_argument(
        "-o",
        "--output",
        choices=["text", "json"],
        default="text",
        help=("output format of the summary"),
    )


def run(args: argparse.Namespace) -> int:
    """Apply until converged; exit 4 where a saved plan is stale."""
    from reconciler.cli.output.progress import TerminalNotifier
    from reconciler.cli.shared import stopping
    from reconciler.cli.shared.exitcode import DONE
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
        begun = assembly.world.clock.now()
        result = converge(
            assembly.world,
            assembly.source,
            mandate_of(assembly.settings, approved),
            deadline=parse_duration(args.timeout),
            pulse=Pulse(busy=parse_duration(args.interval).total_seconds()),
            stop=stop,
        )
        sys.stdout.write(summary(result, assembly, begun, args.output))
    return DONE


def take_saved_plan(args: argparse.Namespace) -> Plan | None:
    """Return the saved plan that the arguments name, if any, and leave the fleet's folder in them.

    A file is a plan, a folder is a fleet. The plan does not say where its fleet is.

    Raises:
        UsageError: the arguments name two folders.
        UnreadableError: the file is not a plan as it was saved, or is of another fleet.
    """
    from reconciler.cli.shared import planfile
    from reconciler.model.errors import UsageError

    words = [word for word in (args.path, args.folder) if word is not None]
    files = [] if args.plan else [word for word in words if planfile.is_plan_file(word)][:1]
    folders = [word for word in words if word not in files]
    if len(folders) > 1:
        raise UsageError(
            f"{folders[0]!r} and {folders[1]!r} both look like the fleet folder",
            remedy="pass one saved plan and one folder, as in `reconciler apply plan.json fleet`",
        )
    args.path = folders[0] if folders else None
    file = args.plan or (files[0] if files else None)
    if file is None:
        return None
    plan = planfile.load(file)
    refuse_other_fleet(args, plan, file)
    return plan


def refuse_other_fleet(args: argparse.Namespace, approved: Plan, file: str) -> None:
    """Refuse a plan of another fleet than the arguments name, before anything is opened.

    Raises:
        UnreadableError: it is of another fleet, or the arguments name no fleet.
    """
    from reconciler.cli.shared import request
    from reconciler.model.errors import InvalidFleetError, UnreadableError

    where = args.repo or args.path or "."
    remedy = f"pass the fleet folder: `reconciler apply {file} FOLDER`"
    try:
        fleet, _ = request.read_desired(request.read_source(args), any_class=False)
    except InvalidFleetError as error:
        if any(d.code == "empty-fleet" for d in error.diagnostics):
            raise UnreadableError("no NodePool found", where=where, remedy=remedy) from error
        raise
    except UnreadableError as error:
        if where == ".":
            raise UnreadableError(error.message, where=where, remedy=remedy) from error
        raise
    name = request.settings_of(args, fleet).settings.fleet
    if name != approved.fleet:
        what = (
            f"the saved plan belongs to fleet {approved.fleet[:80]!r}, but this is fleet {name!r}"
        )
        raise UnreadableError(what, where=where, remedy=remedy)


def refuse_repetition(assembly: Assembly, approved: Plan) -> None:
    """Refuse a plan that was carried out before, or of which nobody knows any more.

    A plan that was begun and not brought to its end, by a process that was killed, goes on.

    Raises:
        StalePlanError: the plan cannot be carried out any more.
    """
    from reconciler.cli.shared.runs import run_of_recorded
    from reconciler.model.errors import StalePlanError

    known = assembly.state.store.plan(approved.digest)
    pruned = assembly.state.history.pruned_before()
    if known is not None and known.carried_out_at is not None:
        begun = known.carried_out_at
        is_remembered = pruned is None or begun >= pruned
        if not is_remembered or run_of_recorded(assembly.state, known).is_finished:
            raise StalePlanError([f"it was already applied at {begun:%Y-%m-%d %H:%M} UTC"])
    if known is None and pruned is not None and approved.at < pruned:
        raise StalePlanError(
            [f"it is older than the recorded history, which starts at {pruned:%Y-%m-%d %H:%M} UTC"]
        )


def mandate_of(settings: Settings, approved: Plan | None = None) -> Mandate:
    """Return what a pass may do, as the settings have it."""
    from reconciler.engine.reconcile import Mandate
    from reconciler.model.settings import RebalanceRecommendation

    return Mandate(
        tags_of(settings),
        approved,
        batch_from=settings.batch_launches_from,
        replaces_rebalanced=settings.rebalance_recommendation == RebalanceRecommendation.REPLACE,
    )


def tags_of(settings: Settings) -> Mapping[str, str]:
    """Return the tags of every instance of the fleet."""
    from reconciler.model.ownership import Owner

    return Owner(settings.fleet, settings.cluster_name).tags


def summary(result: Pass, assembly: Assembly, begun: datetime, output: str) -> str:
    """Return what the fleet now is, and what became of the last plan since ``begun``."""
    import msgspec

    plan, claims = result.plan, assembly.world.store.node_claims()
    unplaced = [u.pod for u in plan.unschedulable]
    states = _states(assembly, begun)
    facts = {
        "fleet": assembly.settings.fleet,
        "converged": result.is_quiet,
        "nodeClaims": [c.name for c in claims],
        "cost": plan.cost.after,
        "unschedulable": unplaced,
        "deferred": len(plan.deferred),
        "unapproved": result.unapproved,
        "actions": {state.value: number for state, number in states.items()},
    }
    if output == "json":
        return msgspec.json.encode(facts, order="sorted").decode() + "\n"
    state = "converged" if result.is_quiet else "stopped; run `reconciler apply` again to continue"
    lines = [f"{assembly.settings.fleet}: {state}"]
    nodes = f"{len(claims)} node{'' if len(claims) == 1 else 's'}"
    lines.append(f"  {nodes}, ${plan.cost.after:.4f}/hour")
    if unplaced:
        shown = ", ".join(unplaced[:5]) + (" …" if len(unplaced) > 5 else "")
        lines.append(f"  {len(unplaced)} pods cannot be scheduled: {shown}")
        lines.append("  `reconciler explain pod NAME` shows why")
    if result.unapproved:
        more = (
            "1 more action is"
            if result.unapproved == 1
            else f"{result.unapproved} more actions are"
        )
        lines.append(f"  {more} needed now, but not part of the saved plan")
        lines.append("  `reconciler plan` shows them")
    if plan.deferred:
        lines.append(f"  {len(plan.deferred)} deferred by a disruption budget or a schedule")
    return "\n".join(lines) + "\n"


def _states(assembly: Assembly, begun: datetime) -> Mapping[ActionState, int]:
    """Return the number of actions in each state, of the plan that was started last."""
    from reconciler.cli.shared.runs import newest_run

    found = newest_run(assembly.state)
    if found is None:
        return {}
    plan, run = found
    is_ours = plan.carried_out_at is not None and plan.carried_out_at >= begun
    return run.counts() if is_ours else {}
