"""``reconciler status``: the recorded state of the fleet at a glance."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

from reconciler import exitcode
from reconciler.assembly.inputs import records, watching
from reconciler.assembly.inputs.request import StateRequest
from reconciler.cli.parser import inputs
from reconciler.notifications.stream import has_colour
from reconciler.options import add_options, part


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRequest:
    """The fleet whose status is shown, and the output format."""

    fleet: StateRequest = inputs.of_fleet(inputs.RECORDED)
    output: str = part(inputs.add_output)
    watches: bool = part(inputs.add_watch)


add_arguments = partial(add_options, StatusRequest)
request_of = partial(inputs.request_from, StatusRequest)


def run(request: StatusRequest) -> int:
    """Print the status, once or whenever it changes."""
    if request.watches:
        watching.watch_until_stopped(lambda: _view(request), sys.stdout)
    else:
        _view(request).show(sys.stdout)
    return exitcode.DONE


def _view(request: StatusRequest) -> watching.View:
    """Return the status in the output format."""
    from reconciler.inspection.status import status_of
    from reconciler.inspection.statussections import fact_times, status_sections
    from reconciler.render.reply import render_reply

    with records.open_recorded(request.fleet) as recorded:
        status = status_of(recorded, fact_times(request.fleet))
        sections = status_sections(status, recorded.now)
    title, colour = f"Status of {status.fleet}", has_colour(sys.stdout)
    text = render_reply(status, sections, request.output, title=title, colour=colour)
    return watching.View(text, status)
