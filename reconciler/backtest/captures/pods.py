"""The pods of a capture, as a trace: with limits, shared classes, and a report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from reconciler.backtest.trace import (
    PODS_MAX,
    SECONDS_DIGITS,
    SECONDS_MAX,
    Trace,
    TraceClass,
    TracedPod,
    traced_pod,
    with_unique_names,
)
from reconciler.model.errors import UnreadableError
from reconciler.model.karpenter.labels import DISRUPTION_ANNOTATIONS
from reconciler.model.kubernetes.metadata import Metadata, OwnerReference
from reconciler.model.kubernetes.pod import Pod, PodSpec
from reconciler.model.text.counting import format_count
from reconciler.model.text.times import format_time
from reconciler.model.text.visible import one_line

YEARS: Final = range(2000, 2400)
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_IDENTITIES: Final = frozenset(
    {
        "pod-template-hash",
        "controller-revision-hash",
        "statefulset.kubernetes.io/pod-name",
        "apps.kubernetes.io/pod-index",
        "controller-uid",
        "job-name",
        "batch.kubernetes.io/controller-uid",
        "batch.kubernetes.io/job-name",
        "batch.kubernetes.io/job-completion-index",
    }
)
"""Labels that controllers give to each pod: with them, no two pods would have the same class."""
_MESSAGE_MAX: Final = 200


MALFORMED: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What decoding bytes of a stranger raises."""


def line_error(where: str, line: int, message: str) -> UnreadableError:
    """Return the error of a line, whose text may come from a stranger."""
    shown = one_line(message)[:_MESSAGE_MAX]
    return UnreadableError(shown, where=f"{where}:{line}", remedy="correct or remove the line")


def is_name(namespace: str, name: str) -> bool:
    """Return whether these can be the names of a namespace and a pod."""
    return bool(_NAME.fullmatch(namespace) and _NAME.fullmatch(name))


@dataclass(slots=True)
class CapturedPod:
    """A pod from its creation on; ``line`` is where it was created."""

    namespace: str
    name: str
    pod_class: TraceClass
    created: datetime
    line: int
    bound: datetime | None = None
    ended: datetime | None = None


@dataclass
class CapturedPods:
    """The pods of the file ``where``; equal classes are shared.

    ``left_out`` counts what is not in the trace, by reason, and ``notes`` are for the report.
    """

    where: str
    pods: list[CapturedPod] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    _classes: dict[bytes, TraceClass] = field(default_factory=dict)

    def class_of(
        self, metadata: Metadata, spec: PodSpec, owner: OwnerReference | None, line: int
    ) -> TraceClass:
        """Return the class of pods with these labels, annotations and spec.

        Raises:
            UnreadableError: a request is not an amount.
        """
        made = TraceClass(
            "",
            msgspec.structs.replace(spec, node_name=""),
            {k: v for k, v in sorted(metadata.labels.items()) if k not in _IDENTITIES},
            {k: v for k, v in sorted(metadata.annotations.items()) if k in DISRUPTION_ANNOTATIONS},
            None if owner is None else msgspec.structs.replace(owner, uid=""),
        )
        key = msgspec.json.encode(made)
        known = self._classes.get(key)
        if known is None:
            try:
                Pod(metadata=metadata, spec=spec).requests()
            except ValueError as error:
                raise line_error(self.where, line, f"a request: {error}") from error
            known = self._classes[key] = made
        return known

    def add(self, pod: CapturedPod) -> CapturedPod:
        """Add a pod.

        Raises:
            UnreadableError: there are too many.
        """
        self.expect_room(1, pod.line)
        self.pods.append(pod)
        return pod

    def expect_room(self, count: int, line: int) -> None:
        """Refuse more pods than a trace may have, before they are made.

        Raises:
            UnreadableError: they would be too many.
        """
        if len(self.pods) + count > PODS_MAX:
            raise UnreadableError(
                f"has more than {PODS_MAX:,} pods",
                where=f"{self.where}:{line}",
                remedy="split it into shorter captures",
            )

    def trace(self, begin: datetime, end: datetime) -> Trace:
        """Return the trace of a period.

        Raises:
            UnreadableError: it is too long.
        """
        seconds = (end - begin).total_seconds()
        if not 0 <= seconds <= SECONDS_MAX:
            raise UnreadableError(
                f"lasts {seconds:.0f} seconds, more than {SECONDS_MAX}",
                where=self.where,
                remedy="split it into shorter captures",
            )
        found = sorted((_traced(pod, begin) for pod in self.pods), key=_order)
        return Trace(
            tuple(with_unique_names(found)),
            round(seconds, SECONDS_DIGITS),
            begin=begin.astimezone(UTC),
        )

    def report(self, trace: Trace) -> str:
        """Return what was imported and what was not."""
        assert trace.begin is not None, "a capture has its beginning"
        end = trace.begin + timedelta(seconds=trace.seconds)
        number = format_count(len(trace.pods), "pod")
        lines = [
            f"Imported {number} from {format_time(trace.begin)} to {format_time(end)}.",
            *(f"Left out: {count:,} {why}." for why, count in sorted(self.left_out.items())),
            *self.notes,
        ]
        return "".join(f"{line}\n" for line in lines)


def _traced(pod: CapturedPod, begin: datetime) -> TracedPod:
    def seconds(at: datetime) -> float:
        return round(max((at - begin).total_seconds(), 0.0), SECONDS_DIGITS)

    created = seconds(pod.created)
    bound = None if pod.bound is None else max(seconds(pod.bound), created)
    ended = None if pod.ended is None else max(seconds(pod.ended), bound or created)
    return traced_pod(f"{pod.namespace}/{pod.name}", pod.pod_class, created, bound, ended)


def _order(traced: TracedPod) -> tuple[float, str]:
    return traced.created, traced.pod.key


def expect_years(times: Iterable[datetime], where: str, line: int) -> None:
    """Refuse times with which nothing can be computed.

    Raises:
        UnreadableError: a time is far away.
    """
    if any(at.year not in YEARS for at in times):
        raise line_error(where, line, f"a time before {YEARS.start} or after {YEARS.stop}")
