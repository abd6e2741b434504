"""The mandate of a pass: the complete plan, or only the plan that a user has approved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.model.ownership import Owner
from reconciler.model.settings import RebalanceRecommendation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reconciler.engine.reconcile import Mandate
    from reconciler.model.settings import Settings
    from reconciler.plan.value.plan import Plan


class Approval(NamedTuple):
    """What a user has approved: a ``plan``, or with None any plan.

    With ``continues``, later plans are approved as well, until the fleet has converged.
    """

    plan: Plan | None
    continues: bool


NO_PLAN: Final = Approval(None, continues=True)
"""Approves whatever is planned, as in the daemon."""


def mandate_of(settings: Settings, approval: Approval = NO_PLAN) -> Mandate:
    """Return the mandate of a pass, according to the settings and the approval."""
    from reconciler.engine.reconcile import Mandate

    return Mandate(
        tags_of(settings),
        approval.plan,
        continues=approval.continues,
        batch_from=settings.batch_launches_from,
        replaces_rebalanced=settings.rebalance_recommendation == RebalanceRecommendation.REPLACE,
    )


def tags_of(settings: Settings) -> Mapping[str, str]:
    """Return the tags of all instances of the fleet."""
    return Owner(settings.fleet, settings.cluster_name).tags
