"""``reconciler apply``: apply a plan until the fleet matches git.

Without a saved plan it shows the plan and asks; ``--auto-approve`` does not ask. A saved plan is
an approval, not an order: the engine plans again from the inputs that the command line and the
environment name, and applies its own plan if that equals the approved one. Otherwise,
and if it was applied before, the plan is refused. If the process is killed at any moment, the next
run continues from the journal.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TextIO

from reconciler.adapters.database.location import may_exist
from reconciler.assembly.inputs import watching
from reconciler.assembly.mandate import Approval, mandate_of
from reconciler.cli.parser import inputs
from reconciler.exitcode import DONE, FAILED
from reconciler.model.errors import InvalidFleetError, StalePlanError, UnreadableError, UsageError
from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_cost
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.times import format_time
from reconciler.notifications.log import TerminalNotifier
from reconciler.notifications.stream import has_colour, render_for_terminal
from reconciler.options import add_options, option, part, switch

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from reconciler.assembly.assembly import Assembly
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.engine.reconcile import Pass
    from reconciler.inspection.replies import ApplyReply
    from reconciler.plan.run import ActionState
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.progress import Notifier


def _add_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[PLAN] [PATH]",
        help="file of a saved plan (- for stdin); fleet folder (default: this one, or the nearest "
        "above with a reconciler.yaml)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRequest:
    """The fleet to change, what was approved before, and how long it may take."""

    fleet: FleetRequest = part(_add_words, partial(inputs.add_flags, names=inputs.ACTING))
    plan_file: str | None = option("--plan", "FILE", "apply a plan saved with `plan --out FILE`")
    is_approved: bool = switch(
        "--auto-approve", "apply without asking (a saved plan is never asked for)"
    )
    is_simulated: bool = switch(
        "--simulated", "act on a simulated EC2 and cluster; nothing is launched in AWS"
    )
    timeout: timedelta = option(
        "--timeout",
        "DURATION",
        "give up after this long (default: 30m)",
        default=timedelta(minutes=30),
    )
    interval: timedelta = option(
        "--interval",
        "DURATION",
        "time between two reconcile passes while work is in progress (default: 1s)",
        default=timedelta(seconds=1),
    )
    is_quiet: bool = switch(
        "--quiet", "print only the summary, and the plan if it must be approved", short="-q"
    )
    output: str = part(inputs.add_output)


add_arguments = partial(add_options, ApplyRequest)


def request_of(args: argparse.Namespace) -> ApplyRequest:
    """Return the request in the arguments. A file is a plan, a folder is a fleet.

    Raises:
        UsageError: the arguments name two folders.
    """
    from reconciler.assembly.inputs.planfile import is_plan_file

    files = [] if args.plan_file else [word for word in args.words if is_plan_file(word)][:1]
    folders = [word for word in args.words if word not in files]
    if len(folders) > 1:
        raise UsageError(
            f"{quote_value(folders[0])} and {quote_value(folders[1])} both look like the fleet "
            "folder",
            remedy="pass one saved plan and one folder, as in `reconciler apply plan.json fleet`",
        )
    return inputs.request_from(
        ApplyRequest,
        args,
        fleet=inputs.fleet_request(args, folders[0] if folders else None),
        plan_file=args.plan_file or (files[0] if files else None),
    )


def run(request: ApplyRequest) -> int:
    """Apply until converged; exit 4 if a saved plan is stale."""
    if not request.is_simulated:
        return _apply(request)
    from reconciler.assembly.embedded import simulated_account

    if request.plan_file is not None:
        raise UsageError(
            "a saved plan is for the fleet that was observed, and not for a simulated one",
            where="--simulated",
            remedy="pass only the fleet folder",
        )
    with simulated_account(request.fleet) as fleet:
        code = _apply(replace(request, fleet=fleet))
    if request.output == "text" and request.fleet.repo is None:
        folder = request.fleet.path or "."
        sys.stdout.write(
            "\nSimulated: nothing was launched in AWS.\n"
            f"Next: reconciler status {folder} --state {fleet.state}\n"
        )
    return code


def _apply(request: ApplyRequest) -> int:
    from reconciler.assembly.assembly import assemble_world, expect_free
    from reconciler.engine.loop import PassIntervals, converge

    saved = read_saved_plan(request)
    if saved is None:
        _expect_approval(request)
    is_plain = request.output == "text" and not request.is_quiet
    out = sys.stdout if is_plain else sys.stderr
    approval: Approval | None = None
    if not _has_state(request.fleet):
        # Errors must occur before a state is created, so that no empty state is left behind.
        expect_free(request.fleet)
        approval = _ask_approval(request, saved, out, is_first=True)
        if approval is None:
            return FAILED
    notifier: Notifier = TerminalNotifier(out, colour=has_colour(out))
    if request.is_quiet:
        notifier = watching.NullNotifier()
    with assemble_world(request.fleet, notifier) as assembly, watching.stop_on_signal() as stop:
        if saved is not None:
            refuse_reapplied_plan(assembly, saved)
        approval = approval or _ask_approval(request, saved, out, is_first=False)
        if approval is None:
            return FAILED
        started_at = assembly.world.clock.now()
        try:
            result = converge(
                assembly.world,
                assembly.source,
                mandate_of(assembly.settings, approval),
                deadline=request.timeout,
                intervals=PassIntervals(busy=request.interval.total_seconds()),
                stop=stop,
            )
        except StalePlanError as error:
            if saved is not None:
                raise
            raise StalePlanError(error.moved, plan="the plan that was shown") from error
        sys.stdout.write(render_summary(result, assembly, started_at, request.output))
    return DONE


def _expect_approval(request: ApplyRequest) -> None:
    """Refuse to apply a plan that cannot be approved, before anything is read.

    Raises:
        UsageError: stdin is not a terminal, and the flag is missing.
    """
    if request.is_approved or sys.stdin.isatty():
        return
    path = request.fleet.path
    if path and not os.path.exists(path):
        raise UsageError(
            f"{quote_value(path)} does not exist",
            where="apply",
            remedy="pass a plan saved with `reconciler plan --out FILE`, or the fleet folder",
        )
    raise UsageError(
        "cannot ask for approval, because stdin is not a terminal",
        where="apply",
        remedy="pass --auto-approve, or apply a plan saved with `reconciler plan --out FILE`",
    )


def _ask_approval(
    request: ApplyRequest, saved: Plan | None, out: TextIO, *, is_first: bool
) -> Approval | None:
    """Return the approval, after showing the plan and asking; None if it was declined.

    If there is no state yet, ``is_first``, the fleet is observed in any case.

    Raises:
        StalePlanError: a saved plan does not fit the fleet.
    """
    must_ask = saved is None and not request.is_approved
    must_show = must_ask or (saved is None and not request.is_quiet)
    if not (is_first or must_show):
        return Approval(saved, continues=saved is None)
    from reconciler.assembly.assembly import live_inputs
    from reconciler.plan.approval import plan_differences
    from reconciler.plan.planning import plan_of

    inputs = live_inputs(request.fleet)
    plan = plan_of(inputs)
    if saved is not None:
        moved = plan_differences(saved, plan, inputs.observed)
        if moved:
            raise StalePlanError(moved)
    if must_show:
        out.write(render_for_terminal(plan, out))
    if not must_ask:
        return Approval(saved, continues=saved is None)
    if plan.is_empty:
        return Approval(plan, continues=False)
    return Approval(plan, continues=True) if _confirm(out) else None


def _confirm(out: TextIO) -> bool:
    """Ask whether to apply the plan; only ``yes`` confirms."""
    out.write("\nApply this plan? Only `yes` is accepted: ")
    out.flush()
    if sys.stdin.readline().strip() == "yes":
        return True
    out.write("Cancelled. Nothing was changed.\n")
    return False


def _has_state(fleet: FleetRequest) -> bool:
    from reconciler.assembly.inputs import sources
    from reconciler.assembly.inputs.records import state_location

    desired = sources.desired_fleet(fleet)
    return may_exist(state_location(fleet.path, sources.settings_of(fleet, desired)))


def read_saved_plan(request: ApplyRequest) -> Plan | None:
    """Return the saved plan that the request names, if any.

    Raises:
        UnreadableError: the file is not a plan as it was saved, or is of another fleet.
    """
    from reconciler.assembly.inputs import planfile

    if request.plan_file is None:
        return None
    plan = planfile.load(request.plan_file)
    refuse_other_fleet(request.fleet, plan, request.plan_file)
    return plan


def refuse_other_fleet(request: FleetRequest, approved: Plan, file: str) -> None:
    """Refuse a plan of a fleet other than the requested one, before anything is opened.

    Raises:
        UnreadableError: it is of another fleet, or the request names no fleet.
    """
    from reconciler.assembly.inputs import sources

    where = request.repo or request.path or "."
    remedy = f"pass the fleet folder: `reconciler apply {file} FOLDER`"
    try:
        fleet = sources.desired_fleet(request)
    except InvalidFleetError as error:
        if any(d.code == "empty-fleet" for d in error.diagnostics):
            raise UnreadableError("no NodePool found", where=where, remedy=remedy) from error
        raise
    except UnreadableError as error:
        if where == ".":
            raise UnreadableError(error.message, where=where, remedy=remedy) from error
        raise
    name = sources.settings_of(request, fleet).settings.fleet
    if name != approved.fleet:
        saved = quote_value(approved.fleet, 80)
        what = f"the saved plan belongs to fleet {saved}, but this is fleet {quote_value(name)}"
        raise UnreadableError(what, where=where, remedy=remedy)


def refuse_reapplied_plan(assembly: Assembly, approved: Plan) -> None:
    """Refuse a plan that was applied before or may have been, and one of the future.

    A plan that was started but not finished, because the process was killed, is continued.

    Raises:
        StalePlanError: the plan can no longer be applied.
    """
    from reconciler.assembly.inputs.records import run_of_recorded
    from reconciler.plan.approval import AHEAD_MAX

    now = assembly.world.clock.now()
    if approved.at - now > AHEAD_MAX:
        raise StalePlanError([f"it states {format_time(approved.at)}, which is in the future"])
    known = assembly.state.store.plan(approved.digest)
    pruned = assembly.state.history.pruned_before()
    if known is not None and known.carried_out_at is not None:
        begun = known.carried_out_at
        is_remembered = pruned is None or begun >= pruned
        if not is_remembered or run_of_recorded(assembly.state, known).is_finished:
            raise StalePlanError([f"it was already applied at {format_time(begun)}"])
    if known is None and pruned is not None and approved.at < pruned:
        raise StalePlanError(
            [f"it is older than the recorded history, which starts at {format_time(pruned)}"]
        )


def render_summary(result: Pass, assembly: Assembly, started_at: datetime, output: str) -> str:
    """Return the fleet as it is now, and the states of the actions started since ``started_at``."""
    from reconciler.inspection.replies import ApplyReply
    from reconciler.render.reply import render_reply, sections_of

    plan = result.plan
    states = _action_states(assembly, started_at)
    reply = ApplyReply(
        fleet=assembly.settings.fleet,
        converged=result.is_quiet,
        node_claims=tuple(claim.name for claim in assembly.world.store.node_claims()),
        cost=plan.cost.after,
        unschedulable=tuple(pod.pod for pod in plan.unschedulable),
        deferred=len(plan.deferred),
        unapproved=result.unapproved,
        actions={state.value: number for state, number in states.items()},
    )
    title, text = f"Fleet {reply.fleet}", _summary_text(reply, plan)
    return render_reply(reply, sections_of(reply), output, title=title, text=text, compact=True)


def _summary_text(reply: ApplyReply, plan: Plan) -> str:
    state = "converged" if reply.converged else "stopped; run `reconciler apply` again to continue"
    lines = [f"{reply.fleet}: {state}"]
    lines.append(f"  {format_count(len(reply.node_claims), 'node')}, {format_cost(reply.cost)}")
    if reply.unschedulable:
        unplaced = reply.unschedulable
        shown = ", ".join(unplaced[:5]) + (" …" if len(unplaced) > 5 else "")
        lines.append(f"  {len(unplaced)} pods cannot be scheduled: {shown}")
        lines.append("  `reconciler explain pod NAME` shows why")
    if reply.unapproved:
        more = (
            "1 more action is" if reply.unapproved == 1 else f"{reply.unapproved} more actions are"
        )
        lines.append(f"  {more} needed now, but not part of the saved plan")
        lines.append("  `reconciler plan` shows them")
    lines += _waiting_lines(plan)
    return "\n".join(lines) + "\n"


def _waiting_lines(plan: Plan) -> Iterator[str]:
    """Yield how many nodes are disrupted later, for each rule, and how many cannot be replaced."""
    from reconciler.model.karpenter.budget import DisruptionReason
    from reconciler.plan.render.sections.disruption import wait_in_words

    for rule, number in Counter(map(wait_in_words, plan.deferred)).items():
        who = "it" if number == 1 else "each"
        yield f"  {format_count(number, 'node')} deferred: {who} waits for {rule}"
    optional = (DisruptionReason.EMPTY, DisruptionReason.UNDERUTILIZED)
    kept = {blocked.node for blocked in plan.blocked if blocked.reason not in optional}
    if kept:
        names = format_count(len(kept), "node")
        yield f"  {names} cannot be replaced now; `reconciler explain node NAME` shows why"


def _action_states(assembly: Assembly, started_at: datetime) -> Mapping[ActionState, int]:
    """Return the number of actions in each state, of the plan that was started last."""
    from reconciler.assembly.inputs.records import newest_run

    found = newest_run(assembly.state)
    if found is None:
        return {}
    plan, run = found
    is_ours = plan.carried_out_at is not None and plan.carried_out_at >= started_at
    return run.counts() if is_ours else {}
