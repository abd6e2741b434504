"""The dashboard as a browser without scripts gets it."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from reconciler.engine.loop import PassIntervals, run
from reconciler.engine.reconcile import Mandate
from reconciler.ports.progress import EventKind, Progress
from reconciler.web.dashboard import PAGE_SIZE, Dashboard, DashboardAccess
from reconciler.web.health import DaemonHealth
from reconciler.web.metrics import FleetMetrics
from reconciler.web.observer import WebNotifier, WebObserver
from reconciler.web.server import is_loopback_address, make_app, serve_in_thread
from reconciler.web.view import CostSample
from tests.engine.faults import commit_drift, three_nodes
from tests.engine.world import TAGS, World, a_deployment, a_node_class, a_pool, a_world

OPEN = DashboardAccess(is_open=True)


class Site:
    """A daemon with a dashboard, and a client."""

    def __init__(self, world: World | None = None, access: DashboardAccess = OPEN) -> None:
        self.health = DaemonHealth()
        self.metrics = FleetMetrics()
        self.dashboard = Dashboard("shop <b>", self.health)
        self.app = make_app(self.metrics, self.health, self.dashboard, access)
        self.world = world

    def passes(self, count: int) -> None:
        assert self.world is not None
        engine = self.world.engine()
        notifier = WebNotifier(engine.ports.notifier, self.metrics, self.health, self.dashboard)
        observer = WebObserver(self.metrics, self.health, self.dashboard)
        left = iter(range(count))
        run(
            replace(engine.ports, notifier=notifier),
            engine.source,
            Mandate(TAGS),
            intervals=PassIntervals(busy=5.0),
            stop=lambda: next(left, None) is None,
            next_change=lambda _: None,
            observer=observer,
        )

    def get(self, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
        with serve_in_thread("127.0.0.1:0", self.app) as url:
            try:
                with urlopen(Request(f"{url}{path}", headers=headers), timeout=10) as answer:
                    return answer.status, answer.read().decode(), dict(answer.headers)
            except HTTPError as error:
                with error:
                    return error.code, error.read().decode(), dict(error.headers)

    def page(self, path: str) -> str:
        status, text, _ = self.get(path)
        assert status == 200, text
        return text


def words(page: str) -> str:
    """Return the text of a page without its markup."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


@pytest.fixture(scope="module")
def rolling() -> Site:
    site = Site(three_nodes(starting_s=60))
    assert site.world is not None
    commit_drift(site.world, budget="1")
    site.passes(1)
    return site


def test_before_the_first_pass_the_dashboard_says_so() -> None:
    text = words(Site().page("/"))
    assert "No pass has ended yet" in text
    assert "Not ready: no pass has ended yet" in text


def test_the_overview_shows_cost_nodes_plan_and_budgets(rolling: Site) -> None:
    text = words(rolling.page("/"))
    assert re.search(r"Cost \$[1-9][0-9,.]* /month", text)
    assert "Nodes 3 0 starting, 0 terminating" in text
    assert "Pending pods 0" in text
    assert "web 3 3 3 $" in text
    assert "1 of 3" in text
    doing = r"Plan now \d actions? [1-9] operations? in progress; [−+]?\$\d+ ?/month when done"
    assert re.search(doing, text), text[:300]
    assert re.search(r"Launch web-\w+ web \+\$[0-9.]+ Drift ", text)
    assert re.search(r"Who costs what .* default 3 \$[0-9]+ \$[0-9]+ +100%", text)
    assert "Drift: replace" in text


def test_costs_are_shown_by_namespace_workload_and_label(rolling: Site) -> None:
    by_namespace = words(rolling.page("/costs"))
    assert re.search(r"Namespace Pods .* default 3 \$([0-9]+) \$[0-9]+ +100%", by_namespace)
    by_workload = words(rolling.page("/costs?by=workload"))
    assert re.search(r"Workload Pods .* Deployment default/web 3 \$[0-9]+ \$[0-9]+", by_workload)
    page = rolling.page("/costs?by=label%3Dapp")
    assert '<option value="label=app" selected>label app</option>' in page
    assert re.search(r"Label app Pods .* web 3 \$[0-9]+ \$[0-9]+", words(page))
    assert "(no label team) 3 $" in words(rolling.page("/costs?by=label=team"))
    assert "Namespace Pods" in words(rolling.page("/costs?by=%3Cb%3E"))
    assert "<b>" not in rolling.page("/costs?by=label=%3Cb%3E")
    months = re.search(r"\$([0-9]+)/month, of which \$([0-9]+)", by_workload)
    assert months is not None
    assert 0 < int(months[2]) < int(months[1])


def test_the_subject_and_the_author_of_the_commit_are_shown_as_text() -> None:
    world = three_nodes()
    engine = world.engine()
    done = engine.run_once()
    site = Site(world)
    desired = replace(engine.source.read(), title="Raise <b>limits</b> (Eve\u202e)")
    site.dashboard.show_pass(desired, done, ())
    page = site.page("/")
    assert "Raise &lt;b&gt;limits&lt;/b&gt; (Eve" in page
    assert "\u202e" not in page


def test_the_cost_is_drawn_once_it_has_a_past() -> None:
    site = Site(three_nodes())
    site.passes(1)
    assert "Cost over time" not in site.page("/")
    site.dashboard._samples.insert(0, CostSample(datetime(2025, 1, 1, tzinfo=UTC), 1.5))
    text = words(site.page("/"))
    assert re.search(r"Cost over time .* \$[0-9,]+ to \$[0-9,]+/month", text)


def test_the_overview_says_when_consolidation_acts_and_what_that_saves() -> None:
    pool = a_pool("web", policy="WhenEmptyOrUnderutilized", after="5m", budgets=[{"nodes": "100%"}])
    world = a_world(pool, a_deployment("web", "web", 6), starting_s=5)
    world.converge()
    world.git.commit(a_node_class(), pool, a_deployment("web", "web", 1))
    site = Site(world)
    site.passes(2)
    view = site.dashboard.view()
    assert view is not None
    saving = [step for step in view.upcoming if step.saves]
    assert saving, view.upcoming
    assert timedelta(0) < saving[0].wait <= timedelta(minutes=5)
    text = words(site.page("/"))
    assert re.search(r"Next: .* in \d min, about −\$\d+/month", text), text[:600]


def test_the_history_shows_how_many_pods_a_command_moves(rolling: Site) -> None:
    assert re.search(r'data-label="Pods moved">\d', rolling.page("/history"))


def test_the_history_names_commits_and_their_commands(rolling: Site) -> None:
    text = words(rolling.page("/history"))
    assert re.search(r"Commit [0-9a-f]{8} ", text)
    assert re.search(r"taint, launch ip-[\w.-]+, web-\w+ succeeded Drift ", text)
    assert re.search(r"3 × launch, 3 × tag web-\w+, web-\w+, web-\w+ succeeded Pending pods ", text)


def test_a_commit_that_is_not_in_effect_is_shown_until_the_next_one_is() -> None:
    site = Site(three_nodes())
    site.passes(1)
    at = datetime(2026, 11, 22, 9, tzinfo=UTC)
    facts = {"commit": "0123456789abcdef" * 2 + "01234567", "title": "Raise <the> limit (Ada)"}
    for minute in (0, 5):
        late = at + timedelta(minutes=minute)
        site.dashboard.record_event(
            Progress(late, EventKind.INVALID_REVISION, "fleet.yaml:3: bad", facts=facts)
        )
    text = words(site.page("/"))
    assert re.search(r"invalid the newest commit; [0-9a-f]{8} stays in effect", text), text
    banner = (
        "The newest commit 01234567 “Raise &lt;the&gt; limit (Ada)” is invalid "
        "and not in effect (since 2026-11-22 09:00:00 UTC). "
        "fleet.yaml:3: bad."
    )
    assert all(banner in words(site.page(path)) for path in ("/", "/nodes", "/history", "/events"))
    site.dashboard.record_event(Progress(at, EventKind.REVISION, "another commit"))
    assert "stays in effect" not in site.page("/")
    assert banner not in words(site.page("/nodes"))
    site.dashboard.record_event(Progress(at, EventKind.INVALID_REVISION, "no git"))
    assert "The newest commit is invalid and not in effect" in words(site.page("/nodes"))


def test_the_calendar_shows_when_budgets_are_closed() -> None:
    world = three_nodes()
    night = {"nodes": "0", "schedule": "0 22 * * *", "duration": "8h"}
    pool = a_pool("web", budgets=[{"nodes": "3"}, night])
    world.git.commit(a_node_class(), pool, a_deployment("web", "web", 3))
    site = Site(world)
    site.passes(1)
    text = words(site.page("/"))
    assert "Budget calendar" in text
    assert re.search(r"1\d periods; closed for 2d8h|1\d periods; closed for 56h", text), text
    assert ": 0 of 3 nodes" in text


def test_pods_that_cannot_be_scheduled_come_first() -> None:
    world = a_world(
        a_pool("web", template={"requirements": []}), a_deployment("db", "web", 2, cpu="4000")
    )
    site = Site(world)
    site.passes(2)
    text = words(site.page("/"))
    assert "2 cannot be scheduled" in text
    assert text.index("Pods that cannot be scheduled") < text.index("NodePools")


def test_nodes_are_filtered_by_pool_state_and_text(rolling: Site) -> None:
    assert "3 nodes" in words(rolling.page("/nodes?state=ready"))
    assert "0 nodes" in words(rolling.page("/nodes?pool=other"))
    assert "no nodes match" in words(rolling.page("/nodes?q=nowhere"))
    assert "no nodes match" not in words(rolling.page("/nodes?q=us-east-1"))


@pytest.mark.parametrize("number", ["0", "99", "x", "-1", "9" * 40, "%00"])
def test_any_page_number_is_answered(rolling: Site, number: str) -> None:
    assert "nodes" in words(rolling.page(f"/nodes?page={number}"))


def test_untrusted_text_is_never_markup(rolling: Site) -> None:
    rolling.dashboard.fleet = "shop <b>"
    evil = '<script>alert(1)</script>"\u202e\x1b[31m'
    at = datetime(2026, 11, 22, tzinfo=UTC)
    rolling.dashboard.record_event(Progress(at, EventKind.FAILED, evil))
    for path in ("/", "/events", "/nodes?q=%3Cscript%3Ealert(1)%3C/script%3E"):
        page = rolling.page(path)
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "\x1b" not in page
    assert "&lt;script&gt;alert(1)" in rolling.page("/events")
    assert "shop &lt;b&gt;" in rolling.page("/")


def test_pages_load_no_external_resources_and_cannot_be_framed(rolling: Site) -> None:
    _, page, headers = rolling.get("/")
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    links = re.findall(r'(?:src|href)="([^"#?][^"]*)"', page)
    assert links
    assert all(link.startswith("/") and not link.startswith("//") for link in links)
    assert "style=" not in page
    assert "onclick" not in page
    assert "<script>" not in page


@pytest.mark.parametrize("path", ["/static/style.css", "/static/live.js"])
def test_files_of_the_dashboard_are_served(rolling: Site, path: str) -> None:
    assert rolling.get(path)[0] == 200


@pytest.mark.parametrize("path", ["/static/../view.py", "/static/%2e%2e/view.py", "/static/"])
def test_no_other_file_is_served(rolling: Site, path: str) -> None:
    assert rolling.get(path)[0] == 404


def test_a_token_is_required_and_checked() -> None:
    site = Site(access=DashboardAccess(token="s3cret"))
    assert site.get("/")[0] == 401
    assert site.get("/", Authorization="Bearer wrong")[0] == 401
    assert site.get("/", Authorization="Bearer ")[0] == 401
    assert site.get("/", Authorization="Bearer s3cret")[0] == 200
    basic = base64.b64encode(b"me:s3cret").decode()
    assert site.get("/", Authorization=f"Basic {basic}")[0] == 200
    assert site.get("/", Authorization="Basic %%%")[0] == 401
    assert site.get("/stream")[0] == 401
    assert site.get("/static/style.css")[0] == 401


def test_a_proxy_names_the_user() -> None:
    site = Site(access=DashboardAccess(header="X-Forwarded-User"))
    assert site.get("/")[0] == 401
    assert site.get("/", **{"X-Forwarded-User": "ada"})[0] == 200


def test_without_a_token_it_is_off_beyond_loopback_and_probes_still_work() -> None:
    site = Site(access=DashboardAccess(is_open=is_loopback_address("*:8080")))
    status, text, _ = site.get("/")
    assert (status, "needs loopback, a token or a trusted header" in text) == (404, True)
    assert site.get("/metrics")[0] == 200
    assert site.get("/healthz")[0] == 200


def test_a_change_is_pushed_to_the_page() -> None:
    site = Site()
    with (
        serve_in_thread("127.0.0.1:0", site.app) as url,
        urlopen(f"{url}/stream", timeout=10) as stream,
    ):
        assert stream.readline() == b"retry: 3000\n"
        at = datetime(2026, 11, 22, tzinfo=UTC)
        site.dashboard.record_event(Progress(at, EventKind.LAUNCHED, "web-1"))
        lines = [stream.readline() for _ in range(4)]
    assert b"event: change\n" in lines


def test_a_change_before_the_page_subscribes_is_pushed_at_once() -> None:
    site = Site()
    at = datetime(2026, 11, 22, tzinfo=UTC)
    with serve_in_thread("127.0.0.1:0", site.app) as url:
        with urlopen(url, timeout=10) as answer:
            page = answer.read().decode()
        site.dashboard.record_event(Progress(at, EventKind.LAUNCHED, "web-1"))
        path = re.search(r'data-stream="([^"]+)"', page)
        assert path is not None
        with urlopen(f"{url}{path[1]}", timeout=10) as stream:
            lines = [stream.readline() for _ in range(5)]
        assert b"event: change\n" in lines
        last = Request(f"{url}{path[1]}", headers={"Last-Event-ID": "1"})
        with urlopen(last, timeout=10) as stream:
            stream.readline()
            site.dashboard.record_event(Progress(at, EventKind.LAUNCHED, "web-2"))
            lines = [stream.readline() for _ in range(4)]
        assert b"id: 2\n" in lines


def test_a_page_of_a_large_fleet_is_bounded(rolling: Site) -> None:
    view = rolling.dashboard.view()
    assert view is not None
    many = tuple(replace(view.nodes[0], name=f"node-{i:05}") for i in range(10_000))
    rolling.dashboard._view = replace(view, nodes=many)
    page = rolling.page("/nodes")
    assert "10000 nodes, page 1 of 50" in words(page)
    assert page.count("<tr>") == PAGE_SIZE + 1
    assert len(rolling.page("/")) < 60_000
    rolling.dashboard._view = view
