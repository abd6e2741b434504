"""``reconciler plan``: say what would be done and why, and do nothing."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, Final

from reconciler.cli.shared import exitcode
from reconciler.cli.shared.request import add_arguments as add_input_arguments
from reconciler.model.text.visible import Painted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from reconciler.plan.make.inputs import Inputs
    from reconciler.plan.value.plan import Plan

_PLAIN: Final = {ord("→"): "->", ord("×"): "x", ord("±"): "~", ord("…"): "...", ord("–"): "-"}
_OUTPUTS: Final = ("text", "json", "markdown", "html", "mermaid", "requests")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_input_arguments(parser)
    add = parser.add_argument
    add("-o", "--output", choices=_OUTPUTS, default="text", help="output format")
    add("--out", metavar="FILE", help="save the plan for `reconciler apply FILE`")
    add(
        "--detailed-exitcode", action="store_true",
        help="exit with 2 if there are changes",
    )  # fmt: skip
    add(
        "--fail-on", action="append", default=[], choices=("unschedulable",), metavar="WHAT",
        help="exit with 3 if the plan has it: unschedulable (pods that cannot be scheduled)",
    )  # fmt: skip
    add(
        "--timings",
        action="store_true",
        help="print the seconds spent in each phase to stderr, as JSON",
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan; 0, or with ``--detailed-exitcode`` 2 when there is something to do.

    3 when it has what ``--fail-on`` names, whatever there is to do.
    """
    # A plan is one burst of values that live to its end: looking for garbage among them often
    # costs a tenth of the time and finds none.
    gc.set_threshold(200_000, 20, 20)
    from reconciler.cli.shared.question import read_inputs
    from reconciler.cli.shared.timings import Timings

    timings = Timings()
    inputs = read_inputs(args, timings)
    from reconciler.plan.planning import plan_of

    plan = plan_of(inputs, timings)
    with timings("render"):
        text = render(plan, args, inputs)
        if args.out:
            from reconciler.cli.shared.planfile import save

            save(plan, args.out)
    write(text)
    if args.timings:
        print(timings.to_json(), file=sys.stderr)
    if "unschedulable" in args.fail_on and _refuses(plan):
        return exitcode.REFUSED
    changed = args.detailed_exitcode and not plan.is_empty
    return exitcode.CHANGES if changed else exitcode.DONE


def _refuses(plan: Plan) -> bool:
    """Return whether pods cannot be scheduled, and say so on stderr."""
    from reconciler.plan.render.summary import unschedulable
    from reconciler.plan.render.wording import counted, format_pods

    pods = unschedulable(plan)
    if pods:
        said = f"{counted(len(pods), 'pod')} cannot be scheduled: {format_pods(pods)}"
        print(
            f"Error: --fail-on unschedulable: {said}; the plan lists the reasons", file=sys.stderr
        )
    return bool(pods)


def render(plan: Plan, args: argparse.Namespace, inputs: Inputs) -> str:
    """Return the plan in the form that was asked for."""
    match args.output:
        case "json":
            from reconciler.plan.approval import encode_saved

            return encode_saved(plan).decode() + "\n"
        case "markdown":
            from reconciler.plan.render.markdown import render_markdown

            return render_markdown(plan)
        case "html":
            from reconciler.plan.render.html import render_html

            return render_html(plan)
        case "mermaid":
            from reconciler.plan.render.mermaid import render_mermaid

            return render_mermaid(plan)
        case "requests":
            from reconciler.cli.output.requests import render_requests

            return render_requests(plan, inputs)
    from reconciler.plan.render.text import render_text

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return render_text(plan, width=_columns(), colour=colour, next_command=next_command(plan, args))


def _columns() -> int:
    """Return the terminal's columns, 80 where there is none (``COLUMNS`` overrules)."""
    text = os.environ.get("COLUMNS", "")
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def next_command(plan: Plan, args: argparse.Namespace) -> str:
    """Return what to type next, nothing where there is nothing to do."""
    if plan.is_empty:
        return ""
    if args.out:
        return " ".join(["reconciler apply", *map(_quoted, (args.out, *_inputs_named(args)))])
    folder = f" {args.path}" if args.path else ""
    if args.snapshot or args.catalog:
        return "save this plan with `--out plan.json`, then run `reconciler apply plan.json`"
    return f"reconciler apply{folder}"


def _inputs_named(args: argparse.Namespace) -> Iterator[str]:
    """Yield the arguments of this command that `apply` needs to plan again from the same inputs."""
    from reconciler.model.text.urls import without_secrets

    if args.path:
        yield args.path
    named = {
        "--repo": without_secrets(args.repo) if args.repo else None,
        "--ref": args.ref,
        "--path": args.below,
        "--catalog": args.catalog,
        "--state": without_secrets(args.state) if args.state else None,
    }
    for flag, value in named.items():
        if value:
            yield from (flag, value)
    for setting in args.settings:
        yield from ("--set", without_secrets(setting))
    for name in args.allow_removal:
        yield from ("--allow-removal", name)


def _quoted(word: str) -> str:
    from shlex import quote

    return quote(word)


def write(text: str) -> None:
    """Print on stdout, in ASCII where the terminal cannot show more."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        is_painted = isinstance(text, Painted)
        text = text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
        text = Painted(text) if is_painted else text
    sys.stdout.write(text)
