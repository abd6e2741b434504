"""Traces of a daemon, as a collector receives them."""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from reconciler.adapters.threads import threaded_calls
from reconciler.assembly import monitoring
from reconciler.assembly.monitoring import export_traces
from reconciler.engine.reconcile import Mandate, reconcile
from reconciler.installation import install_remedy
from tests.engine.faults import three_nodes
from tests.engine.world import TAGS

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Collector:
    def __init__(self) -> None:
        self.url = ""
        self.resource: dict[str, str] = {}
        self.spans: dict[str, Span] = {}

    def receive(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            self.resource |= {a.key: a.value.string_value for a in group.resource.attributes}
            for scope in group.scope_spans:
                self.spans |= {span.name: span for span in scope.spans}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    state = Collector()

    class Traces(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            state.receive(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Traces) as listening:
        state.url = f"http://127.0.0.1:{listening.server_port}"
        for name in (ENDPOINT, "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(ENDPOINT, state.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        thread = threading.Thread(target=listening.serve_forever, args=(0.02,))
        thread.start()
        yield state
        listening.shutdown()
        thread.join()


def test_a_pass_its_steps_and_its_calls_are_one_trace(collector: Collector) -> None:
    with export_traces("shop", {ENDPOINT: collector.url}) as traces:
        assert traces is not None
        traces.pass_started()
        with traces.span("observe"):
            traces.record_call("ec2", "DescribeInstances", "ok", 0.25)
            traces.record_call("ec2", "CreateFleet", "RequestLimitExceeded", 0.1)
        traces.pass_ended({"reconciler.actions": 2})
        traces.pass_started()
        traces.pass_failed("EC2 did not answer")
    observe, call = collector.spans["observe"], collector.spans["ec2 DescribeInstances"]
    assert call.parent_span_id == observe.span_id
    assert call.end_time_unix_nano - call.start_time_unix_nano == 250_000_000
    throttled = collector.spans["ec2 CreateFleet"]
    assert throttled.status.code == throttled.status.STATUS_CODE_ERROR
    assert collector.resource["service.name"] == "reconciler"
    assert collector.resource["reconciler.fleet"] == "shop"
    assert collector.spans["pass"].status.message == "EC2 did not answer"


def test_the_first_pass_ends_before_the_second_begins(collector: Collector) -> None:
    with export_traces("shop", {ENDPOINT: collector.url}) as traces:
        assert traces is not None
        for step in ("first", "second"):
            traces.pass_started()
            with traces.span(step):
                pass
            traces.pass_ended({})
    assert len({collector.spans[step].trace_id for step in ("first", "second")}) == 2


@pytest.mark.parametrize(
    "environ", [{}, {ENDPOINT: ""}, {ENDPOINT: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}]
)
def test_without_an_endpoint_nothing_is_sent(environ: dict[str, str]) -> None:
    with export_traces("shop", environ) as traces:
        assert traces is None


def test_without_the_extra_the_daemon_runs_and_the_reason_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(monitoring, "_is_installed", lambda: False)
    with caplog.at_level(logging.WARNING), export_traces("shop", {ENDPOINT: "http://x"}) as traces:
        assert traces is None
    assert install_remedy("otel") in caplog.text


def test_every_step_of_a_real_pass_is_a_span_of_it(collector: Collector) -> None:
    engine = three_nodes().engine()
    with export_traces("shop", {ENDPOINT: collector.url}) as traces:
        assert traces is not None
        steps: list[str] = []

        def span(name: str) -> AbstractContextManager[object]:
            steps.append(name)
            return traces.span(name)

        ports = replace(engine.ports, span=span)
        traces.pass_started()
        reconcile(ports, engine.source.read(), Mandate(TAGS))
        traces.pass_ended({})
    whole = collector.spans["pass"]
    assert {"recover", "observe", "collect", "plan", "act"} < set(steps)
    assert len(steps) == len(set(steps))
    for step in steps:
        assert collector.spans[step].parent_span_id == whole.span_id


def test_a_call_on_another_thread_belongs_to_the_step_that_makes_it(collector: Collector) -> None:
    with export_traces("shop", {ENDPOINT: collector.url}) as traces, threaded_calls() as calls:
        assert traces is not None
        traces.pass_started()
        with traces.span("drain"):
            calls.call_all(
                {"x": lambda: traces.record_call("kubernetes", "POST evictions", "ok", 0.1)}
            )
        traces.pass_ended({})
    call = collector.spans["kubernetes POST evictions"]
    assert call.parent_span_id == collector.spans["drain"].span_id
