"""The HTTP server of a daemon, in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from reconciler.model.errors import UsageError
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.urls import is_loopback
from reconciler.web.connections import TimedConnection
from reconciler.web.dashboard import (
    CLOSING,
    Dashboard,
    DashboardAccess,
    dashboard_routes,
    with_access_control,
)
from reconciler.web.fleets import WatchedFleets, fleets_routes
from reconciler.web.health import DaemonHealth, ProbeResult

_PORT_MAX: Final = 65535
_BACKLOG: Final = 64
_CLOSE_S: Final = 5.0
_GRACE_S: Final = 3
"""How long requests may take to end when the server closes; a stream looks once a second."""
_IDLE_S: Final = 5


PROBES: Final = frozenset({"/metrics", "/healthz", "/readyz"})
"""The paths that monitoring asks for, without authentication."""


class MetricsText(Protocol):
    """Metrics that are served."""

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""


def make_app(
    metrics: MetricsText,
    health: DaemonHealth,
    dashboard: Dashboard,
    access: DashboardAccess,
    pages: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """Return the application: metrics, health checks and, behind ``access``, the dashboard.

    ``pages`` are added to it, and replace those of the same path.
    """
    return _app(metrics.text, health, [*pages, *dashboard_routes(dashboard)], access)


def make_fleets_app(fleets: WatchedFleets, access: DashboardAccess) -> ASGIApp:
    """Return the application of several fleets: the same paths, over all of them."""
    return _app(fleets.text, fleets, fleets_routes(fleets), access)


class Probed(Protocol):
    """What a probe asks."""

    def alive(self) -> ProbeResult:
        """Return whether the process works."""

    def ready(self) -> ProbeResult:
        """Return whether the process does its work."""


def make_probes_app(probed: Probed) -> ASGIApp:
    """Return the application of a listener for probes alone: health checks, answered with codes."""
    closed = DashboardAccess()
    return with_access_control(Starlette(routes=_probe_routes(probed, closed)), closed, PROBES)


def _app(
    text: Callable[[], bytes], probed: Probed, pages: Sequence[BaseRoute], access: DashboardAccess
) -> ASGIApp:
    def show_metrics(_: Request) -> Response:
        return Response(text(), media_type=CONTENT_TYPE_LATEST)

    routes = [Route("/metrics", show_metrics), *_probe_routes(probed, access), *pages]
    return with_access_control(Starlette(routes=routes), access, PROBES)


def _probe_routes(probed: Probed, access: DashboardAccess) -> list[BaseRoute]:
    """Return the health checks; only who may see the dashboard gets more than a code.

    They are answered in the thread of the server, and so do not wait for pages.
    """

    def answer(request: Request, result: ProbeResult) -> Response:
        text = result.reason if access.allows(request) else result.code
        return PlainTextResponse(f"{text}\n", status_code=200 if result.is_good else 503)

    async def healthz(request: Request) -> Response:
        return answer(request, probed.alive())

    async def readyz(request: Request) -> Response:
        return answer(request, probed.ready())

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def dashboard_access(
    address: str, token: str, header: str, hosts: Iterable[str]
) -> DashboardAccess:
    """Return who may see the dashboard at ``address``, and under which names it is reached."""
    names = {parse_address(address)[0], *hosts}
    return DashboardAccess(
        is_loopback_address(address), token, header, frozenset(name.lower() for name in names)
    )


def parse_address(text: str, option: str = "--listen") -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; without a host, the loopback interface.

    ``*:8080`` and ``0.0.0.0:8080`` listen on all interfaces, ``[::]:8080`` with IPv6 as well.

    Raises:
        UsageError: it is not an address.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _PORT_MAX:
        raise UsageError(
            f"{quote_value(text, 80)} is not HOST:PORT",
            where=option,
            remedy="for example 127.0.0.1:8080, or *:8080 for all interfaces",
        )
    host = host.removeprefix("[").removesuffix("]")
    return {"": "127.0.0.1", "*": "0.0.0.0"}.get(host, host), int(port)  # noqa: S104 - asked for


def is_loopback_address(address: str) -> bool:
    """Return whether only this machine can connect to ``address``."""
    return is_loopback(parse_address(address)[0])


@contextmanager
def serve_in_thread(address: str, app: ASGIApp, *, option: str = "--listen") -> Iterator[str]:
    """Serve ``app`` while the block runs; yield the URL. ``option`` names the address in errors.

    Raises:
        UsageError: the server cannot listen at ``address``.
    """
    with _open_listener(address, option) as listener:
        config = uvicorn.Config(
            _with_closing(app, lambda: server.should_exit),
            log_config=None,
            log_level="error",  # whatever a client sends adds nothing to the log
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            timeout_keep_alive=_IDLE_S,
            http=TimedConnection,
            ws="none",
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


def _with_closing(app: ASGIApp, is_closing: Callable[[], bool]) -> ASGIApp:
    """Return an app whose requests know whether the server is closing, which ends streams."""

    async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, CLOSING: is_closing}, receive, send)

    return asgi


@contextmanager
def _open_listener(address: str, option: str) -> Iterator[socket.socket]:
    host, port = parse_address(address, option)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:  # a label of a host name may be too long
        why = getattr(error, "strerror", None) or "the host name is not valid"
        raise UsageError(
            f"cannot listen on {address[:80]}: {why}",
            where=option,
            remedy="choose an address of this machine and a free port",
        ) from error
    with listener:
        yield listener
