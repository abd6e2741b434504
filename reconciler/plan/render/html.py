"""A plan as one self-contained page."""

from __future__ import annotations

from reconciler.model.text.times import format_time
from reconciler.plan.render.sections.document import document_of
from reconciler.plan.value.plan import Plan
from reconciler.render.cells import PlanDocument
from reconciler.render.html import render_section, sentence
from reconciler.render.page import Markup, el, filter_field, page


def render_html(plan: Plan) -> str:
    """Return the page."""
    return render_document(document_of(plan))


def render_document(document: PlanDocument) -> str:
    """Return a document as a page."""
    title = f"Plan for {document.fleet}"
    return page(title, _header(document), *map(render_section, document.sections))


def _header(document: PlanDocument) -> Markup:
    facts = (
        f"plan {document.digest} of {format_time(document.at)}",
        document.place,
        document.observation,
    )
    revision = f" at {document.revision}" if document.revision else f" ({document.commit_problem})"
    has_pods = any(section.tone == "bad" for section in document.sections)
    return el(
        "header",
        el("h1", document.fleet, el("small", revision)),
        el("p", " · ".join(filter(None, facts)), cls="soft"),
        el("div", *map(sentence, document.headline), cls=f"sum{' alarm' * has_pods}"),
        filter_field(),
    )
