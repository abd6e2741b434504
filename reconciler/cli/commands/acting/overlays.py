"""``reconciler overlays``: write NodeOverlays for a cluster that keeps Karpenter.

Preferences (annotations of NodePools) and ``commitments`` influence what reconciler launches
without any object. Karpenter reads NodeOverlays instead; this command writes the equivalent ones.
It launches and terminates nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from reconciler.adapters.clock import SystemClock
from reconciler.cli.parser import inputs
from reconciler.exitcode import DONE, FAILED
from reconciler.model.errors import UsageError
from reconciler.model.text.visible import one_line
from reconciler.options import add_options, option, part, switch

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from datetime import timedelta

    from reconciler.adapters.kubernetes.api import Api
    from reconciler.adapters.kubernetes.karpenter import OverlayFailure
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.catalog.commitments.overlays import OverlayRow
    from reconciler.cli.maintenance.overlays import FleetOverlays


_FLAGS: Final = tuple(
    name for name in (*inputs.ACTING, "snapshot", "snapshot_max_age") if name != "allow_removal"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaysRequest:
    """The fleet, and the destination of its overlays; without one they are printed."""

    fleet: FleetRequest = inputs.of_fleet(_FLAGS)
    out: str | None = option("--out", "DIR", "write a file for each overlay to this folder")
    applies: bool = switch("--apply", "create, update and delete overlays in the cluster")
    previews: bool = switch("--dry-run", "show the changes of --apply without making them")
    interval: timedelta | None = option(
        "--interval", "DURATION", "with --apply, repeat it this often until stopped, as in 5m"
    )
    disabled: bool = switch(
        "--disabled", "write overlays without effect: they require a label that no node has"
    )
    output: str = part(inputs.add_output)

    def __post_init__(self) -> None:
        """Refuse destinations that contradict each other.

        Raises:
            UsageError: there are two, or a flag has no effect with this one.
        """
        chosen = [
            flag
            for flag, is_given in (
                ("--out", self.out is not None),
                ("--apply", self.applies),
                ("--dry-run", self.previews),
            )
            if is_given
        ]
        if len(chosen) > 1:
            what = f"{' and '.join(chosen)} cannot be used together"
            raise UsageError(what, where=chosen[1], remedy="leave one of them out")
        if self.interval is not None and not self.applies:
            raise UsageError("needs --apply", where="--interval", remedy="add --apply")
        asks_cluster = self.applies or self.previews
        if asks_cluster and self.fleet.snapshot is not None:
            what = f"a snapshot cannot be used with {chosen[0]}, which reads the cluster"
            raise UsageError(what, where="--snapshot", remedy="leave one of them out")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the fleet, the cluster and the destination."""
    add_options(OverlaysRequest, parser, then={"disabled": inputs.add_context})


request_of = partial(inputs.request_from, OverlaysRequest)


def run(request: OverlaysRequest) -> int:
    """Print or write the overlays; 1 if one of them could not be written."""
    from reconciler.cli.maintenance.overlays import desired_overlays

    if request.applies or request.previews:
        return _run_in_cluster(request)
    found = desired_overlays(request.fleet, None, disabled=request.disabled)
    _print_warnings(found)
    if request.out is None:
        _print_overlays(found, request.output)
        return DONE
    from reconciler.cli.maintenance.overlays import write_files

    files = write_files(found.wanted, request.out)
    counts = ", ".join(f"{len(names)} {what}" for what, names in files.items())
    print(f"{request.out}: {counts}")
    return DONE


def _run_in_cluster(request: OverlaysRequest) -> int:
    from reconciler.assembly.cluster import api_of
    from reconciler.cli.maintenance.overlays import repeat, settings_of

    clock = SystemClock()
    api = api_of(settings_of(request.fleet), clock)
    if request.interval is None:
        return FAILED if _run_once(request, api) else DONE
    repeat(lambda: _write_changes(request, api), request.interval, clock)
    return DONE


def _run_once(request: OverlaysRequest, api: Api) -> Sequence[OverlayFailure]:
    """Compare, write and show once; return the failures."""
    found, rows, failures = _write_overlays(request, api)
    _print_warnings(found)
    _print_rows(
        rows, request.output, "changed" if request.applies else "would change", len(failures)
    )
    for failure in failures:
        print(f"Error: NodeOverlay {failure.name}: {failure.error}", file=sys.stderr)
    return failures


def _write_changes(request: OverlaysRequest, api: Api) -> tuple[list[str], list[str]]:
    """Write once; return the changes and the problems, a sentence for each."""
    from reconciler.catalog.commitments.overlays import OverlayAction

    found, rows, failures = _write_overlays(request, api)
    failed = {failure.name for failure in failures}
    quiet = (OverlayAction.UNCHANGED, OverlayAction.SKIP)
    changed = [
        f"{row.action} NodeOverlay {row.overlay.name}: {row.reason}"
        for row in rows
        if row.action not in quiet and row.overlay.name not in failed
    ]
    problems = [f"NodeOverlay {failure.name}: {failure.error}" for failure in failures]
    problems += [
        f"NodeOverlay {row.overlay.name} is not written: {row.reason}"
        for row in rows
        if row.action is OverlayAction.SKIP
    ]
    return changed, [*problems, *(finding.message for finding in found.findings)]


def _write_overlays(
    request: OverlaysRequest, api: Api
) -> tuple[FleetOverlays, Sequence[OverlayRow], Sequence[OverlayFailure]]:
    from reconciler.adapters.kubernetes.karpenter import read_overlays, write_overlays
    from reconciler.catalog.commitments.overlays import overlay_rows
    from reconciler.cli.maintenance.overlays import desired_overlays

    found = desired_overlays(request.fleet, api, disabled=request.disabled)
    present = read_overlays(api)
    rows = overlay_rows(found.wanted, (one.overlay for one in present.values()), found.fleet)
    failures = write_overlays(api, rows, present) if request.applies else ()
    return found, rows, failures


def _print_warnings(found: FleetOverlays) -> None:
    for finding in found.findings:
        print(one_line(f"{finding.severity}: {finding.message}"), file=sys.stderr)


def _print_overlays(found: FleetOverlays, output: str) -> None:
    """Print the overlays as objects, ready for ``kubectl apply -f -``."""
    import msgspec

    from reconciler.catalog.commitments.overlays import document
    from reconciler.render.cells import Section, Verbatim
    from reconciler.render.reply import PAGES, render_page
    from reconciler.source.plainyaml import dump

    objects = [document(one.overlay) for one in found.wanted]
    if not objects:
        print("No preference or commitment requires a NodeOverlay.", file=sys.stderr)
    text = "---\n".join(dump(item, sort_keys=False) for item in objects)
    if output == "json":
        whole = msgspec.json.encode(
            {"apiVersion": "v1", "kind": "List", "items": objects}, order="sorted"
        )
        text = whole.decode() + "\n"
    elif output in PAGES:
        section = Section(key="overlays", title="", figure=Verbatim(text))
        text = render_page("NodeOverlays", [section], output)
    sys.stdout.write(text)


def _print_rows(rows: Sequence[OverlayRow], output: str, verb: str, failed: int) -> None:
    from reconciler.catalog.commitments.overlays import OverlayAction, document
    from reconciler.inspection.replies import OverlayChange, OverlaysReply
    from reconciler.render.reply import render_reply, table_section

    changes = (OverlayChange(str(r.action), r.reason, document(r.overlay)) for r in rows)
    reply = OverlaysReply(tuple(changes))
    cells = [
        (
            str(row.action),
            row.overlay.name,
            str(row.overlay.weight),
            row.overlay.spec.price_adjustment or "",
            row.reason,
        )
        for row in rows
    ]
    quiet = (OverlayAction.UNCHANGED, OverlayAction.SKIP)
    count = sum(row.action not in quiet for row in rows) - failed
    header = ("action", "name", "weight", "price", "reason")
    end = f"{count} of {len(rows)} overlays {verb}."
    sections = [table_section("overlays", header, cells, end=end)]
    sys.stdout.write(render_reply(reply, sections, output, title="NodeOverlays", compact=True))
