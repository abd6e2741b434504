"""Queries of Prometheus: retries, rejections, and error messages."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from reconciler.adapters.prometheus import ATTEMPTS, Prometheus
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.ports.metrics import MetricSample, TooMuchDataError
from tests.cli.prometheusapi import Answer, Server, serving, vector

UP = [MetricSample({"job": "a"}, 1.0)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(Server()) as found:
        yield found


def answers(server: Server, *queue: Answer) -> None:
    """Make the server return these answers, and repeat the last one."""
    left = list(queue)
    server.fault = lambda _: left.pop(0) if len(left) > 1 else left[0]


def ok(samples: list[MetricSample], **more: object) -> Answer:
    return 200, json.dumps({**vector(samples), **more}).encode(), {}


def failed(status: int, kind: str, text: str) -> Answer:
    body = {"status": "error", "errorType": kind, "error": text}
    return status, json.dumps(body).encode(), {}


def refused(server: Server, token: str = "") -> UnreadableError:
    with pytest.raises(UnreadableError) as caught:
        Prometheus(server.url, token, lambda _: None).query("up", 5)
    return caught.value


def test_a_query_sends_the_token_and_returns_the_vector(server: Server) -> None:
    answers(server, ok([*UP, MetricSample({}, float("inf"))]))
    assert Prometheus(server.url + "/prefix/", "t0ken").query("up", 5) == [
        *UP,
        MetricSample({}, float("inf")),
    ]
    assert (server.tokens, server.paths) == (["Bearer t0ken"], ["/prefix/api/v1/query"])


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_temporary_errors_are_retried_after_growing_delays(server: Server, status: int) -> None:
    busy = (status, b"busy", {})
    answers(server, busy, busy, busy, ok(UP))
    waited: list[float] = []
    assert Prometheus(server.url, wait=waited.append).query("up", 5) == UP
    assert waited == [1.0, 2.0, 4.0]
    answers(server, busy)
    server.paths.clear()
    assert f"HTTP {status}" in str(refused(server))
    assert len(server.paths) == ATTEMPTS


def test_the_delay_requested_by_the_server_is_used(server: Server) -> None:
    answers(server, (429, b"", {"Retry-After": "7"}), (429, b"", {"Retry-After": "9999"}), ok(UP))
    waited: list[float] = []
    Prometheus(server.url, wait=waited.append).query("up", 5)
    assert waited == [7.0, 60.0]


def test_an_unreachable_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(Server()) as gone:
        url = gone.url
    waited: list[float] = []
    with pytest.raises(UnreadableError, match="no answer") as caught:
        Prometheus(url, wait=waited.append).query("up", 5)
    assert f"POST {url}/api/v1/query" in str(caught.value)
    assert len(waited) == ATTEMPTS - 1


NO_NUMBER = (
    b'{"status":"success","data":{"resultType":"vector","result":'
    b'[{"metric":{},"value":[1,"one"]}]}}'
)
REFUSALS: dict[str, tuple[Answer, str, str]] = {
    "bad query": (failed(400, "bad_data", "parse\nerror"), "400: parse error", "check --match"),
    "no token": ((401, b"", {}), "HTTP 401: Unauthorized", "set PROMETHEUS_TOKEN"),
    "another server": ((404, b"<html>", {}), "404: Not Found", "the URL without /api/v1"),
    "unknown status": ((799, b"", {}), "HTTP 799: no reason", "later"),
    "a login": ((302, b"", {"Location": "/login?to=x"}), "to http://127.0.0.1", "not followed"),
    "not JSON": ((200, b"<html>", {}), "the answer is not one of Prometheus", "/api/v1"),
    "JSON of others": ((200, b'{"status": 1}', {}), "not one of Prometheus", "/api/v1"),
    "a matrix": (
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}', {}),
        "not one of Prometheus",
        "/api/v1",
    ),
    "no number": ((200, NO_NUMBER, {}), "could not convert", "/api/v1"),
    "nested": ((200, b'{"x":' + b"[" * 200_000, {}), "not one of Prometheus", "/api/v1"),
    "an error with 200": (failed(200, "internal", "broken"), 'status "error": broken', "server"),
}


@pytest.mark.parametrize(("answer", "problem", "remedy"), REFUSALS.values(), ids=REFUSALS)
def test_an_error_is_one_line_with_cause_address_and_advice(
    answer: Answer, problem: str, remedy: str, server: Server
) -> None:
    answers(server, answer)
    error = refused(server)
    assert problem in error.message
    assert error.where == f"POST {server.url}/api/v1/query"
    assert remedy in error.remedy
    assert "\n" not in str(error)
    assert len(str(error)) < 700
    assert len(server.paths) == 1, "trying it again would not help"


def test_a_rejected_token_is_reported_with_advice(server: Server) -> None:
    answers(server, (403, b"", {}))
    assert refused(server, "t0ken").remedy == "check PROMETHEUS_TOKEN"


@pytest.mark.parametrize(
    "answer",
    [
        failed(422, "execution", "query processing would load too many samples"),
        failed(503, "timeout", "query timed out"),
        (413, b"", {}),
        ok(UP * 11),
        (200, b"x" * 5000, {}),
    ],
    ids=["samples", "timeout", "entity", "series", "bytes"],
)
def test_too_much_data_has_its_own_error(answer: Answer, server: Server) -> None:
    answers(server, answer)
    with pytest.raises(TooMuchDataError):
        Prometheus(server.url, bytes_max=4000, series_max=10).query("up", 5)
    assert len(server.paths) == 1


def test_warnings_are_kept_once(server: Server) -> None:
    answers(server, ok(UP, warnings=["store\n\x1b[2J down"]))
    client = Prometheus(server.url)
    client.query("up", 5)
    client.query("up", 6)
    assert client.warnings == ["store \\u001b[2J down"]
    answers(server, ok(UP, warnings=[f"{number} {'x' * 1000}" for number in range(1000)]))
    client.query("up", 7)
    assert len(client.warnings) == 10
    assert max(map(len, client.warnings)) <= 301


@pytest.mark.parametrize("token", ["a b", "a\nX-Scope-OrgID: other", "ü"])
def test_a_token_invalid_in_a_header_is_rejected(token: str) -> None:
    with pytest.raises(UsageError, match="PROMETHEUS_TOKEN") as caught:
        Prometheus("https://127.0.0.1", token)
    assert token not in str(caught.value)
