"""``reconciler explain``: why a pod has no node, why a node is or is not disrupted.

The answer is read from the reasons that the newest plan kept, or from a plan in a file.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reconciler.cli import exitcode, opening

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from reconciler.adapters.database.history import GivenReason
    from reconciler.cli.opening import Recorded
    from reconciler.plan.explain import Answer
    from reconciler.plan.plan import Plan

KINDS: Final = {
    "pod": "pod", "pods": "pod",
    "node": "node", "nodes": "node",
    "nodeclaim": "nodeclaim", "nodeclaims": "nodeclaim",
}  # fmt: skip


class Source(NamedTuple):
    """The plan that is asked, how a message names it, and what was said before it."""

    plan: Plan
    digest: str
    name: str
    earlier: Sequence[GivenReason] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is to be explained, and from which plan."""
    parser.add_argument("kind", type=kind, metavar="KIND", help="pod, node or nodeclaim")
    parser.add_argument(
        "name", metavar="NAME", help="its name; a pod's with its namespace, where needed"
    )
    opening.add_path(parser)
    parser.add_argument(
        "--plan", metavar="FILE", help="a plan saved with `plan --out` (- for stdin)"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="form of the answer"
    )
    opening.add_arguments(parser)


def kind(word: str) -> str:
    """Return the kind that ``word`` means, as argparse asks for it."""
    found = KINDS.get(word.lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{word[:60]!r} is none of pod, node, nodeclaim")
    return found


def run(args: argparse.Namespace) -> int:
    """Print the answer; 1 where the plan does not know the name."""
    if args.plan is not None:
        plan = _saved(args.plan)
        source = Source(plan, plan.digest, args.plan)
        answer = _answer(source, args, None)
    else:
        with opening.recorded(args) as recorded:
            source = _newest(recorded)
            pair = _pair(recorded, args)
            answer = _answer(source, args, pair)
            source = source._replace(earlier=_earlier(recorded, answer, source, pair))
    if args.output == "json":
        from reconciler.cli.listing import as_json

        sys.stdout.write(as_json(document(answer, source)))
    else:
        from reconciler.cli.inputs import present

        sys.stdout.write(text_of(answer, source, present(args.now)))
    return exitcode.DONE


def text_of(answer: Answer, source: Source, now: datetime) -> str:
    """Return the answer for a person: the verdict, what will be done, what stands against it."""
    from reconciler.cli.listing import age, columns, stamp
    from reconciler.plan.wording import moment

    lines = [f"{answer.kind} {answer.name}: {answer.verdict}."]
    lines += [f"  {fact}" for fact in answer.facts]
    text = "\n".join(lines) + "\n"
    if answer.reasons:
        rows = [(reason.code, reason.message) for reason in answer.reasons]
        text += "\nWhy not:\n" + columns(rows, indent=2)
    if source.earlier:
        past = [(stamp(g.at), g.decision.code, g.decision.message) for g in source.earlier]
        text += "\nSaid earlier:\n" + columns(past, indent=2)
    ago = f", {age(source.plan.at, now)} ago" if now > source.plan.at else ""
    return f"{text}\nFrom plan {source.digest} of {moment(source.plan.at)}{ago}.\n"


def document(answer: Answer, source: Source) -> dict[str, Any]:
    """Return the answer as an object."""
    import msgspec

    return {
        "apiVersion": "reconciler/v1",
        "kind": "Explanation",
        "about": {"kind": answer.kind, "name": answer.name},
        "plan": {"digest": source.digest, "at": msgspec.to_builtins(source.plan.at)},
        "verdict": answer.verdict,
        "facts": list(answer.facts),
        "reasons": [{"code": r.code, "message": r.message} for r in answer.reasons],
        "earlier": [
            {
                "at": msgspec.to_builtins(g.at),
                "code": g.decision.code,
                "message": g.decision.message,
                "plan": g.plan,
            }
            for g in source.earlier
        ],
    }


def _saved(path: str) -> Plan:
    from reconciler.cli.inputs import read_bytes
    from reconciler.plan.plan import from_json

    return from_json(read_bytes(path), path)


def _newest(recorded: Recorded) -> Source:
    """Return the newest plan that is recorded.

    Raises:
        StateError: none is.
    """
    from reconciler.model.errors import StateError
    from reconciler.plan.plan import from_json

    plans = recorded.state.store.plans(limit=1)
    if not plans:
        raise StateError(
            f"no plan is recorded for fleet {recorded.fleet}",
            where=recorded.where,
            remedy="run `reconciler plan --out plan.json`, then explain with --plan plan.json",
        )
    name = f"plan {plans[0].digest}"
    return Source(from_json(plans[0].body, name), plans[0].digest, name)


def _pair(recorded: Recorded, args: argparse.Namespace) -> tuple[str, str] | None:
    """Return the names of node and claim that are recorded as one machine."""
    for claim in recorded.state.store.node_claims() if args.kind != "pod" else ():
        if args.name == (claim.name if args.kind == "nodeclaim" else claim.status.node_name):
            return claim.status.node_name, claim.name
    return None


def _answer(source: Source, args: argparse.Namespace, pair: tuple[str, str] | None) -> Answer:
    """Return what the plan says about the name.

    Raises:
        UnreadableError: the plan does not speak of it.
    """
    from reconciler.plan import explain

    plan = source.plan
    if args.kind == "pod":
        return _of_pod(source, args.name)
    if pair is None:
        if args.name not in explain.node_names(plan):
            raise _unknown(args.kind, args.name, source.name, explain.node_names(plan))
        if args.kind == "node":
            pair = args.name, explain.claim_of_node(plan, args.name)
        else:
            pair = explain.node_of_claim(plan, args.name), args.name
    return explain.explain_node(plan, *pair, "Node" if args.kind == "node" else "NodeClaim")


def _of_pod(source: Source, name: str) -> Answer:
    from reconciler.model.errors import UsageError
    from reconciler.plan import explain
    from reconciler.plan.wording import listed

    plan = source.plan
    names = explain.matching_pods(plan, name)
    if len(names) > 1:
        raise UsageError(f"{name} may be {listed(names)}", remedy="name one of these pods")
    answer = explain.explain_pod(plan, names[0]) if names else None
    if answer is None:
        raise _unknown("pod", name, source.name, explain.pod_names(plan))
    return answer


def _unknown(kind: str, name: str, source: str, names: Sequence[str]) -> Exception:
    from difflib import get_close_matches

    from reconciler.model.errors import UnreadableError

    near = get_close_matches(name, names, n=1)
    advice = (
        "it runs and stays where it is, or it was not there"
        if kind == "pod"
        else "`reconciler get nodes` lists those that are recorded"
    )
    return UnreadableError(
        f"the plan does not speak of {kind} {name}",
        where=source,
        remedy=f"did you mean {near[0]}?" if near else advice,
    )


def _earlier(
    recorded: Recorded, answer: Answer, source: Source, pair: tuple[str, str] | None
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
