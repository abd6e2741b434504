"""OpenTelemetry traces of a daemon: a span for each pass, its steps, and the calls of APIs.

The standard variables configure the export (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME``
and so on). Without an endpoint, nothing is loaded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DISABLED: Final = "OTEL_SDK_DISABLED"
_PACKAGE: Final = "opentelemetry.exporter.otlp.proto.http"
_LOG: Final = logging.getLogger(__name__)


@dataclass
class PassTraces:
    """The spans of the passes of one daemon; the loop's thread opens and ends them."""

    tracer: Tracer
    fleet: str = ""
    _open: AbstractContextManager[Span] | None = field(default=None, init=False)

    def another(self, fleet: str) -> PassTraces:
        """Return the spans of one fleet among several of a process."""
        return PassTraces(self.tracer, fleet)

    def span(self, name: str) -> AbstractContextManager[object]:
        """Return a span around a step of a pass."""
        return self.tracer.start_as_current_span(name)

    def started(self) -> None:
        """Open the span of a pass."""
        attributes = {"reconciler.fleet": self.fleet} if self.fleet else None
        self._open = self.tracer.start_as_current_span("pass", attributes=attributes)
        self._open.__enter__()

    def ended(self, attributes: Mapping[str, str | int | float]) -> None:
        """End the span of the pass with what it decided."""
        from opentelemetry.trace import get_current_span

        if self._open is not None:
            get_current_span().set_attributes(attributes)
            self._open.__exit__(None, None, None)
            self._open = None

    def failed(self, problem: str) -> None:
        """End the span of a pass that failed."""
        from opentelemetry.trace import Status, StatusCode, get_current_span

        if self._open is not None:
            get_current_span().set_status(Status(StatusCode.ERROR, problem))
            self.ended({})

    def called(self, service: str, operation: str, outcome: str, seconds: float) -> None:
        """Add the span of a call that has ended now (``ports.progress.CallMeter``)."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        now = time.time_ns()
        span = self.tracer.start_span(
            f"{service} {operation}",
            kind=SpanKind.CLIENT,
            attributes={"rpc.service": service, "rpc.method": operation},
            start_time=now - int(seconds * 1e9),
        )
        if outcome != "ok":
            span.set_attribute("error.type", outcome)
            span.set_status(Status(StatusCode.ERROR, outcome))
        span.end(now)


@contextmanager
def traced(fleet: str, environ: Mapping[str, str]) -> Iterator[PassTraces | None]:
    """Export traces while the block runs; None where no endpoint is set."""
    endpoint = next((name for name in ENDPOINTS if environ.get(name)), "")
    if not endpoint or environ.get(_DISABLED, "").lower() == "true":
        yield None
        return
    if not _is_installed():
        # Operators of OpenTelemetry set the variable in every pod: no reason not to start.
        _LOG.warning("%s is set, but no traces are sent: install `reconciler[otel]`", endpoint)
        yield None
        return
    provider = _provider(fleet)
    try:
        yield PassTraces(provider.get_tracer("reconciler"))
    finally:
        provider.shutdown()


def _is_installed() -> bool:
    try:
        return find_spec(_PACKAGE) is not None
    except ModuleNotFoundError:
        return False


def _provider(fleet: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from reconciler import __version__

    ours = {"service.name": "reconciler", "service.version": __version__}
    if fleet:
        ours["reconciler.fleet"] = fleet
    resource = Resource(ours).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
