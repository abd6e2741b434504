"""A Prometheus on a port of this machine: it evaluates the queries that the import makes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from reconciler.ports.metrics import MetricSample
from tests.httpserver import QuietHandler, serving_with

LOOKBACK_S = 300
"""How old the last sample of a series may be."""

Labels = Mapping[str, str]
Point = tuple[int, float | None]
"""When a sample was scraped and its value, None where the series became stale."""

_RANGE = re.compile(
    r"(?P<over>last|min|max)_over_time\("
    r"(?:timestamp\((?P<of>.*?)(?P<one> == 1)?\)\[(?P<sub>\d+)s:(?P<step>\d+)s\]"
    r"|(?P<raw>.*?)\[(?P<len>\d+)s\])\)"
)
_GROUPED = re.compile(r"(?P<by>min|max)(?: by \((?P<labels>[^)]*)\) )?\((?P<inner>.*)\)")
_SELECTOR = re.compile(r"(?P<name>\w+)\{(?P<matchers>.*)\}")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


@dataclass
class Recording:
    """The series of a server, and the queries that it received: expressions with their times.

    A range has its end, and with ``is_closed`` its beginning as well, as in Prometheus 2.
    """

    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[Point]] = field(default_factory=dict)
    requested: list[tuple[str, int]] = field(default_factory=list)
    is_closed: bool = False

    def add(self, name: str, labels: Labels, points: Iterable[Point]) -> None:
        """Add samples; those of a series must be in chronological order."""
        self.series.setdefault((name, tuple(sorted(labels.items()))), []).extend(points)

    def remove(self, *names: str) -> None:
        """Remove the series with these names."""
        for key in [key for key in self.series if key[0] in names]:
            del self.series[key]

    def query(self, expression: str, at: int) -> list[MetricSample]:
        self.requested.append((expression, at))
        grouped = _GROUPED.fullmatch(expression)
        if grouped is None:
            return [MetricSample(labels, value) for labels, value in self._range(expression, at)]
        kept = (grouped["labels"] or "").split(", ")
        choose = min if grouped["by"] == "min" else max
        groups: dict[tuple[tuple[str, str], ...], float] = {}
        for labels, value in self._range(grouped["inner"], at):
            key = tuple((k, v) for k, v in labels.items() if k in kept)
            groups[key] = choose(groups.get(key, value), value)
        return [MetricSample(dict(key), value) for key, value in groups.items()]

    def _range(self, expression: str, at: int) -> Iterator[tuple[dict[str, str], float]]:
        match = _RANGE.fullmatch(expression)
        assert match is not None, f"not a query of the import: {expression}"
        for labels, points in self._selected(match["of"] or match["raw"]):
            if match["raw"]:
                begin = at - int(match["len"]) - self.is_closed
                values = [v for t, v in points if begin < t <= at and v is not None]
            else:
                grid = _grid(at - int(match["sub"]) - self.is_closed, at, int(match["step"]))
                found = [(moment, _instant(points, moment)) for moment in grid]
                values = [
                    float(moment if match["one"] else point[0])
                    for moment, point in found
                    if point is not None and (point[1] == 1 or not match["one"])
                ]
            if values:
                reduce: Callable[[list[float]], float] = {
                    "last": lambda v: v[-1], "min": min, "max": max
                }[match["over"]]  # fmt: skip
                yield labels, reduce(values)

    def _selected(self, selector: str) -> Iterator[tuple[dict[str, str], list[Point]]]:
        match = _SELECTOR.fullmatch(selector)
        assert match is not None, f"not a selector: {selector}"
        matchers = _MATCHER.findall(match["matchers"])
        for (name, labels), points in self.series.items():
            if name == match["name"] and all(_matches(dict(labels), *m) for m in matchers):
                yield dict(labels), points


def _grid(begin: int, end: int, step: int) -> range:
    """Return the times of a subquery: multiples of its step, whatever its end."""
    return range((begin // step + 1) * step, end + 1, step)


def _instant(points: list[Point], moment: int) -> tuple[int, float] | None:
    last = next((p for p in reversed(points) if p[0] <= moment), None)
    if last is None or last[1] is None or last[0] <= moment - LOOKBACK_S:
        return None
    return last[0], last[1]


def _matches(labels: Labels, name: str, operator: str, text: str) -> bool:
    value = labels.get(name, "")
    same = re.fullmatch(text, value) is not None if "~" in operator else value == text
    return same is not operator.startswith("!")


def vector(samples: Iterable[MetricSample]) -> dict[str, Any]:
    """Return samples as Prometheus answers them."""
    result = [{"metric": dict(s.labels), "value": [0, str(s.value)]} for s in samples]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


Answer = tuple[int, bytes, dict[str, str]]


@dataclass
class Server:
    """A server with a recording. ``fault`` is called before each query and may answer it."""

    recording: Recording = field(default_factory=Recording)
    url: str = ""
    tokens: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    fault: Callable[[str], Answer | None] = lambda _expression: None

    def answer(self, expression: str, at: int) -> Answer:
        found = self.fault(expression)
        if found is not None:
            return found
        return 200, json.dumps(vector(self.recording.query(expression, at))).encode(), {}


@contextmanager
def serving(server: Server, certificate: Path | None = None) -> Iterator[Server]:
    """Serve on loopback while the block runs, over TLS with a certificate."""

    class Queries(QuietHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            requested = parse_qs(self.rfile.read(length).decode())
            server.tokens.append(self.headers.get("Authorization"))
            server.paths.append(self.path)
            status, content, headers = server.answer(
                requested["query"][0], int(requested["time"][0])
            )
            self.reply(status, content, headers)

    with serving_with(Queries, certificate) as server.url:
        yield server
