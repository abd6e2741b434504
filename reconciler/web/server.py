"""The HTTP server of a daemon, in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from reconciler.model.errors import UsageError
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.urls import is_loopback
from reconciler.web.dashboard import (
    Dashboard,
    DashboardAccess,
    dashboard_routes,
    with_access_control,
)
from reconciler.web.fleets import WatchedFleets, fleets_routes
from reconciler.web.health import DaemonHealth, ProbeResult
from reconciler.web.metrics import FleetMetrics

_PORT_MAX: Final = 65535
_BACKLOG: Final = 64
_CONNECTIONS_MAX: Final = 100
_CLOSE_S: Final = 5.0


PROBES: Final = frozenset({"/metrics", "/healthz", "/readyz"})
"""The paths that monitoring asks for, without authentication."""


def make_app(
    metrics: FleetMetrics, health: DaemonHealth, dashboard: Dashboard, access: DashboardAccess
) -> ASGIApp:
    """Return the application: metrics, health checks and, behind ``access``, the dashboard."""
    return _app(metrics.text, health.alive, health.ready, dashboard_routes(dashboard), access)


def make_fleets_app(fleets: WatchedFleets, access: DashboardAccess) -> ASGIApp:
    """Return the application of several fleets: the same paths, over all of them."""
    return _app(fleets.text, fleets.alive, fleets.ready, fleets_routes(fleets), access)


def _app(
    text: Callable[[], bytes],
    alive: Callable[[], ProbeResult],
    ready: Callable[[], ProbeResult],
    pages: Sequence[BaseRoute],
    access: DashboardAccess,
) -> ASGIApp:
    def show_metrics(_: Request) -> Response:
        return Response(text(), media_type=CONTENT_TYPE_LATEST)

    def healthz(_: Request) -> Response:
        return _probe_response(alive())

    def readyz(_: Request) -> Response:
        return _probe_response(ready())

    app = Starlette(
        routes=[
            Route("/metrics", show_metrics),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            *pages,
        ]
    )
    return with_access_control(app, access, PROBES)


def _probe_response(verdict: ProbeResult) -> Response:
    return PlainTextResponse(f"{verdict.reason}\n", status_code=200 if verdict.is_good else 503)


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; without a host, the loopback interface.

    ``*:8080`` and ``0.0.0.0:8080`` listen on all interfaces, ``[::]:8080`` with IPv6 as well.

    Raises:
        UsageError: it is not an address.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _PORT_MAX:
        raise UsageError(
            f"{quote_value(text, 80)} is not HOST:PORT",
            where="--listen",
            remedy="for example 127.0.0.1:8080, or *:8080 for all interfaces",
        )
    host = host.removeprefix("[").removesuffix("]")
    return {"": "127.0.0.1", "*": "0.0.0.0"}.get(host, host), int(port)  # noqa: S104 - asked for


def is_loopback_address(address: str) -> bool:
    """Return whether only this machine can connect to ``address``."""
    return is_loopback(parse_address(address)[0])


@contextmanager
def serve_in_thread(address: str, app: ASGIApp) -> Iterator[str]:
    """Serve ``app`` while the block runs; yield the URL.

    Raises:
        UsageError: the server cannot listen at ``address``.
    """
    with _open_listener(address) as listener:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
            limit_concurrency=_CONNECTIONS_MAX,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="http", daemon=True
        )
        thread.start()
        host, port = listener.getsockname()[:2]
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
        finally:
            server.should_exit = True
            thread.join(_CLOSE_S)


@contextmanager
def _open_listener(address: str) -> Iterator[socket.socket]:
    host, port = parse_address(address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:  # a label of a host name may be too long
        why = getattr(error, "strerror", None) or "the host name is not valid"
        raise UsageError(
            f"cannot listen on {address[:80]}: {why}",
            where="--listen",
            remedy="choose an address of this machine and a free port",
        ) from error
    with listener:
        yield listener
