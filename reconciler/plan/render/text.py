"""A plan on a terminal: its sections, then what they come to."""

from __future__ import annotations

from reconciler.model.text.times import format_time
from reconciler.model.text.visible import escape_invisible, one_line
from reconciler.plan.render.sections.document import document_of
from reconciler.plan.value.plan import Plan
from reconciler.render.cells import PlanDocument
from reconciler.render.layout import Canvas
from reconciler.render.text import write_section


def render_text(
    plan: Plan, *, width: int = 80, colour: bool = False, next_command: str = ""
) -> str:
    """Return the plan for a terminal of ``width`` columns."""
    return render_document(
        document_of(plan, for_page=False, can_fold=False),
        width=width,
        colour=colour,
        next_command=next_command,
    )


def render_document(
    document: PlanDocument, *, width: int = 80, colour: bool = False, next_command: str = ""
) -> str:
    """Return a document for a terminal of ``width`` columns."""
    canvas = Canvas(width, colour=colour)
    _write_header(canvas, document)
    for section in document.sections:
        if section.rows:
            write_section(canvas, section)
    canvas.line()
    for number, line in enumerate(document.headline):
        canvas.paragraph(escape_invisible(line), 0, *(() if number else ("bold",)))
    if next_command:
        canvas.line(f"Next: {canvas.paint(one_line(next_command), 'cyan')}")  # one line, to copy
    return canvas.text()


def _write_header(canvas: Canvas, document: PlanDocument) -> None:
    fleet, revision, place = map(
        escape_invisible, (document.fleet, document.revision, document.place)
    )
    commit, _, note = revision.partition(" ")
    changed = f" {canvas.paint(note, 'yellow')}" if note else ""
    at = f" at {revision}" if revision else f" ({document.commit_problem})"
    fits_beside = place and len(f"{fleet}{at}  {place}") <= canvas.width
    source = f"  {canvas.paint(place, 'dim')}" if fits_beside else ""
    painted = f" at {canvas.paint(commit, 'bold')}{changed}" if revision else at
    title = f"{canvas.paint(fleet, 'bold')}{painted}"
    canvas.line(f"{title}{source}")
    if place and not fits_beside:
        canvas.paragraph(place, 0, "dim")
    seen = f"; {document.observation}" if document.observation else ""
    canvas.paragraph(f"plan {document.digest} of {format_time(document.at)}{seen}", 0, "dim")
