"""``reconciler plan`` end to end: inputs, output, saved plans, errors, and exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from reconciler._resources import resource_path
from reconciler.cli.main import main
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.plan.approval import read_saved_plan
from reconciler.plan.value.plan import from_json
from tests.cli.commandlines import request_of
from tests.contracts.records import a_claim
from tests.repositories import commit_all, git, init
from tests.states import open_state

DEMO = Path(__file__).parents[2] / "reconciler" / "demo" / "fleet"
NOW = "2026-01-03T12:00:00Z"
POOL = """\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: general}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
        - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
"""
CLASS = """\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  role: nodes
  amiSelectorTerms: [{alias: al2023@latest}]
  subnetSelectorTerms: [{id: subnet-0123456789abcdef0}]
  securityGroupSelectorTerms: [{id: sg-0123456789abcdef0}]
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      containers: [{name: api, image: api, resources: {requests: {cpu: 500m, memory: 1Gi}}}]
"""
CLASS_REF = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
CATALOG = [
    {
        "name": name,
        "capacity": {"cpu": cpu, "memory": "8Gi", "pods": "29", "ephemeral-storage": "20Gi"},
        "overhead": {"cpu": "100m"},
        "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}],
        "offerings": [
            {"zone": f"z-{zone}", "capacityType": "on-demand", "price": price} for zone in "ab"
        ],
    }
    for name, cpu, price in (("small", "2", 0.1), ("large", "8", 0.35))
]


def a_fleet(beside: Path, deployment: str, catalog: list[dict]) -> Path:
    """Write a fleet with one pool, its class and a workload; its catalog is next to it."""
    folder = beside / "fleet"
    folder.mkdir()
    (folder / "pool.yaml").write_text(POOL)
    (folder / "class.yaml").write_text(CLASS)
    (folder / "app.yaml").write_text(deployment)
    (beside / "catalog.json").write_text(json.dumps(catalog))
    return folder


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return a_fleet(tmp_path, DEPLOYMENT, CATALOG)


@pytest.fixture
def plan(fleet: Path, capsys: pytest.CaptureFixture[str]):
    """Run the command on the fleet, with a small catalog and a fixed time."""

    def run(*arguments: str, catalog: bool = True, folder: Path = fleet) -> SimpleNamespace:
        words = ["plan", str(folder), "--now", NOW]
        words += ["--catalog", str(fleet.parent / "catalog.json")] if catalog else []
        code = main([*words, *arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


def a_node(claim: str, **annotations: str) -> list[dict]:
    """A NodeClaim of the pool and its node, ready."""
    labels = {
        "karpenter.sh/nodepool": "general",
        "karpenter.sh/registered": "true",
        "karpenter.sh/initialized": "true",
        "karpenter.sh/capacity-type": "on-demand",
        "node.kubernetes.io/instance-type": "large",
        "topology.kubernetes.io/zone": "z-a",
        "kubernetes.io/hostname": f"node-{claim}",
    }
    ready = [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("Launched", "Registered", "Initialized", "Consolidatable", "Ready")
    ]
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "29"}
    created = "2026-01-01T00:00:00Z"
    metadata = {"creationTimestamp": created, "labels": labels, "annotations": annotations}
    return [
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": claim, **metadata},
            "spec": {"nodeClassRef": CLASS_REF},
            "status": {
                "providerID": f"aws:///z-a/{claim}",
                "nodeName": f"node-{claim}",
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": ready,
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"node-{claim}", **metadata},
            "spec": {"providerID": f"aws:///z-a/{claim}"},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": ready},
        },
    ]


def a_snapshot(path: Path, *objects: dict) -> str:
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    return str(path)


@cache
def validator() -> Draft202012Validator:
    schema = json.loads(Path(resource_path("schemas", "plan.v1.json")).read_bytes())
    return Draft202012Validator(schema, format_checker=FormatChecker())


def test_the_workloads_of_a_repository_are_planned_without_a_cluster(plan) -> None:
    answer = plan("-o", "json")
    found = json.loads(answer.out)
    validator().validate(found)
    assert (answer.code, answer.err) == (0, "")
    assert {p["pod"] for p in found["placements"]} == {f"web/api-{i}" for i in _suffixes(found)}
    assert found["unschedulable"] == []
    assert [a["kind"] for a in found["actions"]] == ["provision"] * len(found["nodeClaims"])
    assert found["cost"]["before"] == 0
    assert found["cost"]["after"] == sum(c["launch"]["price"] for c in found["nodeClaims"])
    assert found["at"] == NOW


def _suffixes(found: dict) -> set[str]:
    return {p["pod"].removeprefix("web/api-") for p in found["placements"]}


def test_the_default_output_is_text(plan) -> None:
    answer = plan()
    assert "fleet (not in a git repository)" in answer.out
    assert "+ launch" in answer.out
    assert "3 pending pods: web/api-* (3)" in answer.out
    assert "\x1b[" not in answer.out


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html", "mermaid"])
def test_every_format_is_printed(plan, form: str) -> None:
    answer = plan("-o", form)
    assert answer.code == 0
    assert answer.out.endswith("\n")


def test_exit_codes_show_whether_there_are_changes(plan, tmp_path: Path) -> None:
    empty = a_snapshot(tmp_path / "snapshot.json")
    assert plan("--detailed-exitcode").code == 2
    assert plan("--detailed-exitcode", "--snapshot", empty).code == 0
    assert plan().code == 0


def test_a_saved_plan_can_be_read_again(plan, tmp_path: Path) -> None:
    answer = plan("--out", str(tmp_path / "plan.json"), "-o", "json")
    saved = (tmp_path / "plan.json").read_bytes()
    validator().validate(json.loads(saved))
    assert from_json(saved).digest == from_json(answer.out.encode()).digest
    assert [p.name for p in tmp_path.glob("plan.json*")] == ["plan.json"]


def test_the_next_command_is_named(plan, tmp_path: Path) -> None:
    assert f"reconciler apply {tmp_path / 'p'}" in plan("--out", str(tmp_path / "p")).out


def test_removing_empty_nodes_lowers_the_cost(plan, tmp_path: Path) -> None:
    snapshot = a_snapshot(tmp_path / "snapshot.json", *a_node("general-1"))
    found = json.loads(plan("-o", "json", "--snapshot", snapshot).out)
    assert [c["reason"] for c in found["commands"]] == ["Empty"]
    assert [a["id"] for a in found["actions"]] == ["terminate/general-1"]
    assert found["actions"][0]["costDelta"] == -0.35
    assert found["cost"]["byNodePool"]["general"] == {
        "nodesBefore": 1, "nodesAfter": 0, "before": 0.35, "after": 0.0,
        "nodesBase": None, "base": None,
    }  # fmt: skip


def test_a_snapshot_may_come_from_stdin(plan, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"kind": "List", "items": a_node("general-1")}).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
    assert "remove 1 × large on-demand" in plan("--snapshot", "-").out


def test_changes_of_git_against_the_cluster_are_shown(plan, tmp_path: Path) -> None:
    live = json.loads(json.dumps({
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "general"},
        "spec": {"limits": {"cpu": "10"}, "template": {"spec": {
            "nodeClassRef": CLASS_REF,
            "requirements": [],
        }}},
    }))  # fmt: skip
    snapshot = a_snapshot(tmp_path / "snapshot.json", live)
    found = json.loads(plan("-o", "json", "--snapshot", snapshot).out)
    update = next(c for c in found["changes"] if c["kind"] == "NodePool")
    assert (update["op"], update["file"], update["line"]) == ("update", "pool.yaml", 1)
    assert {f["path"] for f in update["fields"]} == {
        "spec.limits.cpu", "spec.template.spec.requirements",
    }  # fmt: skip
    assert found["comparedWith"] == "cluster"


def test_a_claim_without_an_instance_is_launched(plan, tmp_path: Path) -> None:
    claim = a_node("waiting")[0]
    del claim["status"]
    snapshot = a_snapshot(tmp_path / "snapshot.json", claim)
    found = json.loads(plan("-o", "json", "--snapshot", snapshot).out)
    assert found["nodeClaims"] == []
    assert [(a["kind"], a["nodeClaim"]) for a in found["actions"]] == [("provision", "waiting")]


def test_removal_of_a_pool_needs_approval_by_name(plan, tmp_path: Path) -> None:
    nodes = a_node("old-1")
    for item in nodes:
        item["metadata"]["labels"] = {
            **item["metadata"]["labels"], "karpenter.sh/nodepool": "old",
        }  # fmt: skip
    snapshot = a_snapshot(tmp_path / "snapshot.json", *nodes)
    waiting = json.loads(plan("-o", "json", "--snapshot", snapshot).out)
    assert [(d["nodeClaim"], d["waitsFor"]) for d in waiting["deferred"]] == [("old-1", "approval")]
    assert waiting["actions"] == []
    assert waiting["blocked"] == [], "it is listed once, with what it waits for"
    allowed = json.loads(plan("-o", "json", "--snapshot", snapshot, "--allow-removal", "old").out)
    assert [c["reason"] for c in allowed["commands"]] == ["NodePoolDeleted"]


def test_timings_are_seconds_by_phase(plan) -> None:
    answer = plan("--timings", "-o", "json")
    seconds = json.loads(answer.err)
    assert set(seconds) == {"read", "catalog", "placement", "disruption", "render", "total"}
    assert 0 < sum(v for k, v in seconds.items() if k != "total") <= seconds["total"]


def test_the_order_of_files_changes_nothing(plan, fleet: Path) -> None:
    first = plan("-o", "json").out
    (fleet / "pool.yaml").rename(fleet / "zz.yaml")
    (fleet / "app.yaml").rename(fleet / "00.yaml")
    assert plan("-o", "json").out == first


def backwards(value: object) -> object:
    """Every mapping of a value in the opposite order."""
    if isinstance(value, dict):
        return {key: backwards(item) for key, item in reversed(value.items())}
    return [backwards(item) for item in value] if isinstance(value, list) else value


def test_the_order_of_a_snapshot_changes_nothing(plan, tmp_path: Path) -> None:
    objects = [o for name in ("general-1", "general-2", "general-3") for o in a_node(name)]
    first = a_snapshot(tmp_path / "first.json", *objects)
    second = a_snapshot(tmp_path / "second.json", *map(backwards, reversed(objects)))
    assert plan("-o", "json", "--snapshot", first).out == plan(
        "-o", "json", "--snapshot", second
    ).out  # fmt: skip


def test_each_input_has_its_own_digest(plan, fleet: Path, tmp_path: Path) -> None:
    def digests(*words: str) -> dict:
        return json.loads(plan("-o", "json", *words).out)["inputs"]

    before = digests()
    snapshot = a_snapshot(tmp_path / "s.json", *a_node("general-1"))
    assert _moved(before, digests("--snapshot", snapshot)) == {"snapshot"}
    assert _moved(before, digests("--set", "packing=cheapest")) == {"settings"}
    (fleet.parent / "catalog.json").write_text(json.dumps(CATALOG[:1]))
    assert _moved(before, digests()) == {"catalog"}
    (fleet / "pool.yaml").write_text(f"# a comment moves nothing\n{POOL}")
    assert _moved(before, digests()) == {"catalog"}
    (fleet / "pool.yaml").write_text(POOL.replace("[on-demand]", "[spot]"))
    assert _moved(before, digests()) == {"catalog", "git"}


def _moved(before: dict, after: dict) -> set[str]:
    return {name for name in before if before[name] != after[name]}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_hash_seeds_change_nothing(fleet: Path) -> None:
    words = ["plan", str(fleet), "--now", NOW, "-o", "json"]
    words += ["--catalog", str(fleet.parent / "catalog.json")]
    answers = {
        subprocess.run(
            [sys.executable, "-m", "reconciler", *words],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(answers) == 1


@pytest.fixture
def repository(fleet: Path) -> Path:
    init(fleet)
    commit_all(fleet)
    return fleet


def test_the_commit_and_uncommitted_changes_are_shown(plan, repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    clean = json.loads(plan("-o", "json").out)
    assert (clean["revision"]["head"], clean["revision"]["dirty"]) == (head, False)
    (repository / "app.yaml").write_text(DEPLOYMENT.replace("replicas: 3", "replicas: 5"))
    dirty = json.loads(plan("-o", "json").out)
    assert dirty["revision"]["dirty"] is True
    assert len(dirty["placements"]) == 5
    committed = json.loads(plan("-o", "json", "--ref", "main").out)
    assert len(committed["placements"]) == 3
    assert "with uncommitted changes" in plan().out


def test_a_base_shows_what_a_pull_request_changes(plan, repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    (repository / "pool.yaml").write_text(POOL.replace("[on-demand]", "[spot, on-demand]"))
    (repository / "app.yaml").unlink()
    commit_all(repository)
    found = json.loads(plan("-o", "json", "--base", "HEAD~1").out)
    assert found["revision"]["base"] == first
    assert [(c["op"], c["kind"]) for c in found["changes"]] == [
        ("delete", "Deployment"), ("update", "NodePool"),
    ]  # fmt: skip
    head = git(repository, "rev-parse", "HEAD")
    assert f"{first[:8]} → {head[:8]}" in plan("--base", "HEAD~1").out
    (repository / "app.yaml").write_text(DEPLOYMENT)
    assert f"{first[:8]} → working tree" in plan("--base", "HEAD~1").out


@pytest.mark.parametrize("by", [None, "workload", "label=app"])
def test_a_change_names_those_who_pay_for_it(plan, repository: Path, by: str | None) -> None:
    other = DEPLOYMENT.replace("namespace: web", "namespace: search")
    (repository / "other.yaml").write_text(other)
    commit_all(repository)
    (repository / "other.yaml").write_text(other.replace("replicas: 3", "replicas: 9"))
    (repository / "app.yaml").write_text(DEPLOYMENT.replace("replicas: 3", "replicas: 5"))
    commit_all(repository)
    words = () if by is None else ("--by", by)

    found = json.loads(plan("-o", "json", "--base", "HEAD~1", *words).out)

    change, shares = found["atRest"], found["atRest"]["shares"]
    assert shares["by"] == (by or "namespace")
    for side in ("before", "after"):
        whole = sum(group[side] for group in shares["groups"].values())
        assert whole == pytest.approx(change[side]["perHour"])
    if by is None:
        assert shares["groups"].keys() == {"search", "web"}
        (line,) = [
            text for text in found["summary"]["text"] if text.startswith("By namespace ($/month): ")
        ]
        assert line.startswith("By namespace ($/month): search +$")
        assert "Cost by namespace" in plan("-o", "markdown", "--base", "HEAD~1").out


@pytest.mark.parametrize(
    ("old", "new", "is_kept"),
    [
        ("consolidateAfter: 0s", "consolidateAfter: Never", True),
        ("consolidateAfter: 0s", "consolidateAfter: 10m", False),
    ],
)
def test_a_change_that_stops_consolidation_names_what_the_present_nodes_cost(
    plan, repository: Path, tmp_path: Path, old: str, new: str, is_kept: bool
) -> None:
    """It had "no effect on cost", because the base had removed the nodes before it began."""
    pool = POOL.replace("spec:\n", "spec:\n  disruption: {consolidateAfter: 0s}\n", 1)
    for text in (pool, pool.replace(old, new)):
        (repository / "pool.yaml").write_text(text)
        commit_all(repository)
    nodes = [item for name in ("n-1", "n-2") for item in a_node(name)]
    snapshot = a_snapshot(tmp_path / "snapshot.json", *nodes)

    policies = tmp_path / "policies.yaml"
    policies.write_text(
        "policies:\n"
        "- {name: cost, severity: warning, expression: plan.atRest.perMonth < 1.0}\n"
        "- {name: sum, severity: warning, expression: plan.summary.perMonth < 1.0}\n"
        "- {name: pods, severity: warning, expression: size(plan.unschedulable) == 0}\n"
        "- name: exempted\n"
        "  severity: warning\n"
        "  expression: plan.atRest.perMonth < 1.0\n"
        "  exemptions: [{owner: me, expires: 2999-01-01, reason: test}]\n"
    )
    words = ("--base", "HEAD~1", "--snapshot", snapshot, "--policy", str(policies))

    found = json.loads(plan("-o", "json", *words).out)

    validator().validate(found)
    verdicts = {one["name"]: one["result"] for one in found["policies"]}
    assert verdicts == {
        "cost": "failed" if is_kept else "passed",
        "sum": "failed" if is_kept else "passed",
        "pods": "passed",
        "exempted": "exempted" if is_kept else "passed",
    }
    assert found["atRest"]["perMonth"] == found["summary"]["perMonth"] == 0
    if is_kept:
        cost = found["summary"]["keptPerMonth"]
        assert cost > 1
        (one,) = [one for one in found["policies"] if one["name"] == "cost"]
        assert "with the present nodes, which the change keeps" in one["message"]
        assert one["values"][0]["value"] == cost
    phrase = "but the present nodes are no longer consolidated to that: +$"
    assert (phrase in found["summary"]["text"][0]) is is_kept
    assert (found["atRest"].get("kept", {}).get("nodes") == 2) is is_kept


def test_a_fleet_of_one_namespace_names_the_workloads_that_pay(plan, repository: Path) -> None:
    other = DEPLOYMENT.replace("name: api", "name: search")
    (repository / "other.yaml").write_text(other)
    commit_all(repository)
    (repository / "other.yaml").write_text(other.replace("replicas: 3", "replicas: 9"))
    commit_all(repository)

    change = json.loads(plan("-o", "json", "--base", "HEAD~1").out)["atRest"]

    assert change["shares"]["by"] == "workload"
    assert {"Deployment web/search", "Deployment web/api"} <= change["shares"]["groups"].keys()
    named = json.loads(plan("-o", "json", "--base", "HEAD~1", "--by", "namespace").out)
    assert named["atRest"]["shares"]["by"] == "namespace"


def test_pods_without_a_place_in_steady_state_have_a_reason(plan, repository: Path) -> None:
    """The first pass from an empty cluster places all six, and had no reason for the comment."""
    (repository / "pool.yaml").write_text(POOL.replace("spec:\n", "spec:\n  limits: {cpu: 8}\n", 1))
    app = DEPLOYMENT.replace("cpu: 500m", "cpu: '1'")
    (repository / "app.yaml").write_text(app.replace("replicas: 3", "replicas: 1"))
    commit_all(repository)
    (repository / "app.yaml").write_text(app.replace("replicas: 3", "replicas: 7"))
    commit_all(repository)

    found = json.loads(plan("-o", "json", "--base", "HEAD~1").out)

    (line,) = [text for text in found["summary"]["text"] if "because of this change" in text]
    assert "Reason: NodePool general has reached spec.limits.cpu" in line
    (group,) = found["atRest"]["unschedulableReasons"]
    assert group["message"] in line
    assert len(group["pods"]) == len(found["atRest"]["unschedulable"])


def test_who_pays_is_a_question_about_a_change() -> None:
    with pytest.raises(UsageError, match="--by shows who pays for a change"):
        request_of(["plan", "--by", "namespace"])


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("al2023@latest", "al2023@v20250920", "spec.amiSelectorTerms"),
        ("subnet-0123456789abcdef0", "subnet-1123456789abcdef0", "spec.subnetSelectorTerms"),
        ("sg-0123456789abcdef0", "sg-1123456789abcdef0", "spec.securityGroupSelectorTerms"),
    ],
)
def test_replacements_that_nothing_was_looked_up_for_are_not_denied(
    plan, repository: Path, old: str, new: str, path: str
) -> None:
    """Whether nodes drift depends on what AWS returns for the selector, which a file cannot say."""
    (repository / "class.yaml").write_text(CLASS.replace(old, new))
    commit_all(repository)
    found = json.loads(plan("-o", "json", "--base", "HEAD~1").out)
    (warning,) = [d for d in found["diagnostics"] if d["code"] == "selection-unknown"]
    assert (warning["severity"], warning["path"]) == ("warning", path)
    assert warning["file"] == "class.yaml"
    assert any(line == f"Rollout: {warning['message']}." for line in found["summary"]["text"])
    (repository / "class.yaml").write_text(CLASS.replace(old, new).replace("  role: ", "  role: x"))
    commit_all(repository)
    for base in ("HEAD", "HEAD~2"):  # no node is replaced, and all are
        other = json.loads(plan("-o", "json", "--base", base).out)
        assert [d for d in other["diagnostics"] if d["code"] == "selection-unknown"] == []


def test_the_fleet_of_the_demo_is_planned_without_the_cluster_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recorded state means a running fleet, but that of the demo has ended."""
    for name in ("AWS_REGION", "KUBECONFIG", "RECONCILER_STATE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "shop"
    shutil.copytree(DEMO, folder)
    with open_state(str(folder / ".reconciler"), "shop") as state:
        state.store.put_node_claims([a_claim("web-1")])
    for command in ("plan", "simulate"):
        assert main([command, str(folder)]) == 0
    assert "no cluster: workloads of the folder" in capsys.readouterr().out


CONFIG = """\
apiVersion: reconciler/v1
kind: Configuration
aws: {region: us-east-1}
"""


def set_region(repository: Path, region: str) -> None:
    (repository / "reconciler.yaml").write_text(CONFIG.replace("us-east-1", region))


@pytest.fixture
def other_region(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fleet whose working tree names another region than its last commit."""
    monkeypatch.delenv("AWS_REGION", raising=False)
    set_region(repository, "us-east-1")
    commit_all(repository)
    set_region(repository, "eu-central-1")
    return repository


def test_another_region_is_not_priced_as_no_effect(plan, other_region: Path) -> None:
    found = json.loads(plan("-o", "json", "--base", "HEAD", catalog=False).out)
    (warning,) = [d for d in found["diagnostics"] if d["code"] == "region-changed"]
    assert (warning["severity"], warning["path"]) == ("warning", "aws.region")
    assert (warning["file"], warning["line"]) == ("reconciler.yaml", 3)
    assert "the region changes from us-east-1 to eu-central-1" in warning["message"]
    text = found["summary"]["text"]
    assert text[0].startswith("This change sets another region; new nodes for all pods there: ")
    assert text[1].startswith("`apply` and `run` refuse another region while the fleet has nodes")
    assert "Not included: the move of nodes and pods to the other region." in text
    assert not [line for line in text if "no effect on cost" in line or "replaced" in line]
    assert validator().is_valid(found)
    same = json.loads(plan("-o", "json", "--base", "HEAD", "--set", "aws.region=us-east-1").out)
    assert [d for d in same["diagnostics"] if d["code"] == "region-changed"] == []


def test_zones_of_another_region_change_the_region_where_nothing_names_it(
    plan, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    zone = "        - {key: topology.kubernetes.io/zone, operator: In, values: [us-west-2a]}\n"
    (repository / "pool.yaml").write_text(POOL + zone)
    commit_all(repository)
    (repository / "pool.yaml").write_text(POOL + zone.replace("us-west-2", "eu-central-1"))
    found = json.loads(plan("-o", "json", "--base", "HEAD", catalog=False).out)
    (warning,) = [d for d in found["diagnostics"] if d["code"] == "region-changed"]
    assert "the region changes from us-west-2 to eu-central-1" in warning["message"]
    assert found["nodeClaims"][0]["launch"]["zone"] == "eu-central-1a"


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_another_region_is_shown_in_every_format(plan, other_region: Path, form: str) -> None:
    out = unescape(plan("-o", form, "--base", "HEAD").out)
    assert "Not included: the move of nodes and pods to the other region." in out
    assert "warning" in out
    assert "keep us-east-1 here, and create another fleet in eu-central-1" in " ".join(out.split())


def test_each_side_has_the_offerings_of_its_region(plan, other_region: Path) -> None:
    zone = "        - {key: topology.kubernetes.io/zone, operator: In, values: [us-east-1a]}\n"
    (other_region / "pool.yaml").write_text(POOL + zone)
    commit_all(other_region)
    set_region(other_region, "us-east-1")
    commit_all(other_region)
    set_region(other_region, "eu-central-1")
    change = json.loads(plan("-o", "json", "--base", "HEAD", catalog=False).out)["atRest"]
    assert (change["before"]["nodes"], change["after"]["nodes"]) == (1, 0)


def test_nothing_is_done_to_nodes_of_the_old_region(
    plan, other_region: Path, tmp_path: Path
) -> None:
    """The observed nodes are those of the old region; `apply` refuses the new one."""
    snapshot = a_snapshot(tmp_path / "snapshot.json", *a_node("general-1"))
    found = json.loads(plan("-o", "json", "--base", "HEAD", "--snapshot", snapshot).out)
    assert found["actions"] == found["commands"] == []
    stays = json.loads(plan("-o", "json", "--snapshot", snapshot).out)
    assert stays["actions"] != []


def test_a_move_is_not_simulated_with_the_nodes_of_the_old_region(
    plan, other_region: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(other_region), "--base", "HEAD"]) == 1
    message = capsys.readouterr().err
    assert "aws.region: the region changes from us-east-1 to eu-central-1" in message
    next_step = plan("--base", "HEAD").out.splitlines()[-1]
    assert next_step.startswith("Next: reconciler simulate")
    assert "--base" not in next_step


def test_the_costs_of_base_and_head_are_shown_side_by_side(plan, repository: Path) -> None:
    (repository / "app.yaml").write_text(DEPLOYMENT.replace("replicas: 3", "replicas: 30"))
    cost = json.loads(plan("-o", "json", "--base", "HEAD").out)["cost"]
    alone = json.loads(plan("-o", "json", "--ref", "HEAD").out)["cost"]
    assert cost["base"] == alone["after"] < cost["after"]
    assert cost["byNodePool"]["general"]["base"] == alone["after"]


def test_a_change_is_priced_between_two_converged_fleets(plan, repository: Path) -> None:
    (repository / "app.yaml").write_text(DEPLOYMENT.replace("replicas: 3", "replicas: 30"))
    found = json.loads(plan("-o", "json", "--base", "HEAD").out)
    change = found["atRest"]
    assert change["before"] == {"nodes": 1, "perHour": 0.1}
    assert change["after"]["perHour"] == pytest.approx(0.1 + change["perHour"])
    assert change["perMonth"] == pytest.approx(change["perHour"] * 730)
    assert (change["bounds"], change["unschedulable"], change["stuck"]) == (None, [], [])
    assert change["rollout"] not in (None, "PT0S")
    assert validator().is_valid(found)


def test_without_a_base_no_converged_fleet_is_computed(plan) -> None:
    assert "atRest" not in json.loads(plan("-o", "json").out)


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_every_format_begins_with_the_headline_of_the_json(
    plan, repository: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    (repository / "app.yaml").write_text(DEPLOYMENT.replace("cpu: 500m", "cpu: 100"))
    lines = json.loads(plan("-o", "json", "--base", "HEAD").out)["summary"]["text"]
    assert lines[0] == (
        "This change: −$73/month in steady state; 1 → 0 nodes; 3 pods become unschedulable (0 → 3)."
    )
    assert lines[1] == (
        "3 pods cannot be scheduled because of this change: web/api-*\xa0(3). "
        "Reason: NodePool general: requests 100 cpu, but the largest allowed instance type has 7.9."
    )
    page = unescape(plan("-o", form, "--base", "HEAD").out)
    shown = " ".join(re.sub(r"</p><p>|\*\*|^- ", " ", page, flags=re.MULTILINE).split())
    assert " ".join(" ".join(lines).split()).replace("*", "") in shown.replace("*", "")


def test_unschedulable_pods_fail_the_job_if_requested(plan, repository: Path) -> None:
    assert plan("--fail-on", "unschedulable").code == 0
    (repository / "app.yaml").write_text(DEPLOYMENT.replace("cpu: 500m", "cpu: 100"))
    assert plan("--detailed-exitcode").code == 0
    refused = plan("--fail-on", "unschedulable", "--detailed-exitcode")
    assert refused.code == 3
    assert "3 pods cannot be scheduled" in refused.err


def test_a_summary_of_another_plan_is_rejected(plan, repository: Path, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    plan("--out", str(saved))
    content = json.loads(saved.read_bytes())
    content["summary"]["text"] = ["This change has no effect on cost."]
    with pytest.raises(UnreadableError, match="its summary is that of another plan"):
        read_saved_plan(json.dumps(content).encode(), "plan.json")


def test_the_cost_of_a_change_of_an_invalid_base_is_unknown(plan, repository: Path) -> None:
    """Otherwise, a repair would look like a new fleet, with all of its cost."""
    (repository / "pool.yaml").write_text(POOL.replace("kind: NodePool\n", "kind: Nodepool\n"))
    commit_all(repository)
    (repository / "pool.yaml").write_text(POOL)
    found = json.loads(plan("-o", "json", "--base", "HEAD").out)
    assert [(c["op"], c["kind"]) for c in found["changes"]] == [("create", "NodePool")]
    assert found["cost"]["base"] is None
    assert "atRest" not in found
    assert found["summary"]["text"][0] == "Cost of this change unknown: its base has no plan."
    assert found["summary"]["text"][1].startswith("First pass: launch 1 node")
    (message,) = [d["message"] for d in found["diagnostics"] if d["code"] == "base-invalid"]
    assert "pool.yaml:2:7: error: kind: " in message


@pytest.mark.parametrize("removes", [True, False])
def test_zones_that_only_one_revision_requires_tell_the_region_of_both(
    plan, repository: Path, removes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull request that only removes a requirement on zones leaves no region."""
    monkeypatch.delenv("AWS_REGION", raising=False)
    zone = "        - {key: topology.kubernetes.io/zone, operator: In, values: [eu-west-1a]}\n"
    if removes:
        (repository / "pool.yaml").write_text(POOL + zone)
        commit_all(repository)
    (repository / "pool.yaml").write_text(POOL if removes else POOL + zone)
    found = json.loads(plan("-o", "json", "--base", "HEAD", catalog=False).out)
    assert "region-changed" not in [d["code"] for d in found["diagnostics"]]
    (catalog,) = [d["message"] for d in found["diagnostics"] if d["code"] == "catalog"]
    assert catalog.endswith("eu-west-1")
    unstated = (
        "This change removes the last zone that tells the region: it is compared in eu-west-1, but "
        "later plans take us-east-1 (write 'aws: {region: eu-west-1}' into reconciler.yaml)."
    )
    assert (unstated in found["summary"]["text"]) is removes


@pytest.mark.parametrize(
    ("path", "is_named"),
    [("nodes/user-data.tpl", True), ("main.tf", True), ("README.md", False)],
)
def test_changed_files_that_objects_may_be_made_from_are_named(
    plan, repository: Path, path: str, is_named: bool
) -> None:
    """Nothing else says that a change has an effect, if that is not in what is read."""
    file = repository / path
    file.parent.mkdir(exist_ok=True)
    file.write_text("before")
    commit_all(repository)
    file.write_text("after")
    commit_all(repository)
    found = json.loads(plan("-o", "json", "--base", "HEAD~1").out)
    line = (
        f'"{path}" changes, which no plan reads: objects that are made from it are not included '
        "(pass the objects that it renders with -f)."
    )
    first, *lines = found["summary"]["text"]
    assert (line in lines) is is_named
    assert first.endswith("; changed files not included.") is is_named


def test_a_change_of_unread_files_alone_is_unknown_without_workloads(
    plan, repository: Path
) -> None:
    (repository / "app.yaml").unlink()
    commit_all(repository)
    (repository / "main.tf").write_text("after")
    commit_all(repository)
    first, line = json.loads(plan("-o", "json", "--base", "HEAD~1").out)["summary"]["text"]
    assert first == "Effect of this change unknown: it only changes what a plan does not read."
    assert line.startswith('"main.tf" changes, which no plan reads: ')


def a_fleet_in(folder: Path) -> Path:
    """Write the files of a fleet into a folder."""
    folder.mkdir(exist_ok=True)
    for name, text in (("pool", POOL), ("class", CLASS), ("app", DEPLOYMENT)):
        (folder / f"{name}.yaml").write_text(text)
    return folder


NEW_FLEETS = {
    "no folder": {},
    "no file of a fleet": {"new/README.md": "a fleet"},
    "no NodePool": {"new/app.yaml": DEPLOYMENT},
}


@pytest.mark.parametrize("there", NEW_FLEETS.values(), ids=NEW_FLEETS)
def test_a_fleet_that_the_base_does_not_have_is_new(
    plan, repository: Path, there: dict[str, str]
) -> None:
    new = repository / "new"
    new.mkdir()
    for name, text in there.items():
        (repository / name).write_text(text)
    head = commit_all(repository)
    a_fleet_in(new)
    answer = plan("--base", "HEAD", folder=new)
    (line,) = [one for one in answer.out.splitlines() if one.startswith("New fleet")]
    assert line == "New fleet: 1 node, $73/month in steady state."
    assert "Rollout: adds 1 node, in about " in answer.out
    assert "--base" not in answer.out.rpartition("Next: reconciler simulate ")[2]
    found = json.loads(plan("--base", "HEAD", "-o", "json", folder=new).out)
    (message,) = [d["message"] for d in found["diagnostics"] if d["code"] == "fleet-new"]
    assert message == (
        f"the base {head[:8]} has no NodePool in this folder: the fleet is new, so there is "
        "nothing to compare it with"
    )
    assert found["revision"]["base"] == head


def test_a_new_fleet_of_unknown_cost_has_what_it_may_launch(plan, repository: Path) -> None:
    new = a_fleet_in(repository / "new")
    (new / "app.yaml").unlink()
    answer = plan("--base", "HEAD", folder=new)
    line = " ".join(answer.out.split("New fleet")[1].split())
    assert line.startswith(
        "of unknown cost: no workloads and no snapshot; new NodePool general: 2 instance types, "
        "cheapest vCPU $31.94/month."
    )


def test_pods_that_a_new_fleet_cannot_place_are_its_fault(plan, repository: Path) -> None:
    new = a_fleet_in(repository / "new")
    (new / "app.yaml").write_text(DEPLOYMENT.replace("cpu: 500m", 'cpu: "64"'))
    answer = plan("--base", "HEAD", "--fail-on", "unschedulable", folder=new)
    assert answer.code == 3
    assert "New fleet: 0 nodes, $0/month in steady state; 3 pods cannot be scheduled." in answer.out


def test_a_new_fleet_beside_a_cluster_is_planned_from_its_nodes(
    plan, repository: Path, tmp_path: Path
) -> None:
    new = a_fleet_in(repository / "new")
    snapshot = tmp_path / "cluster.json"
    snapshot.write_text(json.dumps({"kind": "List", "items": a_node("web-1")}))
    answer = plan("--base", "HEAD", "--snapshot", str(snapshot), folder=new)
    assert answer.code == 0
    assert "New fleet. " in answer.out
    assert "This change" not in answer.out


BAD = [
    (("--now", "tomorrow"), 1, '--now: invalid time "tomorrow"'),
    (("--now", "2026-01-01"), 1, "--now: invalid time"),
    (("--now", "2026-01-01T00:00:00"), 1, "--now: invalid time"),
    (("--set", "packing"), 1, "packing"),
    (("--set", "colour=red"), 1, "colour"),
    (("--set", "preferencePolicy=Sometimes"), 1, "preferencePolicy"),
    (("--snapshot", "missing.json"), 1, "missing.json: No such file"),
    (("--catalog", "missing.json"), 1, "missing.json: No such file"),
    (("--ref", "main"), 1, "not in a git repository"),
    (("--base", "main"), 1, "not in a git repository"),
    (("--out", "missing/folder/plan.json"), 1, "missing/folder/plan.json: cannot be written"),
    (("-o", "xml"), 1, 'invalid value "xml"'),
    (("--repo", "https://example.org/x"), 1, "PATH and --repo"),
]


@pytest.mark.parametrize(("words", "code", "message"), BAD)
def test_errors_are_one_line(plan, words, code: int, message: str) -> None:
    answer = plan(*words)
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err
    assert answer.err.startswith("Error: ")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("content", ["", "not: [a", "[1, 2]"])
def test_a_broken_snapshot_is_rejected_by_name(plan, tmp_path: Path, content: str) -> None:
    (tmp_path / "s.json").write_text(content)
    answer = plan("--snapshot", str(tmp_path / "s.json"))
    assert answer.code == 1
    assert "s.json" in answer.err
    assert len(answer.err.splitlines()) == 1


def test_an_invalid_fleet_shows_its_first_error_and_counts_the_others(plan, fleet: Path) -> None:
    (fleet / "pool.yaml").write_text(POOL.replace("operator: In", "operator: Inn"))
    (fleet / "class.yaml").write_text(CLASS.replace("role:", "rolle:"))
    answer = plan()
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        "class.yaml:5:3: error: spec.rolle: unknown field in spec "
        "(did you mean role?) [unknown-field] (and 1 more: `reconciler validate` lists them)\n"
    )


def test_an_empty_folder_plans_nothing(plan, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = plan(folder=tmp_path / "empty", catalog=False)
    assert answer.code == 1
    assert "no YAML or JSON file" in answer.err


def test_a_pool_without_its_class_launches_nothing_without_a_catalog(plan, fleet: Path) -> None:
    (fleet / "class.yaml").unlink()
    found = json.loads(plan("-o", "json", catalog=False).out)
    assert found["nodeClaims"] == []
    assert "missing-nodeclass" in {d["code"] for d in found["diagnostics"]}
    assert len(json.loads(plan("-o", "json").out)["nodeClaims"]) > 0


@pytest.mark.parametrize(
    ("allowed", "is_estimated"), [("spot, on-demand", True), ("on-demand", False)]
)
def test_price_estimates_of_what_may_be_launched_and_the_catalog_are_named(
    plan, fleet: Path, allowed: str, is_estimated: bool
) -> None:
    (fleet / "pool.yaml").write_text(POOL.replace("[on-demand]", f"[{allowed}]"))
    codes = {d["code"] for d in json.loads(plan("-o", "json", catalog=False).out)["diagnostics"]}
    assert "catalog" in codes
    assert ("spot-estimated" in codes) is is_estimated


def test_a_class_that_is_never_ready_is_named_at_once(plan, fleet: Path) -> None:
    (fleet / "class.yaml").write_text(CLASS.replace("al2023@latest", "al2023@v1.31"))
    text = json.loads(plan("-o", "json").out)["summary"]["text"]
    expected = "EC2NodeClass default is never ready, and no node of it is launched: no image of "
    assert any(line.startswith(expected) for line in text)


HEAVY = {"numpy", "networkx", "git", "rich", "boto3", "sqlalchemy", "cel", "celpy"}


@pytest.mark.slow
def test_a_plan_does_not_import_slow_modules(fleet: Path) -> None:
    code = (
        "import sys; from reconciler.cli.main import main; "
        f"main(['plan', {str(fleet)!r}]); print(*sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""
