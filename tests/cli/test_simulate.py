"""``reconciler simulate`` end to end: its output, and that it is reproducible."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from reconciler._resources import resource_path
from reconciler.cli.main import main
from reconciler.source.plainyaml import dump
from tests.engine.world import a_deployment, a_pool
from tests.repositories import commit_all, init
from tests.simulated.simulations import words, write_fleet

KINDS = {
    "NodeClaimCreated", "Launched", "Registered", "Initialized", "LaunchFailed", "CommandStarted",
    "CommandValidated", "CommandRolledBack", "Tainted", "Drained", "Terminated", "PodBound",
    "PodEvicted", "Interrupted", "Expired",
}  # fmt: skip

Capture = pytest.CaptureFixture[str]


SMALL = {
    "requirements": [
        {
            "key": "node.kubernetes.io/instance-type",
            "operator": "In",
            "values": ["m7i.large", "c7i.large"],
        }
    ]
}
"""A pool of nodes with room for one pod each."""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    write_fleet(tmp_path, [a_pool("web", template=SMALL), a_deployment("web", "web", 3)])
    return tmp_path


def simulated(capsys: Capture, folder: Path, *more: str) -> dict[str, Any]:
    """Return the report as JSON, checked against its schema."""
    assert main(["simulate", *words(folder, "-o", "json", *more)]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    validator("simulation.v1.json").validate(report)
    return report


def validator(name: str) -> Draft202012Validator:
    schema = json.loads(Path(resource_path("schemas", name)).read_bytes())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=FormatChecker())


def kinds(report: dict[str, Any], claim: str = "") -> list[str]:
    return [e["kind"] for e in report["events"] if claim in ("", e["nodeClaim"])]


def test_an_empty_cluster_scales_up_for_the_workloads(capsys: Capture, fleet: Path) -> None:
    report = simulated(capsys, fleet)
    assert report["converged"]
    assert [c["pods"] for c in report["fleet"]] == [1, 1, 1]
    assert report["cost"]["after"] == pytest.approx(0.3)
    assert set(kinds(report)) <= KINDS


def test_the_events_of_a_node_have_the_expected_order(capsys: Capture, fleet: Path) -> None:
    report = simulated(capsys, fleet)
    claim = report["fleet"][0]["nodeClaim"]
    output = kinds(report, claim)
    assert output[:3] == ["NodeClaimCreated", "Launched", "Registered"]
    assert sorted(output[3:]) == ["Initialized", "PodBound"]
    times = [e["at"] for e in report["events"]]
    assert times == sorted(times)


@pytest.mark.parametrize(("until", "at"), [("1h", "10:00"), ("1d", "09:00"), ("90s", "09:01:30")])
def test_the_simulation_stops_at_the_requested_time(
    capsys: Capture, fleet: Path, until: str, at: str
) -> None:
    report = simulated(capsys, fleet, "--until", until)
    assert report["at"][11:].startswith(at)


def test_an_idle_day_takes_a_handful_of_passes(capsys: Capture, fleet: Path) -> None:
    """Idle time is skipped: only events need passes, and there are none."""
    rest, week = (simulated(capsys, fleet, "--until", span)["passes"] for span in ("1h", "7d"))
    assert week - rest <= 2


@pytest.mark.parametrize("until", ["", "soon", "-1h", "0s", "2020-01-01T00:00:00Z", "1x", "d"])
def test_an_invalid_stop_time_is_rejected(capsys: Capture, fleet: Path, until: str) -> None:
    assert main(["simulate", *words(fleet, f"--until={until}")]) == 1
    assert "--until" in capsys.readouterr().err


def test_a_simulation_is_the_same_at_any_time(capsys: Capture, fleet: Path) -> None:
    courses = []
    for second in ("12:00:00Z", "12:00:00.77Z", "12:00:01.3Z"):
        report = simulated(capsys, fleet, "--seeds", "2", "--now", f"2026-01-03T{second}")
        start = datetime.fromisoformat(report["startedAt"])
        events = [
            (event["kind"], (datetime.fromisoformat(event["at"]) - start).total_seconds())
            for event in report["events"]
        ]
        courses.append((events, report["range"], report["durationSeconds"]))
    assert courses[0] == courses[1] == courses[2]


def test_the_time_does_not_order_new_nodes(capsys: Capture) -> None:
    example = Path(__file__).parents[2] / "examples" / "batch-spot"
    ends = []
    for second in ("00", "01"):
        now = f"2026-03-02T09:00:{second}Z"
        assert main(["simulate", str(example), "--seed", "14", "--now", now, "-o", "json"]) == 0
        report = json.loads(capsys.readouterr().out)
        ends.append((report["passes"], [claim["nodeClaim"] for claim in report["fleet"]]))
    assert ends[0] == ends[1]


@pytest.mark.exhaustive
def test_the_same_seed_gives_the_same_bytes_under_any_hash_seed(fleet: Path) -> None:
    (fleet / "faults.yaml").write_text("interruptions: 2\nneverRegister: 0.2\n")
    more = ("-o", "json", "--seed", "7", "--until", "5h", "--faults", str(fleet / "faults.yaml"))
    command = [sys.executable, "-m", "reconciler", "simulate", *words(fleet, *more)]
    answers = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(answers) == 1


def test_a_snapshot_is_the_first_state(capsys: Capture, fleet: Path) -> None:
    snapshot = fleet / "snapshot.json"
    snapshot.write_text(json.dumps({"kind": "List", "items": a_cluster(pods=1, nodes=2)}))
    report = simulated(capsys, fleet, "--snapshot", str(snapshot))
    assert report["cost"]["before"] == pytest.approx(0.2)
    assert [c["nodeClaim"] for c in report["fleet"]] == ["old-0"]
    assert "Drained" in kinds(report, "old-1")
    assert report["cost"]["after"] == pytest.approx(0.1)


def test_nodes_join_as_those_of_the_snapshot_did(capsys: Capture, fleet: Path) -> None:
    """Three NodeClaims registered five minutes after they were created."""
    items = [*a_cluster(pods=3, nodes=3), a_pod("new", "")]
    for item in items:
        for condition in item["status"]["conditions"] if item["kind"] == "NodeClaim" else ():
            if condition["type"] in ("Registered", "Initialized"):
                condition["lastTransitionTime"] = "2026-03-01T09:05:00Z"
    (fleet / "s.json").write_text(json.dumps({"kind": "List", "items": items}))
    (fleet / "faults.yaml").write_text(dump({"latencies": {"joining": ["20s", "30s"]}}))
    snapshot = ("--snapshot", str(fleet / "s.json"))

    assert 299 <= seconds_to_join(simulated(capsys, fleet, *snapshot)) <= 320
    chosen = simulated(capsys, fleet, *snapshot, "--faults", str(fleet / "faults.yaml"))
    assert seconds_to_join(chosen) <= 60


def test_nodes_of_the_kwok_provider_join_at_once(capsys: Capture, tmp_path: Path) -> None:
    kind = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    pool = a_pool("web", template={**SMALL, "nodeClassRef": kind})
    write_fleet(tmp_path, [pool, a_deployment("web", "web", 1)])

    assert seconds_to_join(simulated(capsys, tmp_path)) <= 10


def seconds_to_join(report: dict[str, Any]) -> float:
    """Return how long the first new node took from its launch until it was registered."""
    at = {event["kind"]: event["at"] for event in reversed(report["events"])}
    launched, registered = (datetime.fromisoformat(at[k]) for k in ("Launched", "Registered"))
    return (registered - launched).total_seconds()


def test_nodes_without_an_owner_stay(capsys: Capture, fleet: Path) -> None:
    items = a_cluster(pods=1, nodes=1)
    foreign = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "mine"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    guest = a_pod("guest", "mine")
    (fleet / "s.json").write_text(json.dumps({"kind": "List", "items": [*items, foreign, guest]}))
    report = simulated(capsys, fleet, "--snapshot", str(fleet / "s.json"))
    assert report["events"] == []
    assert report["converged"]


def test_a_merge_shows_when_each_node_is_replaced(capsys: Capture, tmp_path: Path) -> None:
    write_fleet(tmp_path, [a_pool("web", template=SMALL), a_deployment("web", "web", 2)])
    init(tmp_path / "fleet")
    commit_all(tmp_path / "fleet")
    write_fleet(
        tmp_path,
        [a_pool("web", template=SMALL, labels={"new": "yes"}), a_deployment("web", "web", 2)],
    )
    report = simulated(capsys, tmp_path, "--base", "HEAD")
    merge = report["merge"]
    assert [node["reason"] for node in merge["replaced"]] == ["Drifted", "Drifted"]
    assert all(len(node["replacements"]) == 1 and node["goneAt"] for node in merge["replaced"])
    first, second = merge["replaced"]
    drained = [
        e["at"] for e in report["events"] if (e["kind"], e["node"]) == ("Drained", first["node"])
    ]
    assert drained[0] <= second["startedAt"], "the budget is one node"
    assert merge["before"] == pytest.approx(merge["after"])
    assert merge["extra"] > 0


def test_the_cost_of_a_rollout_ends_when_the_fleet_has_settled(
    capsys: Capture, tmp_path: Path
) -> None:
    write_fleet(tmp_path, [a_pool("web", template=SMALL), a_deployment("web", "web", 2)])
    init(tmp_path / "fleet")
    commit_all(tmp_path / "fleet")
    write_fleet(tmp_path, [a_pool("web", template=SMALL), a_deployment("web", "web", 6)])
    merge = simulated(capsys, tmp_path, "--base", "HEAD")["merge"]
    later = simulated(capsys, tmp_path, "--base", "HEAD", "--until", "5h")["merge"]
    assert later["after"] > later["before"]
    assert later["extra"] == pytest.approx(merge["extra"], abs=1e-3)


def test_periods_limited_by_budgets_and_windows_are_listed(capsys: Capture, tmp_path: Path) -> None:
    budgets = [
        {"nodes": "1", "reasons": ["Drifted"]},
        {"nodes": "0", "schedule": "30 9 * * *", "duration": "1h"},
    ]
    pool = a_pool("web", template=SMALL, budgets=budgets)
    write_fleet(tmp_path, [pool, a_deployment("web", "web", 3), a_pool("idle")])
    rules = simulated(capsys, tmp_path, "--until", "3h")["rules"]
    assert [(r["nodePool"], r["begin"][11:16], r["end"][11:16], r["closed"]) for r in rules] == [
        ("web", "09:00", "09:30", False),
        ("web", "09:30", "10:30", True),
        ("web", "10:30", "12:00", False),
    ]
    assert [r["allowed"] for r in rules] == [
        {"Drifted": 1},
        {"Drifted": 0, "Underutilized": 0, "Empty": 0},
        {"Drifted": 1},
    ]


def test_blocked_drifted_nodes_are_listed_as_stuck(capsys: Capture, tmp_path: Path) -> None:
    pod = a_deployment("web", "web", 1, annotations={"karpenter.sh/do-not-disrupt": "true"})
    write_fleet(tmp_path, [a_pool("web", template=SMALL), pod])
    init(tmp_path / "fleet")
    commit_all(tmp_path / "fleet")
    write_fleet(tmp_path, [a_pool("web", template=SMALL, labels={"new": "yes"}), pod])
    report = simulated(capsys, tmp_path, "--base", "HEAD")
    (stuck,) = report["stuck"]
    assert stuck["name"] == report["fleet"][0]["nodeClaim"]
    assert "do-not-disrupt" in stuck["message"]
    assert report["merge"]["kept"] == 1


def test_nodes_that_are_stuck_for_one_reason_are_one_line(capsys: Capture, tmp_path: Path) -> None:
    """As in the headline of a plan: a removed NodePool has one reason for all of its nodes."""
    anywhere = a_deployment("web", "web", 6)
    del anywhere["spec"]["template"]["spec"]["nodeSelector"]
    write_fleet(tmp_path, [a_pool("web", template=SMALL), anywhere])
    init(tmp_path / "fleet")
    commit_all(tmp_path / "fleet")
    write_fleet(tmp_path, [a_pool("renamed", template=SMALL), anywhere])
    names = [one["name"] for one in simulated(capsys, tmp_path, "--base", "HEAD")["stuck"]]
    assert len(names) == 6

    assert main(["simulate", *words(tmp_path, "--base", "HEAD")]) == 0
    lines = capsys.readouterr().out.splitlines()
    heading = lines.index("Needs intervention:")
    assert lines[heading + 1].startswith(
        f"  NodeClaims {', '.join(names[:3])} and 3 more (NodePoolDeleted): "
    )
    assert lines[heading + 2] == ""


def test_a_script_of_faults_is_followed(capsys: Capture, fleet: Path) -> None:
    script = {
        "refusals": [{"instanceType": "m7i.large", "for": "1h"}],
        "calls": [{"call": "CreateFleet", "fault": "timeout-after", "times": 1}],
        "kills": [{"step": 3}],
    }
    text = dump(script)
    validator("faults.v1.json").validate(script)
    (fleet / "faults.yaml").write_text(text)
    report = simulated(capsys, fleet, "--faults", str(fleet / "faults.yaml"))
    assert {"Retrying", "Killed", "Unavailable"} <= {n["kind"] for n in report["notes"]}
    assert {c["instanceType"] for c in report["fleet"]} == {"c7i.large"}
    assert report["converged"]
    assert kinds(report).count("Launched") == 3


def test_a_throttled_launch_is_repeated_as_soon_as_the_daemon_does(
    capsys: Capture, tmp_path: Path
) -> None:
    """Its NodeClaim has no instance yet, and must not wait until it would have joined."""
    fleet = tmp_path
    write_fleet(fleet, [a_pool("web", template=SMALL), a_deployment("web", "web", 1)])
    script = {"calls": [{"call": "CreateFleet", "fault": "throttle", "times": 5}]}
    (fleet / "faults.yaml").write_text(dump(script))
    report = simulated(capsys, fleet, "--faults", str(fleet / "faults.yaml"))
    began = datetime.fromisoformat(report["startedAt"])
    launched = [e["at"] for e in report["events"] if e["kind"] == "Launched"]
    assert launched
    assert max(map(datetime.fromisoformat, launched)) - began < timedelta(minutes=5)


def test_a_fleet_reacts_to_changing_prices(capsys: Capture, tmp_path: Path) -> None:
    """The cheapest type costs three times as much from the second hour on."""
    pool = a_pool("web", template=SMALL, policy="WhenEmptyOrUnderutilized")
    write_fleet(tmp_path, [pool, a_deployment("web", "web", 1)])
    prices = {"prices": [{"at": "2h", "instanceType": "m7i.large", "factor": 3}]}
    (tmp_path / "faults.yaml").write_text(dump(prices))
    report = simulated(capsys, tmp_path, "--until", "4h", "--faults", str(tmp_path / "faults.yaml"))
    (claim,) = report["fleet"]
    assert (claim["instanceType"], claim["price"]) == ("c7i.large", 0.11)
    (command,) = [e for e in report["events"] if e["kind"] == "CommandStarted"]
    assert command["at"].startswith("2026-03-02T11:00")
    assert report["cost"]["peak"] == pytest.approx(0.41), "the expensive one and its replacement"


def as_karpenter(
    capsys: Capture, folder: Path, seed: int = 0, **conditions: object
) -> dict[str, Any]:
    """Return four hours under Karpenter's rules; after two, the price of m7i.large is tripled."""
    prices = [{"at": "2h", "instanceType": "m7i.large", "factor": 3}]
    (folder / "faults.yaml").write_text(dump({"prices": prices} | conditions))
    faults = ["--until", "4h", "--faults", str(folder / "faults.yaml")]
    return simulated(capsys, folder, *faults, "--seed", str(seed), "--set", "decide=karpenter")


def test_karpenter_checks_a_command_again_before_it_starts(capsys: Capture, tmp_path: Path) -> None:
    """Its loop waits 15 seconds for each command, and looks every ten seconds for the next one.

    Until a replacement has started, the next node is not disrupted: its pod might need that one.
    """
    pool = a_pool("web", template=SMALL, policy="WhenEmptyOrUnderutilized")
    pool["spec"]["disruption"]["budgets"] = [{"nodes": "100%"}]
    write_fleet(tmp_path, [pool, a_deployment("web", "web", 3)])

    report = as_karpenter(capsys, tmp_path)

    start = datetime(2026, 3, 2, 9, tzinfo=UTC)
    first, *later = [
        datetime.fromisoformat(e["at"]) for e in report["events"] if e["kind"] == "CommandStarted"
    ]
    assert timedelta(hours=2, seconds=15) <= first - start <= timedelta(hours=2, seconds=25)
    assert len(later) == 2
    gaps = [b - a for a, b in pairwise((first, *later))]
    looked = [(gap - timedelta(seconds=16)) / timedelta(seconds=10) for gap in gaps]
    assert all(times == int(times) and 0 <= times <= 7 for times in looked), gaps
    assert len(report["fleet"]) == 3
    assert {claim["instanceType"] for claim in report["fleet"]} == {"c7i.large"}


def test_karpenters_controllers_act_at_once(capsys: Capture, tmp_path: Path) -> None:
    """Only the disruption loop polls: the other controllers follow each event.

    So a node is initialized when it is ready, its command is completed, and its pods leave.
    """
    pool = a_pool("web", template=SMALL, policy="WhenEmptyOrUnderutilized")
    write_fleet(tmp_path, [pool, a_deployment("web", "web", 2)])
    latencies = {"joining": ["20s", "20s"], "ready": "7s", "leaving": "0s"}

    report = as_karpenter(capsys, tmp_path, latencies=latencies)

    steps = {
        kind: [datetime.fromisoformat(e["at"]) for e in report["events"] if e["kind"] == kind]
        for kind in ("CommandStarted", "Registered", "Initialized", "CommandValidated", "Drained")
    }
    begin, validated, drained = (
        steps[kind][0] for kind in ("CommandStarted", "CommandValidated", "Drained")
    )
    joined, ready = (
        min(at for at in steps[k] if at > begin) for k in ("Registered", "Initialized")
    )
    second = timedelta(seconds=1)
    assert 20 * second <= joined - begin <= 22 * second
    assert 7 * second <= ready - joined <= 8 * second
    assert validated - ready <= second
    assert drained - validated <= 2 * second


def test_a_change_meets_karpenters_loop_between_two_of_its_polls(
    capsys: Capture, tmp_path: Path
) -> None:
    """The loop polls every ten seconds. When the first poll comes is chance."""
    pool = a_pool("web", template=SMALL, policy="WhenEmptyOrUnderutilized")
    write_fleet(tmp_path, [pool, a_deployment("web", "web", 2)])
    change = datetime(2026, 3, 2, 11, tzinfo=UTC)

    waits = set()
    for seed in range(4):
        events = as_karpenter(capsys, tmp_path, seed)["events"]
        started = next(e["at"] for e in events if e["kind"] == "CommandStarted")
        waits.add(datetime.fromisoformat(started) - change - timedelta(seconds=15))

    assert all(timedelta(0) <= wait <= timedelta(seconds=11) for wait in waits), waits
    assert len(waits) > 1, "it depends on the seed"


@pytest.mark.parametrize(
    "text", ["refusal: []", "calls: [{call: RunInstances, fault: throttle}]", "a: [", "- 1",
             "neverRegister: 2", "staleReads: [{by: soon}]"],
)  # fmt: skip
def test_an_invalid_script_is_rejected(capsys: Capture, fleet: Path, text: str) -> None:
    (fleet / "faults.yaml").write_text(text)
    assert main(["simulate", *words(fleet, "--faults", str(fleet / "faults.yaml"))]) in (1, 2)
    output = capsys.readouterr()
    assert output.err.startswith("Error: ")
    assert "internal error" not in output.err


def test_timings_name_the_phases(capsys: Capture, fleet: Path) -> None:
    assert main(["simulate", *words(fleet, "--timings")]) == 0
    timings = json.loads(capsys.readouterr().err)
    assert set(timings) == {"read", "catalog", "placement", "disruption", "render", "total"}


def test_the_page_loads_nothing_and_is_well_formed(capsys: Capture, fleet: Path) -> None:
    assert main(["simulate", *words(fleet, "-o", "html")]) == 0
    page = capsys.readouterr().out
    assert not re.search(r"(src|href)=|url\(|@import|https?://", page)
    assert page.count("<svg") == page.count("</svg>") == 2
    assert page.count("<rect") >= 6, "each node starts and runs"
    assert page.endswith("</html>\n")


def test_the_timeline_settles_with_its_last_event(capsys: Capture, fleet: Path) -> None:
    assert main(["simulate", *words(fleet, "--seeds", "2")]) == 0
    out = capsys.readouterr().out
    seconds = re.findall(r"^   \+00:(\d\d):(\d\d) ", out, re.MULTILINE)
    minutes, rest = max((int(m), int(s)) for m, s in seconds)
    shown = f"{minutes}m{rest}s" if minutes else f"{rest}s"
    assert f"Settled after {shown}: " in out


def test_the_timeline_shows_simulated_time(capsys: Capture, fleet: Path) -> None:
    assert main(["simulate", *words(fleet)]) == 0
    story = capsys.readouterr().out
    assert story.startswith("Simulation from 2026-03-02 09:00 UTC\n")
    assert re.search(r"\+00:00:00  launched +web: .*3 × m7i.large on-demand", story)
    assert "Cost: +$219/month ($0 → $0.30/hour); peak $0.30/hour; spent less than $0.01." in story


def a_pod(name: str, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u",
                 "controller": True}
            ],
        },
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": "1500m"}}}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


def a_cluster(*, pods: int, nodes: int) -> list[dict[str, Any]]:
    """Return nodes of the pool ``web``, the first of them with a pod each."""
    items: list[dict[str, Any]] = [a_pod(f"web-{n}", f"node-{n}") for n in range(pods)]
    amounts = {"cpu": "2", "memory": "8Gi", "pods": "30"}
    for number in range(nodes):
        provider = f"aws:///us-east-1a/i-{number:017x}"
        labels = {
            "karpenter.sh/nodepool": "web",
            "karpenter.sh/capacity-type": "on-demand",
            "node.kubernetes.io/instance-type": "m7i.large",
            "topology.kubernetes.io/zone": "us-east-1a",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "pool": "web",
        }
        there = {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
        status = {"capacity": amounts, "allocatable": amounts}
        done = [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-03-01T09:00:00Z"}
            for kind in ("Launched", "Registered", "Initialized", "Consolidatable")
        ]
        items += [
            {
                "apiVersion": "karpenter.sh/v1",
                "kind": "NodeClaim",
                "metadata": {
                    "name": f"old-{number}",
                    "labels": labels,
                    "creationTimestamp": "2026-03-01T09:00:00Z",
                },
                "spec": {"nodeClassRef": {"name": "default"}, "expireAfter": "Never"},
                "status": {
                    **status,
                    "providerID": provider,
                    "nodeName": f"node-{number}",
                    "conditions": done,
                },
            },
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": f"node-{number}", "labels": {**labels, **there}},
                "spec": {"providerID": provider},
                "status": {**status, "conditions": [{"type": "Ready", "status": "True"}]},
            },
        ]
    return items
