"""What strangers and tenants can do to ``watch``: its episodes, its record, its rights."""

from __future__ import annotations

import gzip
import json
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.database import predictions as record
from reconciler.adapters.kubernetes.access import access_of
from reconciler.adapters.kubernetes.api import Api
from reconciler.adapters.kubernetes.informers import ClusterCache, Freshness
from reconciler.adapters.kubernetes.kinds import OBSERVED, OF_KARPENTER, Kind, watch_role
from reconciler.assembly.capturing import anonymize_objects
from reconciler.assembly.cluster import api_of
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.cli.main import main
from reconciler.desired.migration.captured import without_environments
from reconciler.desired.migration.controller import running_controller, settings_of_deployment
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import LAST_APPLIED
from reconciler.model.karpenter.prediction import (
    KarpenterAction,
    KarpenterActionKind,
    NodeFacts,
    Prediction,
)
from reconciler.model.settings import ClusterKind, Settings
from reconciler.watch.causes import Evidence, KarpenterEvent, explain_miss, read_events
from reconciler.watch.episodes import file as episodefile
from reconciler.watch.episodes.folder import EPISODES_MAX, episode_saver
from reconciler.watch.livecluster import KINDS
from reconciler.watch.page import render_html
from reconciler.watch.report import render_report, report_of
from reconciler.watch.scoring import score_action
from tests.adapters.kubernetes.apiserver import Kube, serving, write_kubeconfig
from tests.hostile.test_output import (
    PAYLOADS,
    assert_inert_on_a_terminal,
    assert_inert_page,
    through_the_door,
)
from tests.hostile.threats import Threat, attack
from tests.states import open_state
from tests.watch.claims import START, after, claim
from tests.watch.test_causes import missed
from tests.watch.test_live import POOL, a_watched_kube, stop_after
from tests.watch.test_session import Seen, World, launching

kube = pytest.fixture(a_watched_kube, name="kube")
LINE: JsonDict = {
    "message": "disrupting node(s)",
    "time": "2026-03-01T12:00:00Z",
    "disrupted-nodes": [{"Node": {"name": "a"}}],
    "command": "Empty/1",
    "replacement-node-count": 0,
}
EPISODE: JsonDict = {
    "now": "2026-03-01T12:00:00Z", "pools": [], "log": [LINE], "created": [], "before": [],
    "snapshot": {"items": []},
}  # fmt: skip
CLAIM: JsonDict = {"kind": "NodeClaim", "metadata": {"name": "a"}}
ODD: dict[str, JsonDict] = {
    "text for labels": {"snapshot": {"items": [CLAIM | {"metadata": {"labels": "x"}}]}},
    "a number for a command": {"log": [LINE | {"command": 5}]},
    "more replacements than memory": {"log": [LINE | {"replacement-node-count": 10**12}]},
    "a negative number": {"log": [LINE | {"replacement-node-count": -1}]},
    "no time zone": {"now": "2026-03-01T12:00:00"},
    "an object without a kind": {"snapshot": {"items": [{}]}},
    "an object that is text": {"snapshot": {"items": ["x"]}},
    "a pool that is text": {"pools": ["x"]},
    "a pool without a name": {"pools": [{}]},
    "an age that is text": {"steps": [{"now": EPISODE["now"], "age": "x", "command": LINE}]},
    "a name that is a list": {"created": [{"name": [], "nodePool": "", "labels": {}}]},
    "a number that is none": {"before": [CLAIM | {"price": 1e999}]},
}
RAW = {
    "nothing": b"",
    "an empty archive": gzip.compress(b""),
    "an archive that is cut": gzip.compress(json.dumps(EPISODE).encode())[:-9],
    "nested without end": b"[" * 100_000,
    "nested in a field": b'{"pools":' + b"[" * 100_000,
    "bytes": b"\xff\xfe\x00",
}


def replayed(content: bytes, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the status and the output of a replay of a file with this content."""
    file = folder / "miss.json.gz"
    file.write_bytes(content)
    (folder / "catalog.json").write_text("[]")
    code = main(["watch", "replay", str(file), "--catalog", str(folder / "catalog.json")])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


@attack(Threat.EXHAUSTION, "an episode with odd values, in place of one that watch has saved")
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_episode_is_an_error_of_one_line(
    odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = replayed(json.dumps(EPISODE | ODD[odd]).encode(), tmp_path, capsys)
    assert code in (0, 1)
    assert "internal error" not in shown.lower()
    assert "Traceback" not in shown
    assert shown.count("\n") < 12


@attack(Threat.EXHAUSTION, "an episode of a year in which no calculation with time is possible")
@pytest.mark.parametrize("now", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_an_episode_of_an_odd_year_is_refused(
    now: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = replayed(json.dumps(EPISODE | {"now": now}).encode(), tmp_path, capsys)
    assert (code, "a time before 2000 or after 2400" in shown) == (1, True)


@attack(Threat.EXHAUSTION, "a file that is not an episode, is damaged, or is nested without end")
@pytest.mark.parametrize("kind", RAW)
def test_a_damaged_episode_is_an_error_of_one_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = replayed(RAW[kind], tmp_path, capsys)
    assert code == 1
    assert "miss.json.gz: " in shown
    assert shown.count("\n") == 1


@attack(Threat.EXHAUSTION, "an episode that unpacks to more than memory")
def test_an_episode_is_unpacked_up_to_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodefile, "BYTES_MAX", 1 << 20)
    for content in (gzip.compress(b" " * (1 << 21)), b" " * (1 << 21)):
        code, shown = replayed(content, tmp_path, capsys)
        assert (code, "has more than 1 MiB" in shown) == (1, True)


@attack(Threat.OUTPUT, "an episode whose names contain terminal escapes and workflow commands")
def test_names_in_an_episode_are_printed_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "a\n::set-output name=x::y\x1b[2J\u202e"
    created = {"name": evil, "nodePool": evil, "labels": {"node.kubernetes.io/instance-type": evil}}
    lines = [
        {"message": "created nodeclaim", "time": LINE["time"], "NodeClaim": {"name": evil}},
        LINE | {"time": "2026-03-01T12:00:05Z", "command": evil},
    ]
    for log in (lines, lines[1:]):
        content = json.dumps(EPISODE | {"log": log, "created": [created], "pools": [POOL]}).encode()
        _, shown = replayed(content, tmp_path, capsys)
        assert "1 launch" in shown or "1 command" in shown
        assert_inert_on_a_terminal(shown)
        assert not any(line.startswith("::") for line in shown.splitlines())


@attack(Threat.SECRETS, "environments and annotations of pods, in an episode that watch saves")
def test_an_episode_contains_no_environment_of_a_pod(tmp_path: Path) -> None:
    secret = {"name": "TOKEN", "value": "canary"}
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "annotations": {LAST_APPLIED: "canary"},
                     "managedFields": [{"manager": "canary"}]},
        "spec": {"containers": [{"name": "c", "image": "canary", "env": [secret],
                                 "args": ["canary"]}],
                 },
    }  # fmt: skip

    class Cluster(World):
        def observe(self) -> Seen:
            return SeenWith(self.claims, [pod])

    with open_state(str(tmp_path), "web") as state:
        world = Cluster(state)
        world.steps(0)
        world.claims = (claim("a", "c5.large", at=2), claim("b", at=2))
        world.steps(2, 8)
        (episode,) = world.episodes
    text = msgspec.json.encode(episode)
    assert b'"name":"p"' in text
    assert b"canary" not in text


@dataclass(frozen=True)
class SeenWith(Seen):
    """NodeClaims and other objects, as one observation has them."""

    others: Sequence[JsonDict] = ()

    def objects(self) -> Sequence[JsonDict]:
        return [*super().objects(), *self.others]


@attack(Threat.EXHAUSTION, "pods that make predictions wrong until episodes fill the disk")
def test_a_folder_of_episodes_has_a_limit(tmp_path: Path) -> None:
    warnings: list[str] = []
    save = episode_saver(str(tmp_path / "misses"), warnings.append)
    saved = [save({"name": f"launch-{number}"}) for number in range(EPISODES_MAX + 3)]
    assert all(saved[:EPISODES_MAX])
    assert saved[EPISODES_MAX:] == ["", "", ""]
    assert len(list((tmp_path / "misses").iterdir())) == EPISODES_MAX
    (warning,) = warnings
    assert "misses: 200 episodes are saved" in warning


@attack(Threat.SECRETS, "another user who reads an episode")
def test_an_episode_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    usual = os.umask(0)
    try:
        saved = episode_saver(str(tmp_path), lambda _: None)({"name": "launch-1"})
    finally:
        os.umask(usual)
    assert stat.S_IMODE(Path(saved).stat().st_mode) == 0o600


@attack(Threat.EXHAUSTION, "a pod that comes and goes twice a second, for the record to grow")
def test_the_record_of_predictions_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "KEPT_MAX", 5)
    with open_state(str(tmp_path), "web") as state:
        world = World(state)
        for number in range(20):
            world.plan = launching(*["m5.large"] * (1 + number % 2))
            world.until = after(float(number))
            world.steps(float(number))
        world.until = after(3700)
        world.steps(3700)  # what is too much is removed once an hour
        assert len(state.predictions.predictions(START)) <= 6
        assert state.predictions.predictions(START)[-1].sequence == 20, "the last one is kept"


@attack(Threat.HIDDEN, "two commands of one second, of which one episode would replace the other")
def test_two_actions_of_one_second_are_two_episodes(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state:
        world = World(state, claims=(claim("a"), claim("b")), plan=launching())
        world.steps(0)
        world.claims = (
            claim("a", disrupted=("Underutilized", 3)),
            claim("b", disrupted=("Drifted", 3)),
        )
        world.steps(4, 10)
        assert len({episode["name"] for episode in world.episodes}) == 2


READ = [(verb, kind) for kind in (*OBSERVED, *OF_KARPENTER) for verb in ("list", "watch")]


@attack(Threat.CLUSTER, "a right of watch that it does not need, each taken away")
@pytest.mark.parametrize(("verb", "kind"), READ, ids=lambda v: getattr(v, "resource", v))
def test_each_right_of_watch_is_missed(
    verb: str, kind: Any, kube: Kube, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    kube.absent = frozenset()
    kube.rules = [
        {"apiGroups": [k.group], "resources": [k.resource], "verbs": [v]}
        for v, k in READ
        if (v, k) != (verb, kind)
    ]
    if verb == "watch":
        api = api_of(Settings(cluster="kubeconfig"), SystemClock())
        cache = ClusterCache(api, Freshness(stale_after_s=0.1), kinds=KINDS)
        cache.advance()
        cache.advance()
        assert f"cannot watch {kind.resource}" in caplog.text
    else:
        stop_after(kube, 2)
        assert main(["watch", "--context", "shop", "--set", "aws.region=us-east-1"]) == 1
        assert kind.resource in capsys.readouterr().err


@attack(Threat.EXHAUSTION, "a NodeClaim that cannot be read, while Karpenter is watched")
def test_an_unreadable_nodeclaim_does_not_stop_watch(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    item = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "odd"}}
    kube.add({**item, "spec": {"requirements": 5}, "status": {"nodeName": [1]}})
    stop_after(kube, 2)
    status = main(["watch", "--context", "shop", "--set", "aws.region=us-east-1"])
    assert status == 0, capsys.readouterr().err


@attack(Threat.SETTINGS, "a Deployment of a tenant that looks like Karpenter's controller")
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("namespace", ["kube-system", "platform"])
def test_no_deployment_of_a_tenant_chooses_settings(namespace: str, is_first: bool) -> None:
    def deployment(where: str, created: str, name: str) -> JsonDict:
        env = [{"name": "CLUSTER_NAME", "value": name}]
        container = {"name": "controller", "image": "karpenter/controller:1.6.0", "env": env}
        return {
            "kind": "Deployment",
            "metadata": {"name": "karpenter", "namespace": where, "creationTimestamp": created},
            "spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
        }

    own = deployment(namespace, "2026-01-01T00:00:00Z", "shop")
    forged = deployment("tenant", "2026-02-01T00:00:00Z", "forged")
    found = running_controller([own, forged] if is_first else [forged, own])
    assert found is not None
    assert settings_of_deployment(found).values["clusterName"] == "shop"


def _about(kind: str, name: str, namespace: str = "", **fields: Any) -> JsonDict:
    """Return an Event that a tenant has written in the name of Karpenter."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{kind[:20].lower()}-{namespace}",
            "namespace": namespace or "default",
        },
        "reason": "DisruptionBlocked",
        "note": "forged",
        "regarding": {"kind": kind, "name": name, "namespace": namespace},
        "reportingController": "karpenter",
        "deprecatedLastTimestamp": "2026-03-02T09:00:10Z",
        **fields,
    }


@attack(Threat.HIDDEN, "an Event in a tenant's namespace that Karpenter seems to have written")
def test_an_event_of_a_tenant_explains_nothing_about_the_cluster(tmp_path: Path) -> None:
    cluster = Kube(rules=watch_role("any")["rules"])
    for kind in ("Node", "NodeClaim", "NodePool"):
        cluster.add(_about(kind, "node-a", "crowd"))
    cluster.add(_about("K" * 100_000, "node-a"))
    cluster.add(_about("\x1b[2J", "node-a"))
    cluster.add(_about("Pod", "p" * 100_000, "crowd", reason="FailedScheduling"))
    cluster.add(_about("Node", "node-a", note="of Karpenter"))
    cluster.add(_about("Pod", "p", "other", reason="FailedScheduling", note="n" * 100_000))
    with serving(cluster) as url:
        path = write_kubeconfig(tmp_path / "kubeconfig", url)
        settings = Settings(cluster=ClusterKind.KUBECONFIG, kubeconfig=str(path))
        found = read_events(Api(lambda: access_of(settings), lambda _: None))
    texts = {(e.kind, e.text.rstrip("n")) for e in found}
    assert texts == {("Node", "of Karpenter"), ("Pod", "forged"), ("Pod", "")}
    assert all(len(e.name) < 300 and len(e.text) <= 300 for e in found)
    asked = {call.query.get("fieldSelector", "") for call in cluster.calls}
    everywhere = {one for one in asked if "metadata.namespace=default" not in one}
    assert everywhere == {"reason=FailedScheduling"}


@attack(Threat.EXHAUSTION, "pods that cause Events without end")
def test_a_number_of_events_is_read_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.watch.causes.EVENTS_MAX", 40)
    cluster = Kube(rules=watch_role("any")["rules"], page_max=20)
    for number in range(500):
        event = _about("Pod", f"p-{number}", "crowd", reason="FailedScheduling")
        event["metadata"]["name"] = f"e-{number:04}"
        cluster.add(event)
    cluster.add(_about("Node", "node-a", note="of Karpenter"))
    with serving(cluster) as url:
        path = write_kubeconfig(tmp_path / "kubeconfig", url)
        settings = Settings(cluster=ClusterKind.KUBECONFIG, kubeconfig=str(path))
        found = read_events(Api(lambda: access_of(settings), lambda _: None))
    assert sum(event.kind == "Pod" for event in found) == 40
    assert [event.name for event in found if event.kind == "Node"] == ["node-a"]
    lists = [c for c in cluster.calls if "FailedScheduling" in c.query.get("fieldSelector", "")]
    assert len(lists) == 2
    assert all(0 < int(call.query["limit"]) <= 500 for call in lists)


@attack(Threat.HIDDEN, "an Event of the future, to stay the newest one")
def test_an_event_of_the_future_is_not_a_cause() -> None:
    score, prediction = missed("node-a")
    events = [
        KarpenterEvent("DisruptionBlocked", "Node", "node-a", "true", after(10)),
        KarpenterEvent("DisruptionBlocked", "Node", "node-a", "false", after(10**9)),
    ]
    cause = explain_miss(score, prediction, Evidence(events, (), ()))
    assert "true" in cause
    assert "false" not in cause


@attack(Threat.OUTPUT, "hostile text in a report of `watch`, as text and as a page")
@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_report_of_watch_is_inert(payload: str) -> None:
    odd = NodeFacts(payload, payload, payload, payload, 1, payload)
    other = msgspec.structs.replace(odd, instance_type=f"{payload}x")
    score = score_action(
        KarpenterAction(after(3), KarpenterActionKind.LAUNCH, (other,)),
        Prediction(START, (odd,), (), 3),
    )
    score = msgspec.structs.replace(score, cause=payload, episode=payload)
    report = report_of([score], START)
    assert_inert_page(render_html(report))
    assert_inert_on_a_terminal(through_the_door(render_report(report)))


ODD_VALUES: Sequence[object] = (None, 5, "x", ["x"], {"a": 5}, {"": None}, [[]], {"x": {"y": []}})
POINTERS = (
    "spec", "status", "metadata.labels", "metadata.annotations", "metadata.ownerReferences",
    "spec.template", "spec.template.spec", "spec.template.spec.containers", "spec.selector",
    "spec.requirements", "spec.limits", "spec.capacity", "spec.taints", "spec.metadata",
    "spec.scaleTargetRef", "spec.triggers", "status.conditions", "data", "parameters",
)  # fmt: skip


@attack(Threat.EXHAUSTION, "an odd value in an object of any kind, while snapshots are published")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_no_odd_object_ends_the_publishing_of_snapshots(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECONCILER_ANONYMIZE_KEY", "0123456789abcdef" * 2)
    fleet = FleetRequest(settings=(), is_of_cluster=True)
    for pointer in POINTERS:
        for value in ODD_VALUES:
            item: JsonDict = {
                "apiVersion": kind.api_version, "kind": kind.kind,
                "metadata": {"name": "a", "namespace": "b"},
            }  # fmt: skip
            place = item
            *above, last = pointer.split(".")
            for step in above:
                place = place.setdefault(step, {})
            place[last] = value
            found = anonymize_objects([without_environments(item)], fleet, has_fleet=False)
            assert len(found) <= 1


@attack(Threat.EXHAUSTION, "an episode with thousands of commands, lines of a log and nodes")
@pytest.mark.parametrize("changed", ["log", "before"])
def test_reading_an_episode_takes_time_in_proportion_to_its_size(changed: str) -> None:
    later = {"time": "2026-03-01T15:00:00Z", "message": "created nodeclaim"}
    step = {"now": EPISODE["now"], "age": 0.1, "command": LINE, "snapshot": {"items": []}}
    row = {"node": "", "nodePool": "", "instanceType": "", "zone": "", "capacityType": ""}
    taken = []
    for count in (1_000, 4_000):
        rows: dict[str, Any] = {
            "log": [later] * count,
            "before": [row | {"node": f"n{number}"} for number in range(count)],
        }
        content = json.dumps(
            EPISODE | {"steps": [step] * count, "log": [], changed: rows[changed]}
        ).encode()
        start = time.process_time()
        found = episodefile.actions_of(episodefile.decode_episode(content, "miss.json"))
        taken.append(time.process_time() - start)
        assert len(found) >= count
    assert taken[1] < max(8 * taken[0], 1.0)
