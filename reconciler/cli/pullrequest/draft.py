"""The comment of a plan before it is posted: its marker, its Markdown, and what it was before.

Beside the marker, a hidden line has the commit and the cost that the comment is about, so that the
next push can say what the change cost before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Final, NamedTuple

from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_whole_dollars
from reconciler.model.text.quoting import without_backticks
from reconciler.model.text.visible import markdown_text, one_line
from reconciler.plan.render.unplaced import pods_at_fault
from reconciler.plan.value.plan import Plan
from reconciler.render.layout import truncate

_RESERVE: Final = 600
"""Room for the notice and the closing tags."""
_FENCE: Final = re.compile(r"^\s*(```+|~~~+)")
_OPEN: Final = re.compile(r"<details(?:\s[^>]*)?>|</details>", re.IGNORECASE)
_BLOB: Final = re.compile(r"[^A-Za-z0-9._-]+")

_COMMIT: Final = re.compile("[0-9a-f]{4,64}")
_FIGURES: Final = re.compile(
    rf"<!-- reconciler-cost (?P<head>{_COMMIT.pattern}) "
    r"(?P<now>-|-?[0-9]{1,12}\.[0-9]{2}) (?P<was>-|-?[0-9]{1,12}\.[0-9]{2}) -->"
)
_ADDRESS: Final = re.compile(r"https?://[^\s()<>\[\]\"']{1,2000}")

CHECK_NAME_MAX: Final = 200
"""How many characters of a fleet's name are part of that of its check: a forge allows 255."""


class PlanVerdict(StrEnum):
    """Whether a plan may be merged: policies forbid it, or it makes pods unschedulable.

    Whether unschedulable pods fail the job is a flag of the job (``--fail-on``), which a plan does
    not have. So its verdict is neutral.
    """

    ALLOWED = "allowed"
    NEUTRAL = "neutral"
    FORBIDDEN = "forbidden"


class Draft(NamedTuple):
    """A comment before it is posted: its marker, and its Markdown.

    ``head`` is the planned commit, empty without one. ``per_month`` is what the change costs in
    USD a month, None if that is not known. ``fleet``, ``title`` and ``verdict`` are those of the
    check; they are empty for Markdown, of which only the plan in JSON knows them.
    """

    marker: str
    text: str
    head: str = ""
    per_month: float | None = None
    fleet: str = ""
    title: str = ""
    verdict: PlanVerdict = PlanVerdict.NEUTRAL

    def body(self, characters_max: int, artifact: str, previous: str = "", total: str = "") -> str:
        """Return the comment, cut if it is too long.

        ``artifact`` is the address of the complete plan, empty if unknown, ``previous`` the comment
        that is replaced, and ``total`` a sentence about all fleets together.
        """
        before = self._before(previous)
        notes = [*_was_sentence(before, self.per_month), *filter(None, [total])]
        text = with_notes(self.text, notes)
        if _ADDRESS.fullmatch(artifact):
            text = f"{text.rstrip()}\n\n<sub>[All of it as HTML and JSON]({artifact})</sub>\n"
        more = f"The artifact of the run has all of it: {artifact}" if artifact else ""
        hidden = f"{self.marker}\n"
        if self.head:
            costs = f"{_figure(self.per_month)} {_figure(before)}"
            hidden += f"<!-- reconciler-cost {self.head} {costs} -->\n"
        return f"{hidden}{shorten(text, characters_max - len(hidden), more)}"

    def _before(self, previous: str) -> float | None:
        """Return the cost that the comment had with another commit, None if unknown."""
        lines = previous.replace("\r\n", "\n").lstrip().split("\n", 2)
        found = _FIGURES.fullmatch(lines[1].strip()) if len(lines) > 1 else None
        if found is None:
            return None
        amount = found["was"] if found["head"] == self.head else found["now"]
        return None if amount == "-" else float(amount)


def _figure(amount: float | None) -> str:
    return "-" if amount is None else f"{amount + 0:.2f}"


def _was_sentence(before: float | None, now: float | None) -> list[str]:
    if before is None:
        return []
    was = format_whole_dollars(before, signed=True)
    if now is not None and format_whole_dollars(now, signed=True) == was:
        return []
    return [f"Was {was}/month at the last push."]


def total_sentence(drafts: Sequence[Draft]) -> str:
    """Return what all fleets of a pull request cost together, empty for one fleet."""
    planned = [draft for draft in drafts if draft.head]
    known = [draft.per_month for draft in planned if draft.per_month is not None]
    if len(planned) < 2 or not known:
        return ""
    amount = format_whole_dollars(sum(known), signed=True)
    unknown = len(planned) - len(known)
    rest = f" ({unknown} of unknown cost)" if unknown else ""
    return f"All {format_count(len(planned), 'fleet')} of this pull request: {amount}/month{rest}."


def with_notes(text: str, notes: Sequence[str]) -> str:
    """Return a comment with sentences after its first line."""
    if not notes:
        return text
    paragraphs = text.split("\n\n", 2)
    sentences = " ".join(map(markdown_text, notes))
    return "\n\n".join([*paragraphs[:2], sentences, *paragraphs[2:]])


def marker_of(fleet: str, folder: str = "") -> str:
    """Return the hidden first line of a fleet's comment.

    The name is readable, and a digest of name and folder separates fleets whose names differ
    only in characters that an HTML comment cannot contain.
    """
    digest = sha256(f"{fleet}\0{folder}".encode()).hexdigest()[:16]
    return f"<!-- reconciler {_BLOB.sub('-', fleet)[:63].replace('--', '-')} {digest} -->"


def draft_of_plan(plan: Plan) -> Draft:
    """Return the comment of a plan; every name in it is escaped by the renderer."""
    from reconciler.plan.render.markdown import render_markdown
    from reconciler.plan.render.summary import shown_per_month, summary_of

    folder = plan.revision.path or ""
    head = plan.revision.head or ""
    summary = summary_of(plan)
    return Draft(
        marker_of(plan.fleet, "" if folder == "." else folder),
        render_markdown(plan),
        head=head if _COMMIT.fullmatch(head) else "",  # anything else could end the hidden line
        per_month=shown_per_month(plan),
        fleet=plan.fleet,
        title=one_line(without_backticks(summary.text[0])),
        verdict=_verdict_of(plan),
    )


def _verdict_of(plan: Plan) -> PlanVerdict:
    if any(policy.forbids for policy in plan.policies):
        return PlanVerdict.FORBIDDEN
    return PlanVerdict.NEUTRAL if pods_at_fault(plan) else PlanVerdict.ALLOWED


def check_name_of(draft: Draft, drafts: Sequence[Draft]) -> str:
    """Return the name of a check: that of the fleet, with the marker's digest if two have it."""
    name = f"reconciler plan: {truncate(one_line(draft.fleet), CHECK_NAME_MAX)}"
    if sum(other.fleet == draft.fleet for other in drafts) > 1:
        return f"{name} ({draft.marker.split()[-2][:8]})"
    return name


def shorten(text: str, characters_max: int, more: str) -> str:
    """Return at most ``characters_max`` characters, cut after a line, with closing tags."""
    if _utf16_length(text) <= characters_max:
        return text
    lines: list[str] = []
    room = characters_max - _RESERVE
    for line in text.splitlines():
        room -= _utf16_length(line) + 1
        if room < 0:
            break
        lines.append(line)
    notice = "This comment is shortened: the complete plan has too many characters."
    tail = f"\n\n---\n{notice} {more}".rstrip() + "\n"
    return "\n".join(lines) + _closing_tags(lines) + tail


def _closing_tags(lines: list[str]) -> str:
    """Return the closing tags of the code fence and the folds that lines leave open."""
    fence, folds = "", 0
    for line in lines:
        found = _FENCE.match(line)
        if found is not None:
            mark = found[1]
            if not fence:
                fence = mark
            elif mark.startswith(fence):
                fence = ""
        elif not fence:
            for tag in _OPEN.findall(line):
                folds += -1 if tag.startswith("</") else 1
    return (f"\n{fence}" if fence else "") + "\n\n</details>" * max(folds, 0)


def _utf16_length(text: str) -> int:
    """Return the number of characters as forges count them: a character beyond 16 bits is two."""
    return len(text) + sum(1 for c in text if ord(c) > 0xFFFF)
