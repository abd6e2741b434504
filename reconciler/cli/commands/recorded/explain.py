"""``reconciler explain``: why a pod is unschedulable, or a node or NodePool is (not) disrupted.

With the code of a finding, as in ``explain unknown-field``, it explains the finding. With
``gap``, it shows what each constraint costs. Otherwise:

The answer is read from the reasons in the newest plan, or from a plan in a file. With separate
inputs (``--snapshot``, ``--catalog``, ``--ref``, ``--repo``, ``--replicas``, ``-f``), or without
recorded state, a plan is made, and the scheduler also evaluates alternatives and the cost of each
constraint.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Final

from reconciler import exitcode
from reconciler.assembly.inputs import records
from reconciler.assembly.inputs.timings import Timings, current_time
from reconciler.cli.parser import inputs
from reconciler.inspection.replies import CodeReply
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.model.history import NO_HISTORY
from reconciler.model.text.counting import format_list
from reconciler.model.text.nearest import did_you_mean, nearest
from reconciler.model.text.quoting import quote_value
from reconciler.options import add_options, option, part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reconciler.assembly.inputs.records import RecordedFleet
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.inspection.recordedreasons import PlanSource
    from reconciler.plan.explain.alternatives import Inquiry
    from reconciler.plan.explain.answer import Explanation
    from reconciler.plan.make.inputs import Inputs
    from reconciler.plan.value.plan import Plan

KINDS: Final = {
    "pod": "pod",
    "pods": "pod",
    "node": "node",
    "nodes": "node",
    "nodeclaim": "nodeclaim",
    "nodeclaims": "nodeclaim",
    "nodepool": "nodepool",
    "nodepools": "nodepool",
    "buffer": "buffer",
    "capacitybuffer": "buffer",
    "capacitybuffers": "buffer",
}

_NAMED: Final = tuple(dict.fromkeys(KINDS.values()))
_SPELLED: Final = {"nodeclaim": "NodeClaim", "nodepool": "NodePool", "buffer": "CapacityBuffer"}
"""The kinds that Kubernetes writes with capitals, as messages show them."""
_CODE: Final = "code"
_GAP: Final = "gap"
_LIKE: Final = 0.6
_ADVICE: Final = {
    "pod": "it is running and is not moved, or it does not exist",
    "buffer": "no CapacityBuffer with this name was read, or its feature gate is disabled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest:
    """The resource to explain, and from which plan: a saved one, or the newest recorded one.

    With ``needs_plan`` a plan is made, because its inputs are named.
    """

    fleet: FleetRequest
    kind: str
    name: str
    plan_file: str | None = option(
        "--plan", "FILE", "plan file saved with `plan --out` (- for stdin)"
    )
    output: str = part(inputs.add_output)

    @property
    def needs_plan(self) -> bool:
        """Whether inputs are named, or only a new plan can answer.

        The calendar of a NodePool depends on what git contains now, not on a record.
        """
        fleet = self.fleet
        named = (fleet.snapshot, fleet.catalog, fleet.ref, fleet.repo, fleet.replicas_percent)
        is_named = any(x is not None for x in named)
        return self.kind == "nodepool" or is_named or bool(fleet.manifests)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the resource to explain, and the plan."""
    parser.add_argument(
        "kind",
        type=parse_kind,
        metavar="KIND|CODE",
        help=f"{', '.join(_NAMED)}, gap (what each constraint costs), or the code of a finding",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="name, not with a code; NAMESPACE/NAME of a pod or buffer if the name is ambiguous",
    )
    inputs.add_path(parser)
    add_options(ExplainRequest, parser)
    inputs.add_flags(parser, inputs.PLANNING)


def request_of(args: argparse.Namespace) -> ExplainRequest:
    """Return the request in the arguments.

    Raises:
        UsageError: a kind has no name, or a code has one.
    """
    if args.kind == _GAP:
        if args.path is not None or args.plan_file is not None:
            raise UsageError(
                "gap takes only the fleet folder",
                where="explain",
                remedy="write `reconciler explain gap [PATH]`",
            )
        fleet = inputs.fleet_request(args, args.name)
        return ExplainRequest(fleet=fleet, kind=_GAP, name="", output=args.output)
    is_code = args.kind not in _NAMED
    if is_code != (args.name is None):
        raise UsageError(
            f"{args.kind} takes no name"
            if is_code
            else f"the name of the {_SPELLED.get(args.kind, args.kind)} is missing",
            where="explain",
            remedy=f"write `reconciler explain {args.kind}{'' if is_code else ' NAME'}`",
        )
    if is_code:
        fleet = inputs.fleet_request(args, None)
        return ExplainRequest(fleet=fleet, kind=_CODE, name=args.kind, output=args.output)
    return inputs.request_from(ExplainRequest, args)


def parse_kind(word: str) -> str:
    """Return the kind that ``word`` means, or the code, for argparse."""
    found = _GAP if word.lower() == _GAP else KINDS.get(word.lower())
    if found is not None:
        return found
    from reconciler.source.codes import known_codes

    codes = known_codes()
    code = word.strip("[]").lower()
    if code in codes:
        return code
    near = nearest(code, [*KINDS, _GAP, *codes], _LIKE)
    advice = f"did you mean {near}?" if near else f"use one of {', '.join(_NAMED)}, or a code"
    raise argparse.ArgumentTypeError(f"unknown kind or code {quote_value(word)} ({advice})")


def run(request: ExplainRequest) -> int:
    """Print the answer; 1 if the plan does not contain the name."""
    if request.kind == _CODE:
        return _explain_code(request)
    if request.kind == _GAP:
        return _explain_gap(request)
    from reconciler.inspection.recordedreasons import (
        PlanSource,
        earlier_reasons,
        newest_source,
        with_recorded_times,
    )

    if request.plan_file is not None:
        if request.kind == "nodepool":
            raise _saved_plan_error()
        plan = _read_saved_plan(request.plan_file)
        source = PlanSource(plan, plan.digest, request.plan_file)
        answer = _answer(source, request, None)
    elif request.needs_plan or not records.has_state(request.fleet):
        source, answer = _explain_from_inputs(request)
    else:
        with records.open_recorded(request.fleet) as recorded:
            source = newest_source(recorded)
            pair = _node_and_claim(recorded, request)
            answer = _answer(source, request, pair)
            answer = (
                with_recorded_times(recorded, answer, pair[1], source.plan.at) if pair else answer
            )
            source = source._replace(earlier=earlier_reasons(recorded, answer, source, pair))
    from reconciler.inspection.explanation import explanation_reply, explanation_sections
    from reconciler.render.reply import render_reply

    parts = (answer, source.plan, source.digest, source.earlier)
    sections = list(explanation_sections(*parts, current_time(request.fleet.now)))
    title = f"{answer.kind} {answer.name}"
    reply = explanation_reply(*parts)
    sys.stdout.write(render_reply(reply, sections, request.output, title=title))
    return exitcode.DONE


def _explain_code(request: ExplainRequest) -> int:
    from reconciler.render.reply import render_reply, sections_of
    from reconciler.source.codes import known_codes

    reply = CodeReply(code=request.name, **known_codes()[request.name]._asdict())
    text = f"{request.name}\n\n{fill(reply.meaning, 80)}\n{fill(reply.remedy, 80)}\n"
    title = f"Finding {request.name}"
    sys.stdout.write(
        render_reply(reply, sections_of(reply), request.output, title=title, text=text)
    )
    return exitcode.DONE


def _explain_gap(request: ExplainRequest) -> int:
    from reconciler.inspection.gap import gap_reply, gap_sections, render_gap
    from reconciler.plan.make.planner import make_plan
    from reconciler.plan.planning import gather_facts
    from reconciler.plan.rest.gap import explain_gap
    from reconciler.render.reply import render_reply
    from reconciler.simulate.planinputs import read_inputs

    inputs = read_inputs(request.fleet, Timings())
    facts = gather_facts(inputs)
    found = explain_gap(facts, make_plan(facts), inputs)
    fleet = facts.settings.fleet
    text, title = render_gap(fleet, found), f"Cost of constraints of {fleet}"
    page = gap_sections(fleet, found)
    sys.stdout.write(
        render_reply(gap_reply(fleet, found), page, request.output, title=title, text=text)
    )
    return exitcode.DONE


def _explain_from_inputs(request: ExplainRequest) -> tuple[PlanSource, Explanation]:
    """Return a plan of the named inputs, and the answer from it.

    Raises:
        UnreadableError: neither the plan nor the cluster has the name.
    """
    from reconciler.inspection.recordedreasons import PlanSource
    from reconciler.plan.explain.alternatives import Inquiry
    from reconciler.plan.make.planner import make_plan
    from reconciler.plan.planning import gather_facts
    from reconciler.simulate.planinputs import read_inputs

    inputs = read_inputs(request.fleet, Timings())
    facts = gather_facts(inputs)
    plan = make_plan(facts)
    source = PlanSource(plan, plan.digest, f"plan {plan.digest}")
    inquiry = Inquiry(facts, plan)
    if request.kind == "nodepool":
        answer = _explain_pool(source, request.name, inputs, _recorded_nodes(request.fleet))
        return source, inquiry.explain_pool(answer)
    if request.kind == "pod":
        return source, inquiry.explain_pod(_explain_pod(source, request.name, inquiry))
    if request.kind == "buffer":
        return source, inquiry.explain_buffer(_answer(source, request, None))
    pair = inquiry.node_and_claim(request.name, is_claim=request.kind == "nodeclaim")
    answer = _answer(source, request, pair)
    if request.kind == "nodeclaim":
        return source, inquiry.explain_claim(answer)
    from reconciler.plan.explain.node import explain_node_in_detail

    return source, explain_node_in_detail(answer, facts, plan)


def _recorded_nodes(request: FleetRequest) -> Counter[str]:
    """Return how many nodes of each NodePool are recorded, none without a state."""
    if not records.is_fleet_recorded(request):
        return Counter()
    with records.open_recorded(request) as recorded:
        return Counter(claim.node_pool for claim in recorded.state.store.node_claims())


def _explain_pool(
    source: PlanSource, name: str, inputs: Inputs, recorded: Counter[str]
) -> Explanation:
    from reconciler.desired.objects import node_pools
    from reconciler.plan.explain.calendar import explain_node_pool

    pools = {pool.name: pool for pool in node_pools(inputs.fleet)}
    if name not in pools:
        known = f"it has {format_list(sorted(pools))}" if pools else "it has no NodePool"
        raise UnreadableError(
            f"NodePool {quote_value(name)} is not in this fleet",
            remedy=did_you_mean(name, list(pools), known),
        )
    nodes, history = inputs.cluster.nodes, inputs.history or NO_HISTORY
    costs = source.plan.cost.by_node_pool
    planned = {pool: cost.nodes_after for pool, cost in costs.items() if pool in pools}
    return explain_node_pool(
        pools[name], inputs.settings, nodes, inputs.now, history, planned, recorded
    )


def _saved_plan_error() -> Exception:
    return UsageError(
        "a saved plan does not contain the disruption calendar of a NodePool",
        where="--plan",
        remedy="remove --plan, or pass --snapshot FILE",
    )


def _read_saved_plan(path: str) -> Plan:
    from reconciler.assembly.inputs.files import read_bytes
    from reconciler.plan.approval import SIZE_MAX
    from reconciler.plan.value.plan import from_json

    return from_json(read_bytes(path, SIZE_MAX), path)


def _node_and_claim(recorded: RecordedFleet, request: ExplainRequest) -> tuple[str, str] | None:
    """Return the names of the recorded node and its NodeClaim."""
    machine = request.kind in ("node", "nodeclaim")
    for claim in recorded.state.store.node_claims() if machine else ():
        if request.name == (claim.name if request.kind == "nodeclaim" else claim.status.node_name):
            return claim.status.node_name, claim.name
    return None


def _answer(
    source: PlanSource, request: ExplainRequest, pair: tuple[str, str] | None
) -> Explanation:
    """Return the explanation of the name from the plan.

    Raises:
        UnreadableError: it is not in the plan.
    """
    from reconciler.plan.explain import reasons

    plan = source.plan
    if request.kind == "pod":
        return _explain_pod(source, request.name)
    if request.kind == "buffer":
        buffer = reasons.explain_buffer(plan, request.name)
        if buffer is None:
            raise _unknown_name_error(
                "buffer", request.name, source.name, [room.buffer for room in plan.headroom]
            )
        return buffer
    if pair is None:
        if request.name not in reasons.node_names(plan):
            raise _unknown_name_error(
                request.kind, request.name, source.name, reasons.node_names(plan)
            )
        if request.kind == "node":
            pair = request.name, reasons.claim_of_node(plan, request.name)
        else:
            pair = reasons.node_of_claim(plan, request.name), request.name
    return reasons.explain_node(plan, *pair, "Node" if request.kind == "node" else "NodeClaim")


def _explain_pod(source: PlanSource, name: str, inquiry: Inquiry | None = None) -> Explanation:
    from reconciler.plan.explain import reasons

    plan = source.plan
    names = reasons.matching_pods(plan, name)
    answered = inquiry.explain_unplanned_pod(name) if inquiry is not None and not names else None
    if answered is not None:
        return answered
    if len(names) > 1:
        raise UsageError(
            (f"pod name {name} is ambiguous: {format_list(names)}"), remedy="use one of these names"
        )
    answer = reasons.explain_pod(plan, names[0]) if names else None
    if answer is None:
        raise _unknown_name_error("pod", name, source.name, reasons.pod_names(plan))
    return answer


def _unknown_name_error(kind: str, name: str, source: str, names: Sequence[str]) -> Exception:
    advice = _ADVICE.get(kind, "`reconciler get nodes` lists the recorded nodes")
    subject = f"{_SPELLED[kind]} {quote_value(name)}" if kind in _SPELLED else f"{kind} {name}"
    return UnreadableError(
        f"{subject} is not in {source}",
        remedy=did_you_mean(name, names, advice),
    )
