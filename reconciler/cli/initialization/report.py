"""What `init` prints: what it took over, what it left out and why, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from reconciler.cli.initialization.collection import Collection
from reconciler.cli.initialization.layout import FleetFile
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.text.visible import one_line

_SHOWN_MAX = 200


class InitOutcome(NamedTuple):
    """The result of `init`, ready to be printed.

    ``choices`` are values that were assumed, ``advice`` what to add by hand to files that exist,
    ``lock`` one line about the lock file, ``next_commands`` what to run next.
    """

    folder: str
    settings: Mapping[str, object]
    files: Sequence[FleetFile]
    beside: Sequence[str]
    found: Collection | None
    findings: Sequence[Diagnostic]
    choices: Sequence[str]
    advice: Sequence[str]
    lock: str
    next_commands: Sequence[str]

    @property
    def is_valid(self) -> bool:
        """Whether nothing has to be completed by hand before the fleet can be planned."""
        return not any(d.severity is Severity.ERROR for d in self.findings)


def render(outcome: InitOutcome) -> str:
    """Return the report as text."""
    name, region = outcome.settings["fleet"], outcome.settings["aws.region"]
    lines = [one_line(f"Fleet {name} ({region}) in {outcome.folder}")]
    lines += [f"  {one_line(choice)}" for choice in outcome.choices]
    lines += _taken(outcome)
    if outcome.found is not None:
        lines += _section("Left out", outcome.found.left_out)
        undone = [d for d in outcome.found.notes if d.severity is not Severity.INFO]
        lines += _section("Complete by hand", undone)
    lines += _section("Findings", outcome.findings)
    lines += _written(outcome)
    lines += ["", *_next(outcome)]
    return "\n".join(lines) + "\n"


def _line(indent: int, text: str) -> str:
    return " " * indent + one_line(text)


def _taken(outcome: InitOutcome) -> Iterator[str]:
    if outcome.found is None:
        return
    changes: dict[str, list[str]] = {}
    for note in outcome.found.notes:
        if note.severity is Severity.INFO:
            head, _, what = note.message.partition(": ")
            path = f"{note.path}: " if note.path else ""
            changes.setdefault(head, []).append(f"{path}{what}")
    items = [file for file in outcome.files if file.item is not None]
    yield ""
    yield f"Taken over ({len(items)})"
    for file in items[:_SHOWN_MAX]:
        assert file.item is not None, "selected above"
        item, name = file.item, f"{file.item.kind} {file.item.name}"
        yield _line(2, f"{file.path}: {name}, from {item.place}")
        for change in changes.get(name, ()):
            yield _line(6, change)
    if len(items) > _SHOWN_MAX:
        yield f"  … and {len(items) - _SHOWN_MAX} more"
    taken = sorted(outcome.found.settings)
    if taken:
        yield _line(2, f"reconciler.yaml: settings of Karpenter: {', '.join(taken)}")


def _section(title: str, findings: Sequence[Diagnostic]) -> Iterator[str]:
    if not findings:
        return
    yield ""
    yield f"{title} ({len(findings)})"
    for finding in findings[:_SHOWN_MAX]:
        where = f"{finding.place}: " if finding.place else ""
        path = f"{finding.path}: " if finding.path else ""
        hint = f" ({finding.hint})" if finding.hint else ""
        severity = "" if finding.code == "left-out" else f"{finding.severity}: "
        yield _line(2, f"{where}{severity}{path}{finding.message}{hint}")
    if len(findings) > _SHOWN_MAX:
        yield f"  … and {len(findings) - _SHOWN_MAX} more"


def _written(outcome: InitOutcome) -> Iterator[str]:
    shown = [f.path for f in outcome.files if f.item is None and not f.path.startswith(".schemas")]
    yield ""
    yield "Written"
    for path in (*shown, *outcome.beside):
        yield _line(2, path)
    for line in outcome.advice:
        yield _line(2, f"not changed: {line}")
    yield _line(2, outcome.lock)


def _next(outcome: InitOutcome) -> Iterator[str]:
    if not outcome.is_valid:
        yield "Correct the errors above in the new files, then run:"
    label = "Next: "
    for command in outcome.next_commands:
        yield f"{label}{one_line(command)}"
        label = "      "
