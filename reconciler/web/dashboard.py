"""The read-only dashboard of a daemon: pages that are rendered on the server and work offline.

Nothing is fetched from elsewhere, no page changes anything, and the content security policy allows
only files of this server. Everything that comes from a repository, a cluster or AWS is escaped.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from threading import Lock
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reconcile import Pass
from reconciler.engine.shown.past import CommitView
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.duration import format_duration, iso_duration
from reconciler.model.text.counting import format_count
from reconciler.model.text.identifiers import short_commit
from reconciler.model.text.money import format_whole_dollars
from reconciler.model.text.times import format_seconds
from reconciler.model.text.urls import is_loopback
from reconciler.model.text.visible import escape_invisible
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.render import wording
from reconciler.ports.progress import EventKind, Progress
from reconciler.web.costs import cost_page
from reconciler.web.health import DaemonHealth
from reconciler.web.labels import label_of
from reconciler.web.view import (
    CostCurve,
    CostSample,
    FleetView,
    cost_curve,
    fleet_view,
    matching_nodes,
)

HERE: Final = Path(__file__).parent
EVENTS_MAX: Final = 500
PAGE_SIZE: Final = 200
_SAMPLES_MAX: Final = 1_000
"""How many changes of the cost are kept."""
_STREAM_PAUSE_S: Final = 1.0
CLOSING: Final = "reconciler.closing"
"""The key in the scope of a request of a function that tells whether the server is closing."""
_COMMENT_EVERY: Final = 15
_MINUTE: Final = timedelta(minutes=1)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_LAST: Final = {**_HEADERS, "Connection": "close"}
_BODY: Final = frozenset({"content-length", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class DashboardAccess:
    """Who may see the dashboard.

    A request needs the ``token`` as a bearer token or as the password of basic authentication, or
    the ``header`` in which a proxy in front names the user that it has authenticated. ``is_open``
    allows everyone, as on loopback. ``hosts`` are the names under which users reach the server,
    besides those of loopback, in lower case.
    """

    is_open: bool = False
    token: str = ""
    header: str = ""
    hosts: frozenset[str] = frozenset()

    @property
    def is_possible(self) -> bool:
        """Whether access can be granted at all."""
        return self.is_open or bool(self.token or self.header)

    def allows(self, request: Request) -> bool:
        """Return whether a request may see the dashboard."""
        if self.is_open:
            return True
        if self.header and request.headers.get(self.header):
            return True
        return self.has_token(request)

    def has_token(self, request: Request) -> bool:
        """Return whether a request has the token."""
        given = _token_from_header(request.headers.get("Authorization", ""))
        return bool(self.token) and hmac.compare_digest(given, self.token.encode())

    def accepts_host(self, request: Request) -> bool:
        """Return whether a request was made for a name of this server.

        A page of a stranger can have a name of its own resolved to this address, and then belongs
        to the same origin as the dashboard for the browser that shows it (DNS rebinding). A browser
        always sends the name. An address has no resolution, and only a server that this machine
        alone can reach expects none but its own.
        """
        host = request.headers.get("Host")
        if host is None:
            return True
        name = _host_name(host)
        if name in self.hosts or is_loopback(name):
            return True
        return not self.is_open and _is_ip_address(name)


def _host_name(host: str) -> str:
    """Return the name in a Host header, in lower case and without the port."""
    name, colon, port = host.strip().rpartition(":")
    if not colon or not port.isdigit():
        name = host.strip()
    if name.startswith("[") and name.endswith("]"):
        return name[1:-1].lower()
    return name.lower().removesuffix(".")


def _is_ip_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _token_from_header(authorization: str) -> bytes:
    """Return the bearer token or the password of basic authentication, empty without one."""
    scheme, _, value = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return value.encode()
        case "basic":
            try:
                return base64.b64decode(value, validate=True).partition(b":")[2]
            except ValueError:
                return b""
        case _:
            return b""


class Dashboard:
    """What the pages show; the loop writes it, and the server's thread reads it."""

    def __init__(
        self,
        fleet: str,
        health: DaemonHealth,
        *,
        is_one_of_several: bool = False,
        is_of_karpenter: bool = False,
    ) -> None:
        self.fleet = fleet
        self._is_one_of_several = is_one_of_several
        self._is_of_karpenter = is_of_karpenter
        self._expected: tuple[str, ...] = ()
        self._health = health
        self._lock = Lock()
        self._events: deque[Progress] = deque(maxlen=EVENTS_MAX)
        self._last: tuple[PlannedFleet, Pass, Inputs | None] | None = None
        self._view: FleetView | None = None
        self._commits: tuple[CommitView, ...] = ()
        self._titles: dict[str, str] = {}
        self._invalid: Progress | None = None
        self._samples: list[CostSample] = []
        self._serial = 0

    @property
    def serial(self) -> int:
        """A number that grows with every change."""
        return self._serial

    def show_pass(
        self,
        desired: PlannedFleet,
        result: Pass,
        commits: tuple[CommitView, ...] = (),
        inputs: Inputs | None = None,
    ) -> None:
        """Show a pass, and the commits under which the fleet was changed.

        With the ``inputs`` of its plan, it also shows what consolidation does later.
        """
        with self._lock:
            self.fleet = desired.settings.fleet
            self._commits = commits
            self._titles[desired.revision] = desired.title
            while len(self._titles) > EVENTS_MAX:
                del self._titles[next(iter(self._titles))]
            self._last, self._view = (desired, result, inputs), None
            self._record_cost(CostSample(result.seen.at, result.plan.cost.before))
            self._serial += 1

    def show_expected(self, actions: tuple[str, ...]) -> None:
        """Show what Karpenter is expected to do next, in words."""
        with self._lock:
            self._expected = actions
            self._serial += 1

    def _record_cost(self, sample: CostSample) -> None:
        """Keep the cost where it changes; of too many changes, every second one."""
        samples = self._samples
        if samples and samples[-1].per_hour == sample.per_hour:
            return
        samples.append(sample)
        if len(samples) > _SAMPLES_MAX:
            self._samples = [*samples[:-1:2], samples[-1]]

    def cost_curve(self) -> CostCurve | None:
        """Return the cost since this process has shown passes."""
        with self._lock:
            return cost_curve(self._samples, self._last[1].seen.at) if self._last else None

    def record_event(self, progress: Progress) -> None:
        """Show an event."""
        with self._lock:
            self._events.appendleft(progress)
            self._serial += 1
            match progress.kind:
                case EventKind.STANDBY:  # another process acts, and shows it
                    self._last = self._view = None
                    self._commits = ()
                case EventKind.INVALID_REVISION:
                    since = self._invalid.at if self._invalid is not None else progress.at
                    self._invalid = replace(progress, at=since)
                case EventKind.REVISION:
                    self._invalid = None

    def view(self) -> FleetView | None:
        """Return the data of the last pass, None before the first."""
        with self._lock:
            if self._view is None and self._last is not None:
                self._view = fleet_view(*self._last)
            return self._view

    def events(self) -> list[Progress]:
        """Return the last events, newest first."""
        with self._lock:
            return list(self._events)

    def commits(self) -> tuple[CommitView, ...]:
        """Return what was done, by commit, newest first."""
        with self._lock:
            return self._commits

    def titles(self) -> dict[str, str]:
        """Return the subject and the author of the commits since this process has shown passes."""
        with self._lock:
            return dict(self._titles)

    def invalid(self) -> Progress | None:
        """Return why the newest commit is not in effect, and since when; None if it is."""
        with self._lock:
            return self._invalid

    def page(self, name: str, request: Request, **more: object) -> Response:
        """Return a page."""
        return render_page(
            name,
            request,
            serial=self.serial,  # read first: what changes meanwhile is reported to the page
            fleet=self.fleet,
            view=self.view(),
            ready=self._health.ready(),
            invalid=self.invalid(),
            is_one_of_several=self._is_one_of_several,
            is_of_karpenter=self._is_of_karpenter,
            expected=self._expected,
            **more,
        )


def render_page(name: str, request: Request, **facts: object) -> Response:
    """Return a page.

    The links of its fleet begin with ``root``, and the list of several fleets is at ``top``.
    """
    root = request.scope.get("root_path", "")
    top = request.scope.get("app_root_path", root)
    text = _PAGES.get_template(f"{name}.html").render(page=name, root=root, top=top, **facts)
    return HTMLResponse(text)


def static_files() -> StaticFiles:
    """Return the files that the pages use."""
    return StaticFiles(directory=HERE / "static")


def stream_changes(serial: Callable[[], int], request: Request) -> Response:
    """Return a stream of server-sent events: one whenever the serial has changed.

    The first comes at once if it has changed since the page was made (``since``), or since the last
    event that the browser has seen.
    """
    return StreamingResponse(_change_events(serial, request), media_type="text/event-stream")


def dashboard_routes(dashboard: Dashboard) -> list[BaseRoute]:
    """Return the routes of the dashboard."""

    def overview(request: Request) -> Response:
        return dashboard.page(
            "overview", request, events=dashboard.events()[:12], curve=dashboard.cost_curve()
        )

    def nodes(request: Request) -> Response:
        view = dashboard.view()
        query = {key: request.query_params.get(key, "") for key in ("pool", "state", "q")}
        wanted = query["q"].strip().lower()
        chosen = matching_nodes(view.nodes if view else (), query["pool"], query["state"], wanted)
        last = max(0, (len(chosen) - 1) // PAGE_SIZE)
        page = min(_page_number(request), last)
        shown = chosen[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]
        return dashboard.page(
            "nodes",
            request,
            nodes=shown,
            total=len(chosen),
            number=page,
            last=last,
            query=query,
        )

    def events(request: Request) -> Response:
        return dashboard.page("events", request, events=dashboard.events())

    def history(request: Request) -> Response:
        return dashboard.page(
            "history", request, commits=dashboard.commits(), titles=dashboard.titles()
        )

    async def stream(request: Request) -> Response:
        return stream_changes(lambda: dashboard.serial, request)

    return [
        Route("/", overview),
        Route("/nodes", nodes),
        Route("/costs", cost_page(dashboard.view, dashboard.page)),
        Route("/events", events),
        Route("/history", history),
        Route("/stream", stream),
        Mount("/static", static_files()),
    ]


async def _change_events(serial: Callable[[], int], request: Request) -> AsyncIterator[str]:
    """Yield an event for each change, and a comment regularly in between.

    The stream ends when the browser or the server closes it.
    """
    seen = request.headers.get("Last-Event-ID") or request.query_params.get("since", "")
    known, quiet = seen or str(serial()), 0
    yield "retry: 3000\n\n"
    is_closing: Callable[[], bool] = request.scope.get(CLOSING, lambda: False)
    while not (is_closing() or await request.is_disconnected()):
        await asyncio.sleep(_STREAM_PAUSE_S)
        quiet += 1
        if str(serial()) != known:
            known, quiet = str(serial()), 0
            yield f"id: {known}\nevent: change\ndata: {known}\n\n"
        elif quiet % _COMMENT_EVERY == 0:
            yield ": nothing new\n\n"


def _page_number(request: Request) -> int:
    text = request.query_params.get("page", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


def with_access_control(app: ASGIApp, access: DashboardAccess, free: frozenset[str]) -> ASGIApp:
    """Return the application behind ``access``; the paths in ``free`` need none.

    Every answer has the security headers, and only GET and HEAD are answered. A request for another
    host is refused, except one with the token, and monitoring from other machines. A body ends its
    connection: a proxy may see its end elsewhere, and has not checked what follows as a request.
    """

    async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        answer = app
        path = scope["path"]
        is_free = path in free
        if not (access.accepts_host(request) or access.has_token(request)) and (
            access.is_open or not is_free
        ):
            text = "This is not a name of the server: pass it with --allowed-host.\n"
            answer = PlainTextResponse(text, 421)
        elif request.method not in {"GET", "HEAD"}:
            answer = PlainTextResponse("read-only\n", 405, {"Allow": "GET, HEAD"})
        elif is_free or access.allows(request):
            pass
        elif not access.is_possible:
            text = "The dashboard is off: it needs loopback, a token or a trusted header.\n"
            answer = PlainTextResponse(text, 404)
        else:
            realm = {"WWW-Authenticate": 'Basic realm="reconciler"'}
            answer = PlainTextResponse("A token is needed.\n", 401, realm)
        headers = _HEADERS if _BODY.isdisjoint(request.headers.keys()) else _LAST
        await answer(scope, receive, _with_headers(send, headers))

    return asgi


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return send_with_headers


def _format_dollars(amount: float) -> str:
    return f"{'−' if amount < 0 else ''}${abs(amount):,.2f}"


def _format_change(amount: float) -> str:
    """Return a change in whole dollars, as plans show sums of a month."""
    return "$0" if abs(amount) < 0.5 else format_whole_dollars(amount, signed=True)


def _format_time(at: datetime | None) -> str:
    return format_seconds(at) if at is not None else ""


def _format_age(span: timedelta | None) -> str:
    if span is None:
        return ""
    return format_duration(span - span % _MINUTE) if span >= _MINUTE else "under 1m"


def _format_wait(span: timedelta) -> str:
    """Return a time from now on in words: ``4 min``."""
    if span < _MINUTE:
        return "less than a minute"
    return wording.format_duration(iso_duration(span - span % _MINUTE))


def _format_seconds(span: timedelta | None) -> str:
    return format_duration(span - span % timedelta(seconds=1)) if span is not None else ""


def _environment() -> Environment:
    pages = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: escape_invisible(value) if type(value) is str else value,
    )
    pages.filters |= {
        "money": _format_dollars,
        "whole": format_whole_dollars,
        "signed": _format_change,
        "monthly": lambda per_hour: per_hour * HOURS_A_MONTH,
        "wait": _format_wait,
        "moment": _format_time,
        "label": label_of,
        "commit": short_commit,
        "count": format_count,
        "age": _format_age,
        "seconds": _format_seconds,
        "weekday": lambda at: f"{at.astimezone(UTC):%a %d %b %H:%M}",
        "percent": lambda share: f"{share * 100:.0f}%",
    }
    return pages


_PAGES: Final = _environment()
