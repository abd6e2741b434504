"""A plan as the document that every renderer uses: the headline, then the sections in order."""

from __future__ import annotations

import shlex
from typing import Final

from reconciler.model.text.identifiers import short_commit
from reconciler.model.text.times import timestamp
from reconciler.plan.render.sections import actions, changes, disruption, fleet, gap, pods, policies
from reconciler.plan.render.summary import summary_lines
from reconciler.plan.render.wording import commit_problem, format_observation, format_revision
from reconciler.plan.value.plan import Plan, Revision
from reconciler.render.cells import PlanDocument, Section

SECTIONS: Final = (
    policies.violated_policies,
    pods.unschedulable_pods,
    fleet.steady_pools,
    fleet.who_pays,
    fleet.offers,
    changes.changes,
    fleet.node_pools,
    actions.actions,
    actions.order,
    disruption.rollout,
    disruption.deferred_nodes,
    disruption.blocked_nodes,
    disruption.blockers,
    pods.headroom,
    policies.other_policies,
    gap.constraint_costs,
    fleet.notes,
    disruption.budgets,
    pods.placements,
)
"""Reading order: what is wrong, what the change leads to, what happens now, what waits, details.

Each function returns one section of a plan, or None if the plan has nothing for it. A new section
is one more function here; the renderers need no change.
"""

PAGE_ONLY: Final = frozenset({disruption.rollout, disruption.budgets, pods.placements})
"""Sections that are too long or too wide for anything but a page."""


FOLDED_ONLY: Final = frozenset({gap.constraint_costs})
"""Sections that are shown only where they can be folded; a terminal has a command for each."""


def sections_of(plan: Plan, *, for_page: bool = True, can_fold: bool = True) -> tuple[Section, ...]:
    """Return the sections that the plan has, in reading order."""
    hidden = {*(() if for_page else PAGE_ONLY), *(() if can_fold else FOLDED_ONLY)}
    makers = (make for make in SECTIONS if make not in hidden)
    return tuple(section for make in makers if (section := make(plan)) is not None)


def document_of(plan: Plan, *, for_page: bool = True, can_fold: bool = True) -> PlanDocument:
    """Return the plan as a document, for a page with what only a page can show.

    ``can_fold`` is whether the reader can unfold sections.
    """
    at = plan.revision
    return PlanDocument(
        fleet=plan.fleet,
        revision=format_revision(plan),
        place=_place_of(at),
        digest=plan.digest,
        at=plan.at,
        observation=format_observation(plan),
        headline=tuple(summary_lines(plan)),
        sections=sections_of(plan, for_page=for_page, can_fold=can_fold),
        command=_command_of(plan),
        commit_problem=commit_problem(at),
    )


def _place_of(revision: Revision) -> str:
    """Return where the fleet is: a repository's name alone would read like a branch."""
    if not revision.repo:
        return ""
    within = f"{revision.path} in " if revision.path not in (None, "", ".") else ""
    return f"{within}repository {revision.repo}"


def _command_of(plan: Plan) -> str:
    """Return the command that repeats a plan of a change, in a checkout of its commit."""
    at = plan.revision
    if at.head is None or at.base is None or at.dirty:
        return ""
    words = ["reconciler", "plan", at.path or ".", "--base", short_commit(at.base)]
    if plan.observation == "snapshot":
        words += ["--snapshot", "FILE"]
    return shlex.join([*words, "--now", timestamp(plan.at)])
