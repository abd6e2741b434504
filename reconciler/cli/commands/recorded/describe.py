"""``reconciler describe``: everything that is recorded about one resource."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec.structs import replace

from reconciler import exitcode
from reconciler.assembly.inputs import records
from reconciler.assembly.inputs.records import RecordedFleet
from reconciler.assembly.inputs.request import StateRequest
from reconciler.cli.parser import inputs
from reconciler.model.text.quoting import quote_value
from reconciler.options import add_options, argument, part
from reconciler.render.listing import kind_words

KINDS: Final = ("nodeclaim", "node", "nodepool", "plan", "command")


def parse_kind(word: str) -> str:
    """Return the kind that ``word`` means, for argparse."""
    singular = word.lower().removesuffix("s")
    if singular not in KINDS:
        raise argparse.ArgumentTypeError(
            f"unknown kind {quote_value(word)} (use one of {', '.join(KINDS)})"
        )
    return singular


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeRequest:
    """The kind and the name of the resource, and the output format."""

    kind: str = argument("KIND", f"one of {', '.join(KINDS)}", type=parse_kind)
    name: str = argument("NAME", "name of the resource, digest of the plan, or ID of the command")
    fleet: StateRequest = inputs.of_fleet(inputs.RECORDED)
    output: str = part(inputs.add_output)


add_arguments = partial(add_options, DescribeRequest)
request_of = partial(inputs.request_from, DescribeRequest)


def run(request: DescribeRequest) -> int:
    """Print the description; 1 if the name is not recorded."""
    from reconciler.inspection.views import resource_of
    from reconciler.render.reply import render_reply

    kind, name, output = request.kind, request.name, request.output
    with records.open_recorded(request.fleet) as recorded:
        resource = resource_of(recorded, f"{kind}s", name)
        if kind == "plan" and output not in ("json", "yaml"):
            sys.stdout.write(_render_plan(recorded, name, output))
            return exitcode.DONE
        from reconciler.inspection.descriptions import describe, operations_on

        operations = operations_on(recorded, kind, name)
        reply = replace(resource, operations=operations)
        # the value of a plan is its body, of which only the other formats have sections
        sections = [] if kind == "plan" else describe(recorded, kind, name)
        title = f"{kind_words(kind)} {name}"
        sys.stdout.write(render_reply(reply, sections, output, title=title))
    return exitcode.DONE


def _render_plan(recorded: RecordedFleet, digest: str, output: str) -> str:
    from reconciler.plan.value.plan import from_json

    found = recorded.state.store.plan(digest)
    assert found is not None, "the caller has seen it"
    plan = from_json(found.body, f"plan {digest}")
    match output:
        case "html":
            from reconciler.plan.render.html import render_html

            return render_html(plan)
        case "markdown":
            from reconciler.plan.render.markdown import render_markdown

            return render_markdown(plan)
    from reconciler.plan.render.text import render_text

    return render_text(plan)
