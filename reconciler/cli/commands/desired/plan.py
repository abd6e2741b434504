"""``reconciler plan``: show what would change and why, and change nothing."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from reconciler import exitcode
from reconciler.assembly.inputs.folder import is_in_fleet
from reconciler.assembly.inputs.timings import Timings
from reconciler.cli.parser import inputs
from reconciler.model.errors import CloudError, UsageError
from reconciler.model.text.counting import format_count
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.visible import Painted, one_line
from reconciler.notifications.stream import render_for_terminal
from reconciler.options import add_options, option, part, repeated, switch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.placement.pods.whatif import Scale, WhatIf
    from reconciler.plan.make.inputs import Inputs
    from reconciler.plan.value.plan import JudgedPolicy, Plan


_PLAIN: Final = {ord("→"): "->", ord("×"): "x", ord("±"): "~", ord("…"): "...", ord("–"): "-"}
_REPLICAS_MAX: Final = 100_000
"""As many pods as a placement is meant for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The fleet to plan, the output format, and the conditions of the exit code.

    ``what_if`` is what is supposed of the cluster.
    """

    fleet: FleetRequest = inputs.of_fleet(inputs.PLANNING)
    output: str = part(partial(inputs.add_output, more=("mermaid", "requests", "github", "sarif")))
    file: str | None = option("--out", "FILE", "save the plan for `reconciler apply FILE`")
    detailed_exit_code: bool = switch("--detailed-exitcode", "exit with 2 if there are changes")
    policies: tuple[str, ...] = repeated(
        "--policy",
        "FILE",
        "evaluate the policies in this file, outside the repository (repeatable)",
    )
    fail_on: frozenset[str] = repeated(
        "--fail-on",
        "WHAT",
        "exit with 3 for: unschedulable (pods, with --base because of the change), warnings (of "
        "policies), the name of a policy, or none (repeatable)",
        default=frozenset(),
    )
    trace: str | None = option(
        "--trace",
        "FILE",
        "with --base: replay this workload with and without the change (see `simulate`)",
    )
    timings: bool = switch("--timings", "print the seconds spent in each phase to stderr, as JSON")
    what_if: WhatIf | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_options(PlanRequest, parser, then={"trace": _add_costs, "timings": _add_what_if})


def _add_costs(parser: argparse.ArgumentParser) -> None:
    inputs.add_durations(parser)
    inputs.add_grouping(parser, "with --base: show who pays for the change, by")


def _add_what_if(parser: argparse.ArgumentParser) -> None:
    """Declare what may be supposed of the cluster."""
    parser.add_argument(
        "--from-cluster",
        action="store_true",
        help="plan the NodePools of the cluster itself, without files",
    )
    inputs.add_context(parser, "; outside a fleet folder, plan the NodePools of the cluster itself")
    add = parser.add_argument_group("what if").add_argument
    add(
        "--with",
        action="append",
        default=[],
        dest="overrides",
        metavar="FILE",
        help="plan with Karpenter's objects in this file instead of those of the same name "
        "(repeatable)",
    )
    add(
        "--scale",
        action="append",
        default=[],
        metavar="[NAMESPACE/]KIND/NAME=N",
        help="plan with this number of replicas, such as deploy/api=40 (repeatable)",
    )
    add(
        "--drain",
        action="append",
        default=[],
        metavar="NODE",
        help="plan without this Node or NodeClaim, whose pods move (repeatable)",
    )
    add(
        "--zone-down",
        action="append",
        default=[],
        metavar="ZONE",
        help="plan without the nodes and the capacity of this zone (repeatable)",
    )


def _what_if_of(
    scales: Sequence[str],
    drains: Sequence[str],
    zones: Sequence[str],
    others: Mapping[str, str | None],
) -> WhatIf | None:
    """Return what the arguments suppose, None if they suppose nothing.

    ``others`` are the flags that then cannot be used, with their values.

    Raises:
        UsageError: a scale has another form, or the plan is to be saved for `apply`.
    """
    from reconciler.placement.pods.whatif import WhatIf

    found = WhatIf(tuple(map(_scale_of, scales)), tuple(drains), tuple(zones))
    if not found:
        return None
    for flag, value in others.items():
        if value is not None:
            raise _not_applied_error(flag)
    return found


def _not_applied_error(flag: str) -> UsageError:
    return UsageError(
        "cannot be used with --with, --scale, --drain or --zone-down",
        where=flag,
        remedy="what is only supposed is neither applied nor compared: leave one out",
    )


def _scale_of(text: str) -> Scale:
    from reconciler.placement.pods.whatif import KINDS, Scale

    name, _, number = text.rpartition("=")
    *namespace, kind, workload = ["", *name.split("/")][-3:] if "/" in name else ("", "", "")
    if kind.lower() not in KINDS or not workload or not number.isdecimal() or name.count("/") > 2:
        raise UsageError(
            f"{quote_value(text)} is not a scale",
            where="--scale",
            remedy="write [NAMESPACE/]KIND/NAME=N, such as deploy/api=40; kinds: "
            f"{', '.join(sorted(KINDS))}",
        )
    if int(number) > _REPLICAS_MAX:
        remedy = f"use at most {_REPLICAS_MAX:,}"
        raise UsageError(f"{number} replicas are too many", where="--scale", remedy=remedy)
    return Scale(KINDS[kind.lower()], workload, int(number), "".join(namespace) or None)


def request_of(args: argparse.Namespace) -> PlanRequest:
    """Return the request in the arguments.

    Raises:
        UsageError: ``--by`` is set, and there is no change.
    """
    if args.cost_by is not None and args.base is None:
        raise UsageError(
            "--by shows who pays for a change",
            where="--by",
            remedy="add --base REF, or use `reconciler top --by` for the running fleet",
        )
    what_if = _what_if_of(
        args.scale,
        args.drain,
        args.zone_down,
        {"--out": args.file, "--base": args.base, "--trace": args.trace},
    )
    fleet = inputs.fleet_request(args, args.path)
    if args.from_cluster or args.kubeconfig_context:
        others = {
            "PATH": args.path,
            "--repo": args.repo,
            "--path": args.below,
            "-f": args.manifests,
            "--base": args.base,
            "--snapshot": args.snapshot,
        }
        named = [flag for flag, value in others.items() if value]
        is_of_cluster = _is_of_cluster(from_cluster=args.from_cluster, named=named)
        fleet = replace(fleet, is_of_cluster=is_of_cluster)
    if args.overrides and args.file is not None:
        raise _not_applied_error("--out")
    return inputs.request_from(PlanRequest, args, fleet=fleet, what_if=what_if)


def _is_of_cluster(*, from_cluster: bool, named: Sequence[str]) -> bool:
    """Return whether to plan the NodePools of the cluster itself.

    ``named`` are the arguments that name other ones.

    Raises:
        UsageError: ``--from-cluster`` is combined with one of them.
    """
    if not from_cluster:
        return not named and not is_in_fleet()
    if named:
        raise UsageError(
            f"cannot be combined with {named[0]}",
            where="--from-cluster",
            remedy="remove one of them; with files, --context names the cluster",
        )
    return True


def run(request: PlanRequest) -> int:
    """Print the plan; 0, or with ``--detailed-exitcode`` 2 if there are changes.

    3 if a policy forbids it, or if it has what ``--fail-on`` names, also without changes.
    A plan that a policy forbids is not saved.
    """
    # Nearly all values live until the plan is printed: frequent garbage collection would take
    # a tenth of the time and find nothing.
    gc.set_threshold(200_000, 20, 20)
    from reconciler.assembly.inputs import policies
    from reconciler.backtest.change import expect_base
    from reconciler.cli.output.progressline import show_progress
    from reconciler.cli.pullrequest.fleets import at_former_folder
    from reconciler.cli.pullrequest.judged import judged_plan

    expect_base(request.trace, request.fleet.base)
    with show_progress("Planning") as line:
        timings = Timings(line.enter)
        with timings("read"):
            operator = policies.operator_policies(request.fleet, request.policies)
            request = replace(request, fleet=at_former_folder(request.fleet))
        plan, _, inputs = judged_plan(
            request.fleet,
            operator,
            timings,
            trace=request.trace,
            fail_on=request.fail_on,
            what_if=request.what_if,
        )
        with timings("render"):
            refused = policies.blocking_policies(plan, request.fail_on)
            text = render(plan, request, inputs)
            if request.file and not refused:
                from reconciler.assembly.inputs.planfile import save

                save(plan, request.file)
    write_output(text)
    if request.timings:
        print(timings.to_json(), file=sys.stderr)
    if _print_refusal(plan, refused, request):
        return exitcode.REFUSED
    changed = request.detailed_exit_code and not plan.is_empty
    return exitcode.CHANGES if changed else exitcode.DONE


def _print_refusal(plan: Plan, refused: Sequence[JudgedPolicy], request: PlanRequest) -> bool:
    """Print on stderr why the plan is refused, and return whether it is."""
    from reconciler.assembly.inputs.policies import UNSCHEDULABLE, place_of
    from reconciler.plan.render.verdicts import full_verdict_of

    for policy in refused:
        what = (
            f"{place_of(policy)}: policy {policy.name} forbids this plan: {full_verdict_of(policy)}"
        )
        print(f"Error: {one_line(what)}", file=sys.stderr)
    if refused and request.file:
        print(f"Error: {one_line(request.file)}: the plan was not saved", file=sys.stderr)
    is_unplaced = UNSCHEDULABLE in request.fail_on and _has_unschedulable(plan)
    return bool(refused) or is_unplaced


def _has_unschedulable(plan: Plan) -> bool:
    """Return whether pods cannot be scheduled, and report it on stderr."""
    from reconciler.plan.render.unplaced import pods_at_fault
    from reconciler.plan.render.wording import format_pods

    pods = pods_at_fault(plan)
    if pods:
        what = f"{format_count(len(pods), 'pod')} cannot be scheduled: {format_pods(pods)}"
        print(
            f"Error: --fail-on unschedulable: {what}; the plan lists the reasons", file=sys.stderr
        )
    return bool(pods)


def render(plan: Plan, request: PlanRequest, inputs: Inputs) -> str:
    """Return the plan in the output format of the request."""
    match request.output:
        case "json":
            from reconciler.plan.approval import encode_saved_plan

            return encode_saved_plan(plan).decode() + "\n"
        case "yaml":
            from reconciler.plan.approval import encode_saved_plan
            from reconciler.render.listing import json_to_yaml

            return json_to_yaml(encode_saved_plan(plan).decode())
        case "markdown":
            from reconciler.plan.render.markdown import render_markdown

            return render_markdown(plan)
        case "html":
            from reconciler.plan.render.html import render_html

            return render_html(plan)
        case "mermaid":
            from reconciler.plan.render.markdown import render_mermaid

            return render_mermaid(plan)
        case "github" | "sarif":
            return _render_annotations(plan, request)
        case "requests":
            return render_requests(plan, inputs)
    return render_for_terminal(plan, sys.stdout, next_command(plan, request, inputs.observation))


def _render_annotations(plan: Plan, request: PlanRequest) -> str:
    """Return the findings and the failed policies for GitHub or code-scanning services.

    Their paths start at the top of the repository.
    """
    from reconciler.assembly.inputs.policies import diagnostics_of

    folder = "" if plan.revision.path in (None, ".") else plan.revision.path
    if request.output == "sarif":
        from reconciler.cli.output.sarif import render_sarif

        return render_sarif(diagnostics_of(plan), folder)
    from reconciler.cli.output.findings import render_github

    return render_github(diagnostics_of(plan), folder)


def next_command(plan: Plan, request: PlanRequest, observation: object) -> str:
    """Return the next command in the same folder, empty if there is nothing to do.

    ``apply`` observes the running fleet. So it is the next step of a saved plan and of a plan of
    the running fleet. A plan of the workloads in a folder, without a cluster, can be simulated.
    If workloads change that a plan beside a cluster does not include, a plan without it does.
    """
    words = list(_input_arguments(request.fleet))
    codes = {finding.code for finding in plan.diagnostics}
    if request.fleet.base and "change-of-requests" in codes:
        no_cluster = () if "cluster=none" in request.fleet.settings else ("--set", "cluster=none")
        return _command_line(
            "reconciler", "plan", *words, *no_cluster, "--base", request.fleet.base
        )
    if plan.is_empty or request.what_if or request.fleet.overrides or request.fleet.is_of_cluster:
        return ""
    if plan.actor:  # there is nothing to apply: Karpenter acts
        captured = ("--snapshot", request.fleet.snapshot) if request.fleet.snapshot else ()
        return _command_line("reconciler", "simulate", *words, *captured)
    if request.file:
        return _command_line("reconciler", "apply", request.file, *words)
    if observation == "snapshot":
        return "save this plan with `--out plan.json`, then run `reconciler apply plan.json`"
    if observation == "workloads":
        return _command_line("reconciler", "simulate", *words, *_compared_base(request, codes))
    return _command_line("reconciler", "apply", *words)


def _compared_base(request: PlanRequest, codes: set[str]) -> Sequence[str]:
    """Return the arguments for a base that the plan could be compared with."""
    ref = request.fleet.base
    if ref is None or codes & {"region-changed", "fleet-new", "base-invalid"}:
        return ()
    return "--base", ref


def _input_arguments(fleet: FleetRequest) -> Iterator[str]:
    """Yield the arguments of this command that `apply` needs to plan again from the same inputs."""
    from reconciler.model.text.urls import without_secrets

    if fleet.path:
        yield fleet.path
    named = {
        "--repo": without_secrets(fleet.repo) if fleet.repo else None,
        "--ref": fleet.ref,
        "--path": fleet.below,
        "--catalog": fleet.catalog,
        "--state": without_secrets(fleet.state) if fleet.state else None,
        "--config": fleet.config,
    }
    for flag, value in named.items():
        if value:
            yield from (flag, value)
    for setting in fleet.settings:
        yield from ("--set", without_secrets(setting))
    for name in sorted(fleet.allow_removal):
        yield from ("--allow-removal", name)


def _command_line(*words: str) -> str:
    from shlex import join

    return join(words)


def write_output(text: str) -> None:
    """Print on stdout, in ASCII if the terminal cannot show other characters."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        is_painted = isinstance(text, Painted)
        text = text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
        text = Painted(text) if is_painted else text
    sys.stdout.write(text)


def render_requests(plan: Plan, inputs: Inputs) -> str:
    """Return a JSON array of requests in boto3's form, each template before its first fleet.

    A launch that Karpenter would reject before its first request is reported on stderr.

    Raises:
        CloudError: the facts of the cluster are unknown, so launches cannot be requested.
    """
    from reconciler.adapters.aws.launch.requests import RequestRow, request_rows, unique_requests
    from reconciler.engine.preview import launches_of

    rows: list[RequestRow] = []
    failures: list[CloudError] = []
    for launch, blueprint in launches_of(plan, inputs):
        try:
            rows += request_rows(launch, blueprint.instance_type, inputs.settings)
        except CloudError as error:
            failures.append(error)
    if failures and not inputs.settings.cluster_endpoint:
        raise _incomplete_launches_error(failures)
    for failure in failures:
        print(f"Error: {failure}", file=sys.stderr)
    return json.dumps(unique_requests(rows), indent=2, sort_keys=True) + "\n"


def _incomplete_launches_error(failures: Sequence[CloudError]) -> CloudError:
    """Return one error for all launches that cannot be requested, naming what is missing."""
    reasons = dict.fromkeys(error.message for error in failures)
    remedies = dict.fromkeys(error.remedy for error in failures if error.remedy)
    return CloudError(
        f"{format_count(len(failures), 'launch', 'launches')} cannot be requested: "
        f"{'; '.join(reasons)}",
        where="-o requests",
        remedy="; ".join(remedies),
    )
