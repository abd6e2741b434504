"""Reads the series of kube-state-metrics from Prometheus, in windows that it can compute.

For each series and window only the necessary values are transferred: the last one, and when a pod
was first or last seen. There would be a thousand times as many samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from reconciler.backtest.imported import ImportPeriod
from reconciler.backtest.podseries import Family, PodSeries
from reconciler.backtest.trace import PODS_MAX, SECONDS_MAX
from reconciler.model.duration import parse_duration
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.model.text.quoting import quote_value
from reconciler.ports.metrics import Metrics, MetricSample, TooMuchDataError

WHERE: Final = "Prometheus"
POINTS_MAX: Final = 11_000
"""The maximum number of points of a series in a query to Prometheus."""
_STEP_MIN: Final = timedelta(seconds=1)
_STEP_MAX: Final = timedelta(hours=1)
_WINDOW_S: Final = 86_400
_WINDOW_S_MIN: Final = 600
"""A shorter window may lie between two scrapes."""
_MATCHER: Final = re.compile(
    r"""\s*[a-zA-Z_]\w*\s*(?:=~|!~|!=|=)\s*(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')\s*""",
    re.ASCII,
)
_POD: Final = ("namespace", "pod", "uid", "exported_namespace", "exported_pod", "exported_uid")
_CONTAINER: Final = (*_POD, "container", "exported_container")
_REQUEST: Final = (*_CONTAINER, "resource", "unit")
_KEPT_LABELS: Final[dict[Family, tuple[str, ...]]] = {
    Family.CREATED: _POD,
    Family.SCHEDULED: _POD,
    Family.COMPLETED: _POD,
    Family.DELETED: _POD,
    Family.INFO: (*_POD, "created_by_kind", "created_by_name"),
    Family.OWNER: (*_POD, "owner_kind", "owner_name", "owner_is_controller"),
    Family.REQUESTS: _REQUEST,
    Family.INIT_REQUESTS: _REQUEST,
    Family.INIT_INFO: (*_CONTAINER, "restart_policy"),
    Family.TOLERATIONS: (*_POD, "key", "operator", "value", "effect"),
    Family.NODE_SELECTORS: (),
    Family.LABELS: (),
    Family.ANNOTATIONS: (),
}
"""Metrics whose last value is read → the labels that are kept, all of them if none is named."""
_Query = Callable[[int], str]
"""Makes an expression over a number of seconds."""
_ONLY: Final = {Family.INIT_INFO: 'restart_policy="Always"'}


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of a period, with its end and without its beginning."""

    begin: int
    end: int

    @property
    def seconds(self) -> int:
        return self.end - self.begin

    def halves(self) -> tuple[_Window, _Window]:
        middle = self.begin + self.seconds // 2
        return _Window(self.begin, middle), _Window(middle, self.end)


def read_period(since: datetime, until: datetime, step: str) -> ImportPeriod:
    """Return the period of a trace, in whole seconds.

    Raises:
        UsageError: it is empty or too long, or the step is not a valid duration.
    """
    try:
        length = parse_duration(step)
    except ValueError as error:
        raise UsageError(str(error), where="--step") from error
    if not _STEP_MIN <= length <= _STEP_MAX or length.microseconds:
        raise UsageError(
            f"{step} is not between 1s and 1h, in whole seconds",
            where="--step",
            remedy="pass the interval at which kube-state-metrics is scraped",
        )
    begin, end = int(since.timestamp()), int(until.timestamp())
    if not 0 < end - begin <= SECONDS_MAX:
        raise UsageError(
            f"a trace from {since:%F %H:%M} to {until:%F %H:%M} UTC is empty or too long",
            where="--since",
            remedy="pass a time before --until, of the last 10 years",
        )
    return ImportPeriod(begin, end, int(length.total_seconds()))


def read_matchers(text: str) -> str:
    """Return label matchers without the braces that PromQL puts around them.

    Raises:
        UsageError: they are not matchers such as ``LABEL="VALUE"``, separated by commas.
    """
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1]
    position, found = 0, []
    while match := _MATCHER.match(inner, position):
        found.append(match[0].strip())
        position = match.end()
        if inner[position : position + 1] != ",":
            break
        position += 1
    if inner[position:].strip():
        raise UsageError(
            f"cannot be read from {quote_value(inner[position:], 40)} on",
            where="--match",
            remedy="""write label matchers, as in 'cluster="prod",namespace!~"kube-.*"'""",
        )
    return ",".join(found)


def read_pod_series(metrics: Metrics, period: ImportPeriod, matchers: str) -> PodSeries:
    """Return the series of the matching pods of a period from a metrics server.

    Raises:
        UnreadableError: it has no pods, or too many, or a query fails.
    """
    reader = _SeriesReader(metrics, period.step, matchers)
    begin = period.since
    length = max(min(_WINDOW_S, POINTS_MAX * period.step), period.step)
    while begin < period.until:
        end = min(begin + length, period.until)
        reader.read(_Window(begin, end))
        begin = end
    if not reader.series.pods:
        raise UnreadableError(
            f"has no pods in that period: {Family.CREATED}{{{matchers}}} is empty",
            where=WHERE,
            remedy="check --since and --match, and that it scrapes kube-state-metrics",
        )
    return reader.series


class _SeriesReader:
    """Queries the windows in sequence."""

    def __init__(self, metrics: Metrics, step: int, matchers: str) -> None:
        self.series = PodSeries()
        self._metrics, self._step, self._matchers = metrics, step, matchers

    def read(self, window: _Window) -> None:
        """Read a window; a window without pods is not queried further."""
        seen = list(self._samples(self._last_seen_query, window))
        created = list(self._samples(self._last_values_query(Family.CREATED), window))
        if not (seen or created):
            return
        series = self.series
        series.record_seen(seen)
        series.add(Family.CREATED, created)
        if series.first is None:
            series.record_first_sample(self._samples(self._first_sample_query, window))
        series.record_finished(self._samples(self._finished_query, window))
        for family in _KEPT_LABELS:
            if family is Family.OWNER and Family.INFO in series.families:
                continue  # it has the same facts
            if family is not Family.CREATED:
                series.add(family, self._samples(self._last_values_query(family), window))
        if len(series.pods) > PODS_MAX:
            raise UnreadableError(
                f"has more than {PODS_MAX:,} pods in that period",
                where=WHERE,
                remedy="pass a shorter --since, or --match",
            )

    def _samples(self, query: _Query, window: _Window) -> Iterator[MetricSample]:
        """Yield the samples of a window, halved while it is too large for one query."""
        try:
            yield from self._metrics.query(query(window.seconds), window.end)
        except TooMuchDataError:
            if window.seconds < 2 * max(_WINDOW_S_MIN, self._step):
                raise
            for half in window.halves():
                yield from self._samples(query, half)

    def _last_values_query(self, family: Family) -> _Query:
        def query(seconds: int) -> str:
            last = f"last_over_time({self._selector(family, _ONLY.get(family, ''))}[{seconds}s])"
            kept = _KEPT_LABELS[family]
            return f"max by ({', '.join(kept)}) ({last})" if kept else last

        return query

    def _last_seen_query(self, seconds: int) -> str:
        times = self._timestamp_range(self._selector(Family.CREATED), seconds)
        return f"max by ({', '.join(_POD)}) (max_over_time({times}))"

    def _first_sample_query(self, seconds: int) -> str:
        return (
            f"min(min_over_time({self._timestamp_range(self._selector(Family.CREATED), seconds)}))"
        )

    def _finished_query(self, seconds: int) -> str:
        final = self._selector(Family.PHASE, 'phase=~"Succeeded|Failed"')
        times = self._timestamp_range(f"{final} == 1", seconds)
        return f"min by ({', '.join(_POD)}) (min_over_time({times}))"

    def _timestamp_range(self, vector: str, seconds: int) -> str:
        return f"timestamp({vector})[{seconds}s:{self._step}s]"

    def _selector(self, family: Family, only: str = "") -> str:
        return f"{family}{{{','.join(filter(None, (self._matchers, only)))}}}"
