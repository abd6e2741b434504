"""Write the generated files: the chart's ClusterRole and dashboard, and the Kustomize base.

``python deploy/generate.py`` rewrites them; a test compares the files with what this produces. The
Kustomize base is what the chart renders, and is left as it is where ``helm`` is not installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from reconciler.adapters.kubernetes.kinds import (
    cluster_role,
    overlays_role,
    pod_costs_role,
    snapshot_role,
    watch_role,
)
from reconciler.source.plainyaml import dump

CHART: Final = Path(__file__).parent / "helm/reconciler"
FILES: Final = CHART / "files"
BASE: Final = Path(__file__).parent / "kustomize/base"
_BASE_VALUES: Final = (
    "fleet.repo=https://git.example.com/fleet.git",
    "database.url=postgresql+psycopg://reconciler@postgres:5432/reconciler",
    "database.passwordSecret.name=reconciler-database",
    "networkPolicy.enabled=true",
    "uninstall.enabled=false",
)
"""What the base sets beyond the chart's defaults; an overlay changes the first two."""
_WIDTH: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """A diagram: its title, unit and queries (expression, legend)."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8


_ROWS: Final = (
    (
        "Fleet",
        (
            Panel(
                "Cost per hour",
                "currencyUSD",
                (
                    ('sum(max by (fleet) (reconciler_cost_dollars_per_hour{when="now"}))', "now"),
                    (
                        'sum(max by (fleet) (reconciler_cost_dollars_per_hour{when="planned"}))',
                        "after the last plan",
                    ),
                ),
            ),
            Panel(
                "Cost per hour by NodePool",
                "currencyUSD",
                (("max by (nodepool) (karpenter_nodepools_cost_total)", "{{nodepool}}"),),
            ),
            Panel(
                "Nodes by NodePool and capacity type",
                "short",
                (
                    (
                        "sum by (nodepool, capacity_type) (reconciler_nodeclaims)",
                        "{{nodepool}} {{capacity_type}}",
                    ),
                ),
            ),
            Panel(
                "Utilisation by requests",
                "percent",
                (
                    (
                        (
                            "max by (resource_type) (karpenter_cluster_utilization_percent"
                            '{resource_type=~"cpu|memory"})'
                        ),
                        "{{resource_type}}",
                    ),
                ),
            ),
            Panel(
                "Usage of limits",
                "percentunit",
                (
                    (
                        (
                            "max by (nodepool, resource_type) (karpenter_nodepools_usage / on"
                            " (instance, fleet, nodepool, resource_type) karpenter_nodepools_limit)"
                        ),
                        "{{nodepool}} {{resource_type}}",
                    ),
                ),
            ),
            Panel(
                "Savings of started consolidations, per hour",
                "currencyUSD",
                (
                    (
                        "sum(increase(reconciler_consolidation_savings_dollars_per_hour_total[1d]))",
                        "last 24 hours",
                    ),
                ),
            ),
        ),
    ),
    (
        "Pods",
        (
            Panel(
                "Pending and unschedulable pods",
                "short",
                (
                    ("sum(max by (fleet) (karpenter_scheduler_queue_depth))", "pending"),
                    (
                        "sum(max by (fleet) (karpenter_scheduler_unschedulable_pods_count))",
                        "unschedulable",
                    ),
                ),
            ),
            Panel(
                "Age of the oldest pending pod",
                "s",
                (("max(reconciler_oldest_pending_pod_seconds)", "age"),),
            ),
        ),
    ),
    (
        "Disruption",
        (
            Panel(
                "Decisions per hour",
                "short",
                (
                    (
                        (
                            "sum by (decision, reason)"
                            " (increase(karpenter_voluntary_disruption_decisions_total[1h]))"
                        ),
                        "{{decision}} {{reason}}",
                    ),
                ),
            ),
            Panel(
                "Blocked nodes",
                "short",
                (
                    (
                        "max by (nodepool, reason) (reconciler_blocked_nodes)",
                        "{{nodepool}} {{reason}}",
                    ),
                ),
            ),
            Panel(
                "Allowed disruptions",
                "short",
                (
                    (
                        "max by (nodepool, reason) (karpenter_nodepools_allowed_disruptions)",
                        "{{nodepool}} {{reason}}",
                    ),
                ),
            ),
        ),
    ),
    (
        "Daemon",
        (
            Panel(
                "Duration of passes",
                "s",
                tuple(
                    (
                        (
                            f"histogram_quantile({share}, sum by (le)"
                            " (rate(reconciler_pass_duration_seconds_bucket[5m])))"
                        ),
                        f"p{share * 100:.0f}",
                    )
                    for share in (0.5, 0.99)
                ),
            ),
            Panel(
                "Failing API calls per second",
                "reqps",
                (
                    (
                        (
                            "sum by (service, operation, outcome)"
                            ' (rate(reconciler_api_calls_total{outcome!="ok"}[5m]))'
                        ),
                        "{{service}} {{operation}} {{outcome}}",
                    ),
                ),
            ),
            Panel(
                "Operations in progress and effects in doubt",
                "short",
                (
                    ("sum(max by (fleet) (reconciler_operations_in_progress))", "in progress"),
                    ("sum(max by (fleet) (reconciler_journal_in_doubt))", "in doubt"),
                ),
            ),
            Panel(
                "Leader",
                "short",
                (("reconciler_lease_held", "{{pod}}"),),
            ),
            Panel(
                "Time since the last pass",
                "s",
                (("time() - min(max by (fleet) (reconciler_last_pass_timestamp_seconds))", "age"),),
            ),
        ),
    ),
)


def dashboard() -> dict[str, object]:
    """Return the Grafana dashboard."""
    return {
        "title": "reconciler",
        "uid": "reconciler",
        "tags": ["reconciler", "karpenter"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "type": "datasource",
                    "query": "prometheus",
                    "label": "Source",
                }
            ]
        },
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, object]]:
    number = y = 0
    for title, panels in _ROWS:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
        }
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > _WIDTH:
                x, y = 0, y + panel.height
            number += 1
            yield {
                "id": number,
                "type": panel.kind,
                "title": panel.title,
                "datasource": _SOURCE,
                "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {
                        "refId": chr(ord("A") + i),
                        "datasource": _SOURCE,
                        "expr": expression,
                        "legendFormat": legend,
                    }
                    for i, (expression, legend) in enumerate(panel.queries)
                ],
            }
            x += panel.width
        y += panels[-1].height


def files() -> dict[Path, str]:
    """Return what each generated file should contain."""
    roles = {
        "run": cluster_role("reconciler", writes=True),
        "overlays": overlays_role("reconciler-overlays"),
        "pod-costs": pod_costs_role("reconciler-pod-costs"),
        "snapshot": snapshot_role("reconciler-snapshot"),
        "watch": watch_role("reconciler-watch"),
    }
    heading = "# Generated by `python deploy/generate.py`.\n"
    return {
        **{
            FILES / f"clusterrole-{name}.yaml": heading + dump(role, sort_keys=False)
            for name, role in roles.items()
        },
        FILES / "dashboard.json": json.dumps(dashboard(), indent=2) + "\n",
    }


def kustomize_base() -> dict[Path, str]:
    """Return the objects of the chart as a Kustomize base, with two replicas and PostgreSQL.

    Raises:
        subprocess.CalledProcessError: helm cannot render the chart.
    """
    command = ["helm", "template", "reconciler", str(CHART), "--namespace", "reconciler"]
    command += ["--kube-version", "1.34.0"]
    for value in _BASE_VALUES:
        command += ["--set", value]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - fixed words
    heading = "# Generated by `python deploy/generate.py` from the Helm chart.\n"
    lines = (line for line in done.stdout.splitlines() if "helm.sh/chart:" not in line)
    text = "\n".join(lines).replace("managed-by: Helm", "managed-by: Kustomize")
    return {BASE / "reconciler.yaml": f"{heading}{text}\n"}


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
    if shutil.which("helm"):  # the base is rendered from the files above
        for path, content in kustomize_base().items():
            path.write_text(content, encoding="utf-8")
