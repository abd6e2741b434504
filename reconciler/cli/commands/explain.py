"""``reconciler explain``: why a pod is unschedulable, or a node or NodePool is (not) disrupted.

The answer is read from the reasons that the newest plan kept, or from a plan in a file. With
inputs of its own (``--snapshot``, ``--catalog``, ``--ref``, ``--repo``), or where nothing has been
recorded yet, a plan is made on the spot, and the scheduler is asked further: what else was
possible, and what each constraint costs.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.cli.shared import exitcode, records
from reconciler.cli.shared.request import add_arguments as add_input_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reconciler.adapters.database.history import GivenReason
    from reconciler.cli.shared.records import Recorded
    from reconciler.plan.explain.answer import Explanation
    from reconciler.plan.explain.inquiry import Inquiry
    from reconciler.plan.make.inputs import Inputs
    from reconciler.plan.value.plan import Plan

KINDS: Final = {
    "pod": "pod", "pods": "pod",
    "node": "node", "nodes": "node",
    "nodeclaim": "nodeclaim", "nodeclaims": "nodeclaim",
    "nodepool": "nodepool", "nodepools": "nodepool",
    "buffer": "buffer", "capacitybuffer": "buffer", "capacitybuffers": "buffer",
}  # fmt: skip

_NAMED: Final = tuple(dict.fromkeys(KINDS.values()))
_ADVICE: Final = {
    "pod": "it is running and is not moved, or it does not exist",
    "nodepool": "git has no NodePool with this name",
    "buffer": "no CapacityBuffer with this name was read, or its feature gate is disabled",
}


class PlanSource(NamedTuple):
    """The plan that is asked, how a message names it, and what was said before it."""

    plan: Plan
    digest: str
    name: str
    earlier: Sequence[GivenReason] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is to be explained, and from which plan."""
    parser.add_argument("kind", type=kind, metavar="KIND", help=", ".join(_NAMED))
    parser.add_argument(
        "name",
        metavar="NAME",
        help=(
            "name; for a pod or buffer, prefix its namespace (NAMESPACE/NAME) if the name is "
            "ambiguous"
        ),
    )
    add_input_arguments(parser)
    parser.add_argument(
        "--plan", metavar="FILE", help="plan file saved with `plan --out` (- for stdin)"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format"
    )


def kind(word: str) -> str:
    """Return the kind that ``word`` means, as argparse asks for it."""
    found = KINDS.get(word.lower())
    if found is None:
        raise argparse.ArgumentTypeError(
            f"unknown kind {word[:60]!r} (use one of {', '.join(_NAMED)})"
        )
    return found


def run(args: argparse.Namespace) -> int:
    """Print the answer; 1 where the plan does not know the name."""
    if args.plan is not None:
        if args.kind == "nodepool":
            raise _no_plan_for_pools()
        plan = _saved(args.plan)
        source = PlanSource(plan, plan.digest, args.plan)
        answer = _answer(source, args, None)
    elif _has_inputs(args):
        source, answer = _on_the_spot(args)
    else:
        with records.recorded(args) as recorded:
            source = _newest(recorded)
            pair = _pair(recorded, args)
            answer = _answer(source, args, pair)
            source = source._replace(earlier=_earlier(recorded, answer, source, pair))
    from reconciler.cli.output import explanation

    told = (answer, source.plan, source.digest, source.earlier)
    if args.output == "json":
        from reconciler.cli.output.listing import as_json

        sys.stdout.write(as_json(explanation.document(*told)))
    else:
        from reconciler.cli.shared.moment import present

        sys.stdout.write(explanation.text_of(*told, present(args.now)))
    return exitcode.DONE


def _has_inputs(args: argparse.Namespace) -> bool:
    """Return whether a plan is to be made: inputs are named, or there is no record of any plan.

    The calendar of a NodePool is of what git says now, never of a record.
    """
    if args.kind == "nodepool" or any(
        x is not None for x in (args.snapshot, args.catalog, args.ref, args.repo)
    ):
        return True
    place = records.state_location(
        args.path, records.settings_of(args.path, args.state, args.settings, args.config)
    )
    return "://" not in place and not os.path.lexists(place)


def _on_the_spot(args: argparse.Namespace) -> tuple[PlanSource, Explanation]:
    """Return a plan of the inputs that the arguments name, and the answer from it.

    Raises:
        UnreadableError: neither the plan nor the cluster knows the name.
    """
    from reconciler.cli.shared.question import read_inputs
    from reconciler.cli.shared.timings import Timings
    from reconciler.plan.explain.inquiry import Inquiry
    from reconciler.plan.make.planner import make_plan
    from reconciler.plan.planning import gathered

    inputs = read_inputs(args, Timings())
    facts = gathered(inputs)
    plan = make_plan(facts)
    source = PlanSource(plan, plan.digest, f"plan {plan.digest}")
    if args.kind == "nodepool":
        return source, _of_pool(source, args.name, inputs)
    inquiry = Inquiry(facts, plan)
    if args.kind == "pod":
        return source, inquiry.of_pod(_of_pod(source, args.name, inquiry))
    if args.kind == "buffer":
        return source, inquiry.of_buffer(_answer(source, args, None))
    pair = inquiry.pair(args.name, is_claim=args.kind == "nodeclaim")
    answer = _answer(source, args, pair)
    if args.kind == "nodeclaim":
        return source, inquiry.of_claim(answer)
    from reconciler.plan.explain.node import explain_fully

    return source, explain_fully(answer, facts, plan)


def _of_pool(source: PlanSource, name: str, inputs: Inputs) -> Explanation:
    from reconciler.desired.objects import node_pools
    from reconciler.model.history import NO_HISTORY
    from reconciler.plan.explain.calendar import explain_node_pool

    pools = {pool.name: pool for pool in node_pools(inputs.fleet)}
    if name not in pools:
        raise _unknown("nodepool", name, source.name, list(pools))
    nodes, history = inputs.cluster.nodes, inputs.history or NO_HISTORY
    return explain_node_pool(pools[name], inputs.settings, nodes, inputs.now, history)


def _no_plan_for_pools() -> Exception:
    from reconciler.model.errors import UsageError

    return UsageError(
        "a saved plan does not contain the disruption calendar of a NodePool",
        where="--plan",
        remedy="remove --plan, or pass --snapshot FILE",
    )


def _saved(path: str) -> Plan:
    from reconciler.cli.shared.request import read_bytes
    from reconciler.plan.value.plan import from_json

    return from_json(read_bytes(path), path)


def _newest(recorded: Recorded) -> PlanSource:
    """Return the newest plan that is recorded.

    Raises:
        StateError: none is.
    """
    from reconciler.model.errors import StateError
    from reconciler.plan.value.plan import from_json

    plans = recorded.state.store.plans(limit=1)
    if not plans:
        raise StateError(
            f"no plan is recorded for fleet {recorded.fleet}",
            where=recorded.where,
            remedy="run `reconciler plan --out plan.json`, then explain with --plan plan.json",
        )
    name = f"plan {plans[0].digest}"
    return PlanSource(from_json(plans[0].body, name), plans[0].digest, name)


def _pair(recorded: Recorded, args: argparse.Namespace) -> tuple[str, str] | None:
    """Return the names of node and claim that are recorded as one machine."""
    machine = args.kind in ("node", "nodeclaim")
    for claim in recorded.state.store.node_claims() if machine else ():
        if args.name == (claim.name if args.kind == "nodeclaim" else claim.status.node_name):
            return claim.status.node_name, claim.name
    return None


def _answer(
    source: PlanSource, args: argparse.Namespace, pair: tuple[str, str] | None
) -> Explanation:
    """Return what the plan says about the name.

    Raises:
        UnreadableError: it is not in the plan.
    """
    from reconciler.plan.explain import reasons

    plan = source.plan
    if args.kind == "pod":
        return _of_pod(source, args.name)
    if args.kind == "buffer":
        buffer = reasons.explain_buffer(plan, args.name)
        if buffer is None:
            raise _unknown(
                "buffer", args.name, source.name, [room.buffer for room in plan.headroom]
            )
        return buffer
    if pair is None:
        if args.name not in reasons.node_names(plan):
            raise _unknown(args.kind, args.name, source.name, reasons.node_names(plan))
        if args.kind == "node":
            pair = args.name, reasons.claim_of_node(plan, args.name)
        else:
            pair = reasons.node_of_claim(plan, args.name), args.name
    return reasons.explain_node(plan, *pair, "Node" if args.kind == "node" else "NodeClaim")


def _of_pod(source: PlanSource, name: str, inquiry: Inquiry | None = None) -> Explanation:
    from reconciler.model.errors import UsageError
    from reconciler.plan.explain import reasons
    from reconciler.plan.render.wording import listed

    plan = source.plan
    names = reasons.matching_pods(plan, name)
    settled = inquiry.settled(name) if inquiry is not None and not names else None
    if settled is not None:
        return settled
    if len(names) > 1:
        raise UsageError(
            (f"pod name {name} is ambiguous: {listed(names)}"), remedy="use one of these names"
        )
    answer = reasons.explain_pod(plan, names[0]) if names else None
    if answer is None:
        raise _unknown("pod", name, source.name, reasons.pod_names(plan))
    return answer


def _unknown(kind: str, name: str, source: str, names: Sequence[str]) -> Exception:
    from reconciler.model.errors import UnreadableError
    from reconciler.model.text.nearest import did_you_mean

    advice = _ADVICE.get(kind, "`reconciler get nodes` lists the recorded nodes")
    return UnreadableError(
        f"{kind} {name} is not in {source}",
        remedy=did_you_mean(name, names, advice),
    )


def _earlier(
    recorded: Recorded, answer: Explanation, source: PlanSource, pair: tuple[str, str] | None
) -> list[GivenReason]:
    """Return what was said about it before and is not said now, newest first."""
    now = {(r.code, r.message) for r in answer.reasons}
    about: list[tuple[str, str]] = [(answer.kind, answer.name)]
    if pair is not None:
        about = [("Node", pair[0]), ("NodeClaim", pair[1])]
    given = [g for who in about for g in recorded.state.history.decisions(*who, limit=10)]
    given.sort(key=lambda g: g.at, reverse=True)
    return [
        g
        for g in given
        if g.at < source.plan.at and (g.decision.code, g.decision.message) not in now
    ]
