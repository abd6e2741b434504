"""Attacks by a Prometheus server, or by writers of its series, on the import of a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.adapters.prometheus import Prometheus
from reconciler.cli.main import main
from reconciler.ports.metrics import TooMuchDataError
from tests.cli.prometheusapi import Server, serving
from tests.cli.recordedpods import RecordedPod, record
from tests.hostile.threats import Threat, attack

TOKEN = "s3cr3t-t0ken"
PERIOD = ("--since", "2027-01-15T08:00:00Z", "--until", "2027-01-15T09:00:00Z")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("PROMETHEUS_TOKEN", TOKEN)
    with serving(Server()) as found:
        record(found.recording, RecordedPod("api"), seconds=3600)
        yield found


def run(url: str, *more: str) -> int:
    return main(["trace", "import", "--prometheus", url, *PERIOD, *more])


@attack(Threat.SECRETS, "a Prometheus that redirects a query with its token to another host")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(
    status: int, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Server()) as thief:
        place = f"{thief.url.replace('127.0.0.1', 'localhost')}/take?code=hidden"
        server.fault = lambda _: (status, b"", {"Location": place})
        assert run(server.url) == 1
        assert thief.paths == []
    shown = capsys.readouterr().err
    assert f"HTTP {status}: redirects to http://localhost" in shown
    assert "redirects are not followed" in shown
    assert "hidden" not in shown
    assert TOKEN not in shown


@attack(Threat.SECRETS, "a Prometheus whose errors and warnings repeat the token")
@pytest.mark.parametrize("status", [200, 400, 422, 503])
def test_the_token_is_not_printed(
    status: int, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"status": "error", "errorType": "timeout", "error": f"Authorization: Bearer {TOKEN}"}
    server.fault = lambda _: (status, json.dumps(body).encode(), {})
    assert run(server.url, "--debug") == 1
    server.fault = lambda _: None
    answer = server.answer
    server.answer = lambda query, at: warned(answer(query, at)[1])  # type: ignore[method-assign]
    assert run(server.url, "--debug") == 0
    shown = capsys.readouterr()
    assert "Bearer ***" in shown.err
    assert "Warning: Prometheus: seen with ***" in shown.err
    assert TOKEN not in shown.err + shown.out


def warned(content: bytes) -> tuple[int, bytes, dict[str, str]]:
    data = {**json.loads(content), "warnings": [f"seen with {TOKEN}"]}
    return 200, json.dumps(data).encode(), {}


@attack(Threat.SECRETS, "a Prometheus URL with a password, or one that discloses the token")
@pytest.mark.parametrize(
    "url", ["https://u:hunter2@127.0.0.1:1", "https://hunter2@h/", "http://h/hunter2?x", "http://h"]
)
def test_an_address_that_would_disclose_secrets_is_rejected(
    url: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(url, "--debug") == 1
    shown = capsys.readouterr().err
    assert "--prometheus: " in shown
    assert "hunter2@" not in shown
    assert TOKEN not in shown


@attack(Threat.SECRETS, "a server with another certificate in place of Prometheus")
def test_the_certificate_is_verified_before_the_token_is_sent(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_PROXY", "localhost")
    monkeypatch.setenv("PROMETHEUS_TOKEN", TOKEN)
    with serving(Server(), certificate) as other:
        record(other.recording, RecordedPod("api"), seconds=3600)
        assert run(other.url) == 1
        assert other.tokens == []
        assert "its certificate cannot be verified" in capsys.readouterr().err
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert run(other.url) == 0
        assert set(other.tokens) == {f"Bearer {TOKEN}"}


@attack(Threat.EXHAUSTION, "a Prometheus with an endless, a huge or a deeply nested response")
@pytest.mark.parametrize("content", [b"x" * 100_000, b'{"data":' + b"[" * 90_000], ids=len)
def test_the_size_of_an_answer_is_limited(content: bytes, server: Server) -> None:
    server.fault = lambda _: (200, content, {})
    with pytest.raises(TooMuchDataError, match="more than 50,000 bytes"):
        Prometheus(server.url, bytes_max=50_000).query("up", 1)
    assert run(server.url) == 1


@attack(Threat.OUTPUT, "series whose pods, labels and resources contain terminal escape sequences")
def test_names_of_series_are_rendered_as_text(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[2J\n::error::pwned"
    pod = RecordedPod("worse", requests={f"cpu{evil}": 1}, selector={evil: "x", "a_b\x1b": "x"})
    for each in (pod, RecordedPod(f"pod{evil}"), RecordedPod("p", namespace=f"n{evil}")):
        record(server.recording, each, seconds=3600)
    assert run(server.url) == 0
    shown = capsys.readouterr()
    assert "Left out: 2 with an invalid name." in shown.err
    for text in (shown.err, shown.out):
        assert "\x1b" not in text
        assert "\n::error" not in text
