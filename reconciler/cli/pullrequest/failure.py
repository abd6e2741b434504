"""Why a fleet has no plan, as a file of a job and as a comment on its pull request.

A push without a plan replaces the comment of the one before: its figures are of other files. The
file is data of an untrusted job, as a plan is: everything in it is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from reconciler.cli.pullrequest.draft import Draft, PlanVerdict, marker_of
from reconciler.model.decode import decode_json, describe_mismatch
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.errors import ReconcilerError, UnreadableError
from reconciler.model.text.counting import format_count
from reconciler.model.text.visible import markdown_text, one_line

_FINDINGS_MAX: Final = 50
_SHOWN: Final = 20
_TEXT_MAX: Final = 2_000
_SIZE_MAX: Final = 2**20
_TITLE_MAX: Final = 300
_COMMIT: Final = re.compile("[0-9a-f]{4,64}")

_OUTCOME: Final = {
    "files": "Nothing is known of the cost. After a merge, `apply` refuses these files, and `run` "
    "stays at the last valid commit.",
    "inputs": "Nothing is known of the cost: an input of the plan cannot be read.",
}


class FailureReason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One error: where it is (empty if it is in no file), and what to do about it."""

    place: str
    message: str
    hint: str = ""


class PlanFailure(
    msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True
):
    """Why a fleet has no plan (``schemas/planfailure.v1.json``).

    ``folder`` is that of the fleet in its repository and ``head`` its commit, both empty if
    unknown. ``errors`` counts the errors, of which ``reasons`` are the first; ``cause`` is whether
    they are in the files of the fleet or in other inputs of the plan, such as a snapshot.
    """

    api_version: Literal["reconciler/v1"] = "reconciler/v1"
    kind: Literal["PlanFailure"] = "PlanFailure"
    fleet: str
    folder: str = ""
    head: str = ""
    errors: int = 0
    cause: Literal["files", "inputs"] = "files"
    reasons: tuple[FailureReason, ...] = ()

    def to_json(self) -> bytes:
        """Return the file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def reasons_of(findings: Sequence[Diagnostic]) -> list[FailureReason]:
    """Return the errors among the findings."""
    return [
        FailureReason(
            str(d.place) if d.place else "",
            _cut(f"{d.path}: {d.message}" if d.path else d.message),
            _cut(d.hint),
        )
        for d in findings
        if d.severity is Severity.ERROR
    ]


def reason_of(error: ReconcilerError) -> FailureReason:
    """Return an error that is in no file of the fleet."""
    return FailureReason(_cut(error.where), _cut(error.message), _cut(error.remedy))


def with_reasons(failure: PlanFailure, reasons: Sequence[FailureReason]) -> PlanFailure:
    """Return a failure with its reasons; of many only the first are kept."""
    first = tuple(reasons[:_FINDINGS_MAX])
    return msgspec.structs.replace(failure, errors=len(reasons), reasons=first)


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"


class _FileKind(msgspec.Struct):
    kind: str = ""


def is_failure(content: bytes) -> bool:
    """Return whether a file says why there is no plan; a damaged one does not."""
    try:
        return decode_json(content, _FileKind).kind == "PlanFailure"
    except msgspec.MsgspecError:
        return False


def read_failure(content: bytes, source: str) -> PlanFailure:
    """Return what ``PlanFailure.to_json`` wrote.

    Raises:
        UnreadableError: it is not such a file.
    """
    remedy = "pass the folder that `reconciler ci` wrote"
    if len(content) > _SIZE_MAX:
        what = f"the file is larger than {_SIZE_MAX // 2**20} MiB"
        raise UnreadableError(what, where=source, remedy=remedy)
    try:
        return decode_json(content, PlanFailure)
    except msgspec.MsgspecError as error:
        what = f"not what `ci` writes: {describe_mismatch(error)}"
        raise UnreadableError(what, where=source, remedy=remedy) from error


def render_failure(failure: PlanFailure) -> str:
    """Return the reasons as Markdown; the first line says how many there are, and the first."""
    lines = [
        f"### No plan for {markdown_text(failure.fleet)}",
        "",
        f"**{markdown_text(_title(failure))}**",
        "",
        _OUTCOME[failure.cause],
        "",
        "| where | error |",
        "| :-- | :-- |",
    ]
    for reason in failure.reasons[:_SHOWN]:
        hint = f" ({reason.hint})" if reason.hint else ""
        lines.append(f"| {markdown_text(reason.place)} | {markdown_text(reason.message + hint)} |")
    more = failure.errors - len(failure.reasons[:_SHOWN])
    if more > 0:
        lines += ["", f"And {format_count(more, 'more error')}; `reconciler validate` lists all."]
    return "\n".join(lines) + "\n"


def _title(failure: PlanFailure) -> str:
    count = format_count(failure.errors, "error")
    if not failure.reasons:
        return f"No plan: {count}."
    first = failure.reasons[0]
    what = f"{first.place}: {first.message}" if first.place else first.message
    cut = what if len(what) <= _TITLE_MAX else f"{what[: _TITLE_MAX - 1]}…"
    return f"No plan: {count}, such as {cut}." if failure.errors > 1 else f"No plan: {cut}."


def draft_of_failure(failure: PlanFailure) -> Draft:
    """Return the comment, in the place of that of the fleet's plan."""
    folder = "" if failure.folder == "." else failure.folder
    return Draft(
        marker_of(failure.fleet, folder),
        render_failure(failure),
        head=failure.head if _COMMIT.fullmatch(failure.head) else "",
        fleet=failure.fleet,
        title=one_line(_title(failure)),
        verdict=PlanVerdict.FORBIDDEN,
    )
