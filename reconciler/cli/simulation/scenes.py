"""Plays the revisions of a simulation: one, or the base first and then what shall be merged."""

from __future__ import annotations

from datetime import datetime

from reconciler.cli.apply import tags_of
from reconciler.cli.simulation.building import Setting
from reconciler.cli.simulation.driver import play
from reconciler.cli.simulation.report import Report, report_of
from reconciler.engine.reconcile import Mandate


def played(setting: Setting, until: datetime | None) -> Report:
    """Play it, and return what happened from the first moment of the head revision on."""
    stage, head = setting.stage, setting.head
    setting.enter(head)
    outcome = play(stage, lambda: head, Mandate(tags_of(head.settings)), until)
    return report_of(stage, outcome, setting.start)
