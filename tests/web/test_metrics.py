"""Metrics of a daemon, read as Prometheus reads them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reconciler.engine.loop import PassIntervals, run
from reconciler.engine.reconcile import Mandate
from reconciler.model.errors import TransientCloudError, UnreadableError
from reconciler.model.grouping import Grouping
from reconciler.observed.allocation import GroupCost
from reconciler.ports.progress import EventKind, Progress
from reconciler.web.costs import limit_groups
from reconciler.web.gauges import snake_case
from reconciler.web.health import DaemonHealth
from reconciler.web.metrics import FleetMetrics
from reconciler.web.observer import WebNotifier, WebObserver
from tests.engine.faults import commit_drift, three_nodes
from tests.engine.test_crash import LARGE
from tests.engine.test_refusing_node import Slow, a_fleet, changed
from tests.engine.world import TAGS, World, a_deployment, a_pool, a_world

Rows = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Counted(WebObserver):
    """Counts the passes, too."""

    count = 0

    def pass_started(self) -> None:
        self.count += 1
        super().pass_started()


class Daemon:
    """A daemon on an imitated account, with the metrics that it shows."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.metrics = FleetMetrics()
        self.health = DaemonHealth()
        self.engine = world.engine()
        ports = self.engine.ports
        notifier = WebNotifier(ports.notifier, self.metrics, self.health)
        self.ports = replace(ports, notifier=notifier)

    def passes(self, count: int) -> None:
        """Run that number of passes; without any, the loop ends after 400 polls."""
        observer, ticks = Counted(self.metrics, self.health), iter(range(400))
        run(
            self.ports,
            self.engine.source,
            Mandate(TAGS),
            intervals=PassIntervals(busy=5.0),
            stop=lambda: observer.count >= count or next(ticks, None) is None,
            next_change=lambda _: None,
            observer=observer,
        )

    def rows(self) -> Rows:
        """Return every sample by its name and labels."""
        text = self.metrics.text().decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a name that have these labels."""
        wanted = set(labels.items())
        return sum(
            value
            for (known, have), value in self.rows().items()
            if known == name and wanted <= set(have)
        )


class Throttled:
    """An EC2 that lists nothing."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def instances(self) -> NoReturn:
        raise TransientCloudError("throttled", where="DescribeInstances")


def test_before_the_first_pass_there_are_no_state_metrics() -> None:
    metrics = FleetMetrics().text().decode()
    assert "karpenter_build_info{version=" in metrics
    assert "karpenter_cluster_state_node_count" not in metrics
    assert "reconciler_lease_held 0.0" in metrics


def test_a_converged_fleet_shows_its_nodes_pods_and_cost() -> None:
    world = three_nodes()
    daemon = Daemon(world)
    daemon.passes(1)
    total = daemon.total
    assert total("karpenter_cluster_state_node_count") == 3
    assert total("reconciler_nodeclaims", nodepool="web", phase="initialized") == 3
    assert total("karpenter_nodepools_usage", nodepool="web", resource_type="nodes") == 3
    cores = total("karpenter_nodepools_usage", nodepool="web", resource_type="cpu")
    per_node = total("karpenter_nodes_allocatable", resource_type="cpu")
    assert 0 < per_node <= cores, "cores, and not thousandths"
    assert total("karpenter_nodes_total_pod_requests", resource_type="pods") == 3
    used = total("karpenter_cluster_utilization_percent", resource_type="cpu")
    requested = total("karpenter_nodes_total_pod_requests", resource_type="cpu")
    assert used == pytest.approx(100 * requested / per_node)
    cost = total("karpenter_nodepools_cost_total", nodepool="web")
    assert cost == total("reconciler_cost_dollars_per_hour", when="now") > 0
    assert total("reconciler_namespace_cost_dollars_per_hour") == pytest.approx(cost)
    idle = total("reconciler_namespace_idle_dollars_per_hour")
    assert 0 < idle < cost
    assert total("karpenter_nodepools_allowed_disruptions", reason="drifted") == 3
    assert total("karpenter_scheduler_queue_depth") == 0
    assert total("reconciler_passes_total", result="succeeded") == 1
    assert total("reconciler_pass_duration_seconds_count") == 1
    assert total("reconciler_journal_in_doubt") == 0
    assert total("reconciler_lease_held") == 1


def shop_of_teams() -> World:
    teams = {"a": "payments", "b": "search", "c": ""}
    apps = [a_deployment(name, "web", 1) for name in teams]
    for app, team in zip(apps, teams.values(), strict=True):
        if team:
            app["spec"]["template"]["metadata"]["labels"]["team"] = team
    pool = a_pool("web", budgets=[{"nodes": "3"}], template={"requirements": LARGE})
    world = a_world(pool, *apps)
    world.converge()
    return world


def test_costs_by_workload_and_label_are_shown_on_request_and_add_up() -> None:
    world = shop_of_teams()
    daemon = Daemon(world)
    daemon.passes(1)
    assert daemon.total("reconciler_workload_cost_dollars_per_hour") == 0, "opt-in"
    assert daemon.total("reconciler_label_cost_dollars_per_hour") == 0, "opt-in"

    world.settings = replace(
        world.settings, metrics_costs_by=(Grouping(by_workload=True), Grouping("team"))
    )
    daemon = Daemon(world)
    daemon.passes(1)
    total = daemon.total
    cost, idle = total("reconciler_cost_dollars_per_hour", when="now"), 0.0
    for kind in ("namespace", "workload", "label"):
        assert total(f"reconciler_{kind}_cost_dollars_per_hour") == pytest.approx(cost)
        idle = idle or total("reconciler_namespace_idle_dollars_per_hour")
        assert total(f"reconciler_{kind}_idle_dollars_per_hour") == pytest.approx(idle)
    workload = "Deployment default/a"
    one = total("reconciler_workload_cost_dollars_per_hour", workload=workload)
    assert one == pytest.approx(cost / 3)
    paid = partial(total, "reconciler_label_cost_dollars_per_hour", label="team")
    assert paid(value="search") == pytest.approx(one)
    assert paid(value="(no label team)") == pytest.approx(one)


def test_the_series_of_costs_are_limited_and_their_sum_is_exact() -> None:
    groups = [GroupCost(f"g{n}", 1, 100 - n, 7) for n in range(10)]
    found = limit_groups(groups, 4)
    assert [group.name for group in found] == ["g0", "g1", "g2", "(other)"]
    assert found[-1] == GroupCost("(other)", 7, sum(range(91, 98)), 49)
    assert limit_groups(groups, 10) == tuple(groups)


def test_only_nodes_that_could_be_tainted_count_as_disrupted() -> None:
    world = a_fleet(5)
    world.around = Slow(most=2).around
    changed(world, pods=0)
    daemon = Daemon(world)
    saved = "reconciler_consolidation_savings_dollars_per_hour_total"
    counted = []
    for _ in range(3):
        daemon.passes(1)
        counted.append(daemon.total("karpenter_nodeclaims_disrupted_total", reason="empty"))
    assert counted == [2, 4, 5]
    assert daemon.total("karpenter_voluntary_disruption_decisions_total", reason="empty") == 3
    assert daemon.total(saved) > 0


@pytest.mark.exhaustive
def test_a_rollout_is_counted_from_decision_to_termination() -> None:
    daemon = Daemon(three_nodes())
    daemon.passes(1)
    commit_drift(daemon.world)
    daemon.passes(40)
    total = daemon.total
    assert total("karpenter_voluntary_disruption_decisions_total", reason="drifted") == 3
    assert total("karpenter_voluntary_disruption_decisions_total", decision="replace") == 3
    disrupted = total("karpenter_nodeclaims_disrupted_total", reason="drifted", nodepool="web")
    assert disrupted == 3
    assert total("karpenter_nodeclaims_created_total", nodepool="web") == 3
    assert total("karpenter_nodeclaims_created_total", reason="drifted") == 3
    assert total("karpenter_nodeclaims_terminated_total", nodepool="web") == 3
    assert total("reconciler_events_total", kind="CommandStarted") == 3
    assert total("karpenter_voluntary_disruption_queue_failures_total") == 0
    assert total("reconciler_drifted_nodeclaims") == 0
    assert total("reconciler_plan_actions") == 0


def test_while_a_rollout_runs_its_plan_and_operations_are_shown() -> None:
    daemon = Daemon(three_nodes(starting_s=60))
    commit_drift(daemon.world)
    daemon.passes(1)
    assert daemon.total("reconciler_plan_actions", kind="provision") == 3
    assert daemon.total("reconciler_operations_in_progress") > 0
    assert daemon.total("reconciler_drifted_nodeclaims", nodepool="web") == 3
    now, planned = (
        daemon.total("reconciler_cost_dollars_per_hour", when=when) for when in ("now", "planned")
    )
    assert now > 0
    assert planned > 0


def test_a_failed_pass_is_counted_and_the_last_valid_state_stays() -> None:
    world = three_nodes()
    daemon = Daemon(world)
    daemon.passes(1)
    before = daemon.total("reconciler_last_pass_timestamp_seconds")

    daemon.ports = replace(daemon.ports, compute=Throttled(daemon.ports.compute))
    daemon.passes(3)
    assert daemon.total("reconciler_passes_total", result="failed") == 3
    assert daemon.total("reconciler_events_total", kind="Failed") == 3
    assert daemon.total("karpenter_cluster_state_node_count") == 3
    assert daemon.total("reconciler_last_pass_timestamp_seconds") == before
    verdict = daemon.health.ready()
    assert verdict.is_good, "one pass has ended a moment ago"


def test_a_standby_shows_no_state_of_the_fleet() -> None:
    """Another process acts by now; what this one knew would be shown beside the truth."""
    daemon = Daemon(three_nodes())
    daemon.passes(1)
    assert "reconciler_last_pass_timestamp_seconds " in daemon.metrics.text().decode()
    daemon.ports.notifier.notify(Progress(daemon.world.clock.now(), EventKind.STANDBY, "waits"))
    text = daemon.metrics.text().decode()
    assert "reconciler_last_pass_timestamp_seconds " not in text
    assert "reconciler_lease_held 0.0" in text


def test_the_age_of_an_invalid_revision_is_shown_until_it_is_fixed() -> None:
    world = three_nodes()
    daemon = Daemon(world)
    daemon.passes(1)
    name = "reconciler_invalid_revision_since_timestamp_seconds"
    assert daemon.total(name) == 0
    world.git.unreadable = UnreadableError("the checkout is empty")
    world.git.commit()
    since = world.clock.now().timestamp()
    daemon.passes(1)
    assert daemon.total("reconciler_events_total", kind="InvalidRevision") > 1
    assert abs(daemon.total(name) - since) < 60, "the first report counts"
    world.git.unreadable = None
    commit_drift(world)
    daemon.passes(2)
    assert daemon.total(name) == 0


def test_reasons_are_written_as_karpenter_writes_them() -> None:
    assert [snake_case(word) for word in ("Underutilized", "SpotInterruption", "a")] == [
        "underutilized",
        "spot_interruption",
        "a",
    ]


def test_reboots_are_counted_by_their_result() -> None:
    metrics = FleetMetrics()
    at = datetime(2026, 3, 1, tzinfo=UTC)
    facts = {"result": "succeeded", "seconds": "300.0", "recovery": "90.0"}
    metrics.record_event(Progress(at, EventKind.REBOOTED, "ready", facts=facts))
    failed = {"result": "recovery_timeout", "seconds": "1500.0", "recovery": "1200.0"}
    metrics.record_event(Progress(at, EventKind.REBOOT_FAILED, "late", facts=failed))

    text = metrics.text().decode()

    for line in (
        'karpenter_nodes_reboots_total{result="succeeded"} 1.0',
        'karpenter_nodes_reboots_total{result="recovery_timeout"} 1.0',
        'karpenter_nodes_reboot_duration_seconds_sum{result="recovery_timeout"} 1500.0',
        "karpenter_nodes_reboot_recovery_duration_seconds_sum 90.0",
        "karpenter_nodes_reboot_recovery_duration_seconds_count 1.0",
    ):
        assert line in text
