"""The sections of a plan as a comment on a pull request, and its graph as a Mermaid flowchart.

Details are folded below the rows.
"""

from __future__ import annotations

from typing import Final

from reconciler.model.text.times import format_time
from reconciler.model.text.visible import markdown_code
from reconciler.plan.render.sections.actions import flow_of
from reconciler.plan.render.sections.document import document_of
from reconciler.plan.value.plan import Plan
from reconciler.render.cells import PlanDocument
from reconciler.render.layout import truncate
from reconciler.render.markdown import (
    MarkdownSections,
    SectionLimits,
    render_flowchart,
    sentence_markdown,
)

CHARACTERS_MAX: Final = 20_000
"""Nobody reads more than this in a comment; GitHub rejects 65,536 and more."""

_SUMMARY_MAX: Final = 2000

_LIMITS: Final = (
    SectionLimits(40, 120, 400, chart=True),
    SectionLimits(40, 60, 300, chart=False),
    SectionLimits(12, 30, 200, chart=False),
    SectionLimits(6, 12, 120, chart=False),
    SectionLimits(3, 3, 60, chart=False),
)
"""Tried until the comment fits."""


def render_mermaid(plan: Plan) -> str:
    """Return the actions and their edges; beyond ``BOXES_MAX`` the rest is counted."""
    return render_flowchart(flow_of(plan))


def render_markdown(plan: Plan) -> str:
    """Return the comment; what does not fit is counted, with the location of the complete plan."""
    return render_document(document_of(plan, for_page=False))


def render_document(document: PlanDocument) -> str:
    """Return a document as a comment of at most ``CHARACTERS_MAX`` characters."""
    for limits in _LIMITS:
        text = _Comment(document, limits).text()
        if len(text) <= CHARACTERS_MAX:
            return text
    return _Comment(document, _LIMITS[-1]).without_tables()


class _Comment:
    """One attempt at the comment."""

    def __init__(self, document: PlanDocument, limits: SectionLimits) -> None:
        self._document = document
        self._sections = MarkdownSections(limits)

    def text(self) -> str:
        paint = self._sections.parts
        parts = [part for section in self._document.sections for part in paint(section)]
        return "\n\n".join([*self._title(), *parts, self._footer()]) + "\n"

    def without_tables(self) -> str:
        """Return the comment without any table, which fits whatever the names are."""
        note = "The tables of this plan are too long for a comment. Use `-o html` to see them."
        return "\n\n".join([*self._title(), note, self._footer()]) + "\n"

    def _title(self) -> list[str]:
        """Return the fleet, the headline, and what else decides as a list."""
        first, *more = [truncate(line, _SUMMARY_MAX // 4) for line in self._document.headline]
        parts = [
            f"### Plan for {self._sections.text(self._document.fleet)}",
            f"**{sentence_markdown(first)}**",
        ]
        return (
            [*parts, "\n".join(f"- {sentence_markdown(line)}" for line in more)] if more else parts
        )

    def _footer(self) -> str:
        document = self._document
        revision = f" ({document.commit_problem})"
        if document.revision:
            revision = f" of {markdown_code(truncate(document.revision, _SUMMARY_MAX))}"
        seen = f"; {document.observation}" if document.observation else ""
        plan = f"Plan {markdown_code(document.digest)}{revision}, {format_time(document.at)}{seen}"
        again = document.command
        repeat = f"<br>Repeat it: {markdown_code(truncate(again, _SUMMARY_MAX))}" if again else ""
        return f"<sub>{plan}{repeat}</sub>"
