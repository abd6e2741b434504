"""``reconciler check``: check everything that a plan or a daemon needs.

Nothing is written. Calls that change something are tried with ``DryRun`` if AWS supports it. A
permission that cannot be tried is reported as unknown, and does not fail the check.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from reconciler.adapters.aws.permissions import Names, Need
from reconciler.adapters.aws.permissions import policy as made
from reconciler.assembly.account import connections
from reconciler.assembly.assembly import CheckInputs, check_inputs, live_inputs
from reconciler.assembly.cluster import cluster_checks, karpenter_check
from reconciler.assembly.inputs import sources
from reconciler.assembly.inputs.request import Environment, FleetRequest
from reconciler.assembly.inputs.timings import Timings
from reconciler.cli.output.progressline import show_progress
from reconciler.cli.parser import inputs
from reconciler.exitcode import DONE, FAILED
from reconciler.inspection.replies import ChecksReply
from reconciler.model.diagnostics import Check, Verdict, failed_check, passed_check, unknown_check
from reconciler.model.errors import ReconcilerError
from reconciler.model.settings import ClusterKind, FeatureGate
from reconciler.model.text.counting import format_count
from reconciler.model.text.times import timestamp
from reconciler.options import add_options, option, part, switch
from reconciler.render.cells import Section, Verbatim
from reconciler.render.listing import format_document
from reconciler.render.reply import PAGES, render_page, render_reply, table_section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from reconciler.adapters.aws.facts.commitments import AccountCommitments
    from reconciler.model.karpenter.nodeclass import EC2NodeClass
    from reconciler.model.settings import Settings
    from reconciler.plan.value.nodes import PlannedNodeClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """The fleet, the use that it is checked for, and what is printed instead of checks."""

    fleet: FleetRequest = inputs.of_fleet([name for name in inputs.PLANNING if name != "base"])
    need: str = option(
        "--for",
        "WHAT",
        "plan: check only what `plan` needs; run: also check what `apply` and `run` need (default)",
        choices=["plan", "run"],
        default="run",
    )
    prints_policy: bool = switch(
        "--policy", "print the IAM policy for this fleet instead of checking"
    )
    prints_commitments: bool = switch(
        "--commitments",
        "print the account's savings plans and reserved instances as `commitments` for the config",
    )
    output: str = part(inputs.add_output)


add_arguments = partial(add_options, CheckRequest)
request_of = partial(inputs.request_from, CheckRequest)


def run(request: CheckRequest) -> int:
    """Print one line for each check; exit 1 if one failed."""
    need, is_text = Need(request.need), request.output == "text"
    document = "text" if request.output in PAGES else request.output
    if request.prints_policy:
        form = "json" if document == "text" else document
        text = format_document(iam_policy(request.fleet, need), form)
        sys.stdout.write(_on_page("IAM policy", text, request.output))
        return DONE
    if request.prints_commitments:
        text = format_commitments(request.fleet, document)
        sys.stdout.write(_on_page("Commitments of the account", text, request.output))
        return DONE
    with show_progress("Checking the account and the cluster"):
        rows = run_checks(request.fleet, need)
    passed = not any(row.verdict is Verdict.FAILED for row in rows)
    reply, title = ChecksReply(passed, tuple(rows)), "Checks of the account and the cluster"
    sys.stdout.write(
        checks_table(rows)
        if is_text
        else render_reply(reply, [checks_section(rows)], request.output, title=title)
    )
    return DONE if passed else FAILED


def _on_page(title: str, text: str, output: str) -> str:
    """Return a document as a page where one is asked for, otherwise as it is."""
    if output not in PAGES:
        return text
    return render_page(title, [Section(key="document", title="", figure=Verbatim(text))], output)


def checks_section(rows: Sequence[Check]) -> Section:
    """Return the checks as a section of a page."""
    header = ("check", "verdict", "result", "remedy")
    cells = [
        (f"{row.kind} {row.name}".rstrip(), str(row.verdict), row.message, row.remedy)
        for row in rows
    ]
    return table_section("checks", header, cells)


def checks_table(rows: Sequence[Check]) -> str:
    """Return the checks as a table: a mark, what was checked, and the result."""
    marks = {Verdict.PASSED: "✓", Verdict.FAILED: "✗", Verdict.UNKNOWN: "–"}
    heads = [f"{row.kind} {row.name}".rstrip() for row in rows]
    width = max(map(len, heads), default=0)
    lines = []
    for head, row in zip(heads, rows, strict=True):
        lines.append(f"{marks[row.verdict]} {head:<{width}}  {row.message}".rstrip())
        if row.remedy:
            lines.append(f"  {'':<{width}}  {row.remedy}")
    counts = Counter(row.verdict for row in rows)
    total = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    return "\n".join([*lines, f"{total}."]) + "\n"


_HEAD = """# Savings plans and reserved instances of this account, for reconciler.yaml. AWS does not
# report here how much of each is used: set usedElsewhere (what workloads outside this fleet use)
# or utilizationPercent (from the AWS bill). Without either, a commitment counts as fully used.
"""


_NOTHING = "# This account has no savings plans or reserved instances that apply to nodes.\n"


def format_commitments(request: FleetRequest, output: str) -> str:
    """Return the commitments of a fleet's account, as YAML or JSON.

    Raises:
        TransientCloudError, CloudError: AWS did not respond, or not completely.
    """
    from reconciler.adapters.aws.facts.commitments import read_commitments

    fleet = sources.desired_fleet(request)
    settings = sources.settings_of(request, fleet).settings
    found = read_commitments(connections().connector(settings), settings.region)
    if output != "text":
        document = {**_commitments_document(found), "passedOver": list(found.passed_over)}
        return format_document(document, output)
    return _commitments_text(found)


def _commitments_text(found: AccountCommitments) -> str:
    from reconciler.source.plainyaml import dump

    document = _commitments_document(found)
    unsupported = "".join(f"# not supported: {line}\n" for line in found.passed_over)
    if not any(document["commitments"].values()):
        return _NOTHING + unsupported
    return _HEAD + unsupported + dump(document, sort_keys=False)


def _commitments_document(found: AccountCommitments) -> dict[str, Any]:
    plans = [
        _without_empty(
            type=plan.type,
            commitment=plan.commitment,
            family=plan.family,
            region=plan.region,
            until=_format_time(plan.until),
            note=plan.note,
        )
        for plan in found.savings_plans
    ]
    reserved = [
        _without_empty(
            instanceType=terms.instance_type,
            count=terms.count,
            region=terms.region,
            zone=terms.zone,
            until=_format_time(terms.until),
            note=terms.note,
        )
        for terms in found.reserved_instances
    ]
    return {"commitments": _without_empty(savingsPlans=plans, reservedInstances=reserved)}


def _without_empty(**members: Any) -> dict[str, Any]:
    """Return the members that are not empty."""
    return {name: value for name, value in members.items() if value not in ("", [])}


def _format_time(at: datetime | None) -> str:
    return timestamp(at) if at is not None else ""


_ENDPOINT_TIMEOUT_S = 5.0


def run_checks(
    request: FleetRequest, need: Need, environment: Environment | None = None
) -> list[Check]:
    """Return all checks of the fleet that the request names.

    Raises:
        InvalidFleetError, UnreadableError: there is no fleet to check.
    """
    from reconciler.adapters.aws.checks import node_class_checks

    check = check_inputs(request, environment)
    found = f"found {format_count(len(check.classes), 'EC2NodeClass', 'EC2NodeClasses')}"
    rows = [passed_check("desired", "", found)]
    known = check.checks.identity()
    rows += known
    if any(row.verdict is Verdict.FAILED for row in known if row.kind == "credentials"):
        text = "skipped: the credentials are not verified"
        rows.append(unknown_check("region", check.settings.region, text))
        return [*rows, *_cluster_checks(check.settings, writes=need is Need.RUN)]
    rows.append(check.checks.region())
    resolved, problems = _resolve_classes(check)
    try:
        rows += check.checks.permissions(need, resolved, check.validation)
    except ReconcilerError as error:  # a launch cannot be tried, such as without clusterCIDR
        text = ": ".join(filter(None, (error.where, error.message)))
        rows.append(failed_check("permission", "", text, error.remedy))
    rows += problems
    for node_class in resolved:
        rows += node_class_checks(node_class)
    rows += _plan_checks(request, check, resolved, environment)
    if need is Need.RUN:
        rows.append(check.checks.queue())
    rows += _cluster_checks(check.settings, writes=need is Need.RUN)
    return rows


def iam_policy(request: FleetRequest, need: Need) -> dict[str, Any]:
    """Return the IAM policy for the fleet that the request names."""
    fleet = sources.desired_fleet(request)
    settings = sources.settings_of(request, fleet).settings
    names = Names(region=settings.region, cluster=settings.cluster_name)
    if settings.interruption_queue:
        names = replace(names, queue=settings.interruption_queue)
    if settings.role_arn:
        names = replace(names, account=settings.role_arn.split(":")[4])
    return made(need, names, reboots=settings.gate(FeatureGate.REBOOT_FOR_REPAIR))


def _resolve_classes(check: CheckInputs) -> tuple[list[EC2NodeClass], list[Check]]:
    found, problems = [], []
    for node_class in check.classes:
        try:
            found.append(check.compute.resolve(node_class))
        except ReconcilerError as error:
            text = f"{error.where}: {error.message}"
            problems.append(failed_check("nodeClass", node_class.name, text, error.remedy))
    return found, problems


def _plan_checks(
    request: FleetRequest,
    check: CheckInputs,
    classes: Sequence[EC2NodeClass],
    environment: Environment | None,
) -> Iterator[Check]:
    """Yield the checks of a plan's needs: addresses for its nodes, quotas for their vCPUs."""
    launches: Sequence[PlannedNodeClaim] = ()
    try:
        launches = _planned_launches(request, environment)
        yield passed_check("plan", "", f"{len(launches)} nodes would be launched now")
    except ReconcilerError as error:
        yield unknown_check("plan", "", f"cannot make a plan: {error}")
    for node_class in classes:
        zones = Counter(c.launch.zone for c in launches if c.node_class == node_class.name)
        yield from check.checks.subnets(node_class, zones)
    launches_by_type = []
    for claim in launches:
        cpus = check.cpus_of(claim.launch.instance_type)
        launches_by_type.append((claim.launch.instance_type, claim.launch.capacity_type, cpus))
    yield from check.checks.quotas(launches_by_type)


def _planned_launches(
    request: FleetRequest, environment: Environment | None
) -> Sequence[PlannedNodeClaim]:
    from reconciler.plan.planning import plan_of

    if request.snapshot is not None:
        from reconciler.simulate.planinputs import read_inputs

        return plan_of(read_inputs(request, Timings())).node_claims
    return plan_of(live_inputs(request, environment)).node_claims


def _cluster_checks(settings: Settings, *, writes: bool) -> Iterator[Check]:
    """Yield the checks of the cluster's API, and of the endpoint that new nodes join."""
    if settings.cluster != ClusterKind.KUBECONFIG:
        yield unknown_check(
            "cluster",
            "",
            (f"skipped: the cluster is {settings.cluster}, so there is no API server to reach"),
        )
        return
    rows = list(cluster_checks(settings, writes=writes))
    yield from rows
    is_reachable = any(row.verdict is Verdict.PASSED for row in rows)
    if not settings.kube_allow_karpenter:
        skipped = unknown_check("karpenter", "", "skipped: the cluster is not reachable")
        yield karpenter_check(settings, writes=writes) if is_reachable else skipped
    yield _endpoint_check(settings.cluster_endpoint)


def _endpoint_check(url: str) -> Check:
    """Return whether new nodes would reach the cluster; any HTTP response counts."""
    import urllib.error
    import urllib.request

    if not url:
        return unknown_check("endpoint", "", "skipped: clusterEndpoint is not set")
    try:
        import ssl

        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(f"{url.rstrip('/')}/version")  # noqa: S310 - the author's own URL
        with urllib.request.urlopen(request, timeout=_ENDPOINT_TIMEOUT_S, context=trust):  # noqa: S310 - as above
            return passed_check("endpoint", url, "reachable")
    except urllib.error.HTTPError as error:
        error.close()
        return passed_check("endpoint", url, f"reachable (HTTP {error.code} without credentials)")
    except (OSError, ValueError) as error:
        remedy = "check clusterEndpoint and the network route to it"
        return failed_check("endpoint", url, f"not reachable: {error}", remedy)
