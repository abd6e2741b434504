"""`reconciler init`: a fleet folder from Karpenter's YAML, from a cluster, or from nothing."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from reconciler.cli.main import main
from reconciler.source.plainyaml import load_all
from tests.adapters.kubernetes.apiserver import write_kubeconfig
from tests.cli.advisedfleet import NODE_CLASS
from tests.cli.karpenterapi import Lists, serving

KARPENTERS = Path(__file__).resolve().parents[1] / "fixtures" / "karpenter-examples"
EXAMPLES = sorted((KARPENTERS / "v1").glob("*.yaml"))

BETA = """\
# The pool of the web team.
apiVersion: karpenter.sh/v1beta1
kind: NodePool
metadata:
  name: web
spec:
  template:
    metadata:
      annotations:
        karpenter.sh/do-not-evict: "true" # kept
    spec:
      nodeClassRef:
        apiVersion: karpenter.k8s.aws/v1beta1
        kind: EC2NodeClass
        name: default
      requirements:
        - key: karpenter.sh/capacity-type # either
          operator: In
          values: [spot, on-demand]
      kubelet:
        maxPods: 42
  disruption:
    consolidationPolicy: WhenUnderutilized
    expireAfter: 240h
    budgets:
      - nodes: 10%
---
apiVersion: karpenter.k8s.aws/v1beta1
kind: EC2NodeClass
metadata:
  name: default
spec:
  amiFamily: AL2023 # Amazon Linux
  role: KarpenterNodeRole-web
  subnetSelectorTerms:
    - tags: {karpenter.sh/discovery: web}
  securityGroupSelectorTerms:
    - tags: {karpenter.sh/discovery: web}
"""
ALPHA = """\
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata:
  name: batch
spec:
  providerRef: {name: batch}
  labels: {team: data}
  requirements:
    - {key: karpenter.sh/capacity-type, operator: In, values: [spot]}
  taints:
    - {key: batch, effect: NoSchedule}
  kubeletConfiguration: {containerRuntime: containerd, maxPods: 20}
  limits: {resources: {cpu: "100"}}
  ttlSecondsAfterEmpty: 30
  ttlSecondsUntilExpired: 2592000
  weight: 5
---
apiVersion: karpenter.k8s.aws/v1alpha1
kind: AWSNodeTemplate
metadata:
  name: batch
spec:
  instanceProfile: Nodes
  subnetSelector: {"aws::ids": "subnet-0123456789abcdef0,subnet-0123456789abcdef1"}
  securityGroupSelector: {karpenter.sh/discovery: web}
  launchTemplate: mine
"""
CONTROLLER: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "karpenter", "labels": {"app.kubernetes.io/name": "karpenter"}},
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "controller",
                        "image": "public.ecr.aws/karpenter/controller:1.8.0",
                        "args": ["--batch-max-duration=20s", "--reserved-enis", "1"],
                        "env": [
                            {"name": "CLUSTER_NAME", "value": "production"},
                            {"name": "INTERRUPTION_QUEUE", "value": "production"},
                            {
                                "name": "FEATURE_GATES",
                                "value": "SpotToSpotConsolidation=true,X=true",
                            },
                            {"name": "VM_MEMORY_OVERHEAD_PERCENT", "value": "0.06"},
                            {"name": "LOG_LEVEL", "value": "info"},
                            {"name": "CLUSTER_ENDPOINT", "valueFrom": {"secretKeyRef": {}}},
                        ],
                    }
                ]
            }
        }
    },
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)


def source(text: str, name: str = "karpenter.yaml") -> str:
    folder = Path("given")
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return str(folder)


def written(path: str) -> Any:
    (data,) = load_all(Path(path).read_bytes())
    return data


def plan(folder: str, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main(["plan", folder, "-o", "json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def next_command(output: str) -> list[str]:
    _, _, command = output.rpartition("Next: reconciler ")
    return command.splitlines()[0].split()


def test_a_new_fleet_has_a_plan_with_a_price(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "fleet", "--name", "shop", "--region", "eu-central-1"]) == 0
    command = next_command(capsys.readouterr().out)
    assert command == ["plan", "fleet"]
    assert main([*command, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cost"]["after"] > 0
    assert written("fleet/reconciler.yaml")["aws"] == {"region": "eu-central-1"}


def test_a_name_that_yaml_reads_as_a_boolean_is_quoted() -> None:
    assert main(["init", "fleet", "--name", "on"]) == 0
    assert written("fleet/reconciler.yaml")["fleet"] == "on"


def test_without_a_terminal_it_reports_what_it_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "shop"]) == 0
    out = capsys.readouterr().out
    assert "fleet name shop: assumed; set it with --name" in out
    assert "AWS region us-east-1: assumed; set it with --region" in out


def test_on_a_terminal_the_prompt_repeats_until_the_answer_is_valid(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = io.StringIO("shop\nnowhere\neu-west-1\n")
    monkeypatch.setattr(answers, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", answers)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["init", "fleet"]) == 0
    assert '"nowhere" is not a region' in capsys.readouterr().out
    assert written("fleet/reconciler.yaml")["fleet"] == "shop"
    assert written("fleet/reconciler.yaml")["aws"]["region"] == "eu-west-1"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_of_karpenter_has_a_plan(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "fleet", "--from", str(file), "--name", "demo"]) == 0
    out = capsys.readouterr().out
    assert "${CLUSTER_NAME} is replaced by demo" in out
    assert "Complete by hand" not in out
    assert main([*next_command(out), "-o", "json"]) == 0


def test_a_group_with_a_version_is_corrected_and_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = KARPENTERS / "v1" / "windows-custom-userdata.yaml"
    assert main(["init", "fleet", "--from", str(file), "--name", "demo"]) == 0
    assert '"karpenter.k8s.aws/v1" is a group with a version' in capsys.readouterr().out
    pool = written("fleet/nodes/nodepool-windows2022.yaml")
    assert pool["spec"]["template"]["spec"]["nodeClassRef"]["group"] == "karpenter.k8s.aws"


@pytest.mark.exhaustive
def test_of_all_examples_together_one_of_each_name_has_to_be_preferred(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["init", "fleet", "--from", str(KARPENTERS), "--name", "demo"]
    assert main(words) == 1
    assert "default is defined 8 times" in capsys.readouterr().err
    preferred = (
        *("100-cpu-limit", "al2-custom-ami", "bottlerocket", "custom-family-with-alias"),
        *("min-values-family", "windows-2022"),
    )
    for name in preferred:
        words += ["--prefer", f"v1/{name}.yaml"]
    assert main(words) == 0
    assert plan("fleet", capsys)["cost"]["after"] > 0


def test_a_current_object_keeps_every_byte_below_the_schema_line() -> None:
    text = (KARPENTERS / "v1" / "100-cpu-limit.yaml").read_text()
    text = text.replace("    cpu: 100\n", "    cpu:    100     # as agreed\n")
    head, pool, _ = text.split("---\n")
    assert main(["init", "fleet", "--from", source(text)]) == 0
    lines = Path("fleet/nodes/nodepool-limitcpu100.yaml").read_text().split("\n", 1)
    assert lines[0] == "# yaml-language-server: $schema=../.schemas/nodepool.v1.json"
    assert lines[1] == head + pool
    assert (Path("fleet/nodes") / lines[0].split("=")[1]).is_file()


def test_v1beta1_is_migrated_with_its_comments() -> None:
    assert main(["init", "fleet", "--from", source(BETA)]) == 0
    text = Path("fleet/nodes/nodepool-web.yaml").read_text()
    assert "# The pool of the web team." in text
    assert "# either" in text
    pool = written("fleet/nodes/nodepool-web.yaml")
    claim = pool["spec"]["template"]["spec"]
    assert pool["apiVersion"] == "karpenter.sh/v1"
    assert claim["nodeClassRef"] == {
        "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default",
    }  # fmt: skip
    assert claim["expireAfter"] == "240h"
    assert pool["spec"]["template"]["metadata"]["annotations"] == {
        "karpenter.sh/do-not-disrupt": "true"
    }
    assert pool["spec"]["disruption"] == {
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "consolidateAfter": "0s",
        "budgets": [{"nodes": "10%"}],
    }
    spec = written("fleet/nodes/ec2nodeclass-default.yaml")["spec"]
    assert spec["kubelet"] == {"maxPods": 42}
    assert spec["amiSelectorTerms"] == [{"alias": "al2023@latest"}]
    assert spec["metadataOptions"] == {"httpPutResponseHopLimit": 2}
    assert "# Amazon Linux" in Path("fleet/nodes/ec2nodeclass-default.yaml").read_text()


def test_node_pools_that_share_a_class_but_not_its_kubelet_get_one_each() -> None:
    other = BETA.partition("---\n")[0].replace("name: web", "name: api").replace("42", "7")
    assert main(["init", "fleet", "--from", source(f"{BETA}---\n{other}")]) == 0
    found = {}
    for pool in ("api", "web"):
        claim = written(f"fleet/nodes/nodepool-{pool}.yaml")["spec"]["template"]["spec"]
        name = claim["nodeClassRef"]["name"]
        found[pool] = written(f"fleet/nodes/ec2nodeclass-{name}.yaml")["spec"]["kubelet"]
    assert found == {"api": {"maxPods": 7}, "web": {"maxPods": 42}}


def test_v1alpha5_is_migrated_with_its_behaviour(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "fleet", "--from", source(ALPHA)]) == 0
    spec = written("fleet/nodes/nodepool-batch.yaml")["spec"]
    assert spec["disruption"] == {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "30s"}
    assert spec["limits"] == {"cpu": "100"}
    assert spec["weight"] == 5
    assert spec["template"]["metadata"] == {"labels": {"team": "data"}}
    claim = spec["template"]["spec"]
    assert claim["expireAfter"] == "2592000s"
    assert [r["key"] for r in claim["requirements"]] == [
        "karpenter.sh/capacity-type", "kubernetes.io/os", "kubernetes.io/arch",
        "karpenter.k8s.aws/instance-category", "karpenter.k8s.aws/instance-generation",
    ]  # fmt: skip
    node_class = written("fleet/nodes/ec2nodeclass-batch.yaml")["spec"]
    assert node_class["kubelet"] == {"maxPods": 20}
    assert node_class["amiSelectorTerms"] == [{"alias": "al2@latest"}]
    assert node_class["subnetSelectorTerms"] == [
        {"id": "subnet-0123456789abcdef0"}, {"id": "subnet-0123456789abcdef1"},
    ]  # fmt: skip
    out = capsys.readouterr().out
    assert "launch templates of your own are not supported" in out
    assert "spec.kubeletConfiguration.containerRuntime: NodePool batch: was removed" in out
    plan("fleet", capsys)


def test_a_provisioner_with_an_inline_provider_gets_a_class() -> None:
    inline = ALPHA.partition("---\n")[0].replace(
        "  providerRef: {name: batch}\n",
        "  provider: {instanceProfile: Nodes, amiFamily: Bottlerocket,\n"
        "    subnetSelector: {a: b}, securityGroupSelector: {a: b}}\n",
    )
    assert main(["init", "fleet", "--from", source(inline)]) == 0
    spec = written("fleet/nodes/ec2nodeclass-batch.yaml")["spec"]
    assert spec["amiSelectorTerms"] == [{"alias": "bottlerocket@latest"}]
    assert spec["subnetSelectorTerms"] == [{"tags": {"a": "b"}}]


def test_a_family_without_a_successor_is_a_finding_and_exit_code_3(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["init", "fleet", "--from", source(BETA.replace("AL2023", "Ubuntu"))]) == 3
    out = capsys.readouterr().out
    assert "Ubuntu was removed in v1" in out
    assert next_command(out) == ["validate", "fleet"]
    assert main(["validate", "fleet"]) == 3


def test_objects_of_a_live_cluster_lose_what_the_cluster_added() -> None:
    live = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {
                **next(iter(load_all((KARPENTERS / "v1" / "spot.yaml").read_bytes()))),  # type: ignore[dict-item]
                "status": {"conditions": []},
            },
            *load_all(NODE_CLASS.encode()),
        ],
    }
    live["items"][0]["metadata"] |= {  # type: ignore[index]
        "uid": "1", "resourceVersion": "2", "managedFields": [], "generation": 1,
    }  # fmt: skip
    live["items"][0]["metadata"]["annotations"]["karpenter.sh/nodepool-hash"] = "1"  # type: ignore[index]
    assert main(["init", "fleet", "--from", source(json.dumps(live), "live.json")]) == 0
    pool = written("fleet/nodes/nodepool-spot.yaml")
    assert "status" not in pool
    assert sorted(pool["metadata"]) == ["annotations", "name"]
    assert sorted(pool["metadata"]["annotations"]) == ["kubernetes.io/description"]


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("", "there is no amiFamily whose alias is one"),
        ("  amiFamily: Custom\n", 'amiFamily "Custom" has no alias'),
    ],
)
def test_a_class_without_images_is_to_be_completed(
    family: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BETA.replace("  amiFamily: AL2023 # Amazon Linux\n", family)
    assert main(["init", "fleet", "--from", source(text)]) == 3
    assert f"v1 requires amiSelectorTerms, and {why} (add " in capsys.readouterr().out


CONFLICT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
<<<<<<< HEAD
  replicas: 2
=======
  replicas: 3
>>>>>>> other
"""


def test_a_workload_that_cannot_be_read_is_no_file_without_objects(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source(CONFLICT.replace("name: web", 'name: web, labels: {app: "{{ app }}"}'), "web.yaml")
    source(CONFLICT.replace("apps/v1", "v1").replace("Deployment", "Service"), "service.yaml")
    assert main(["init", "fleet", "--from", source(BETA)]) == 0
    out = capsys.readouterr().out
    assert "web.yaml:5:1: warning: unresolved merge conflict" in out
    assert out.count("unresolved merge conflict") == 1
    assert "1 file that no plan depends on: service.yaml" in out


def test_skipped_objects_are_listed_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    source("apiVersion: v1\nkind: Service\nmetadata: {name: web}\n", "service.yaml")
    source("replicas: 2\n", "values.yaml")
    source("{{- if .Values.pools }}\nkind: NodePool\n{{- end }}\n", "template.yaml")
    source("apiVersion: karpenter.sh/v1\nkind: NodeClaim\nmetadata: {name: n}\n", "claim.yaml")
    assert main(["init", "fleet", "--from", source(BETA)]) == 0
    out = capsys.readouterr().out
    assert "1 object that no plan depends on: Service (1)" in out
    assert "1 file that no plan depends on: values.yaml" in out
    assert "template.yaml" in out
    assert "is a template ({{ … }})" in out
    assert "`reconciler state adopt` takes nodes over" in out


def test_placeholders_without_a_value_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "fleet", "--from", str(KARPENTERS / "v1" / "spot.yaml")]) == 0
    assert "complete 1 placeholder: ${CLUSTER_NAME}" in capsys.readouterr().out


def test_settings_of_the_karpenter_deployment_are_imported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source(json.dumps(CONTROLLER), "karpenter.json")
    assert main(["init", "fleet", "--from", source(BETA), "--region", "eu-west-1"]) == 0
    config = written("fleet/reconciler.yaml")
    assert config["clusterName"] == "production"
    assert config["fleet"] == "production"
    assert config["interruptionQueue"] == "production"
    assert config["karpenter"] == "1.14", "an older release follows the oldest known rules"
    assert config["batchMaxDuration"] == "20s"
    assert config["reservedEnis"] == 1
    assert config["vmMemoryOverheadPercent"] == 0.06
    assert config["featureGates"] == {"SpotToSpotConsolidation": True}
    out = capsys.readouterr().out
    assert "setting feature gate X has no counterpart" in out
    assert "setting CLUSTER_ENDPOINT its value is not in the Deployment (valueFrom)" in out
    assert "LOG_LEVEL" not in out


def _deployment(image: str, label: str = "") -> dict[str, Any]:
    deployment = copy.deepcopy(CONTROLLER)
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = image
    if label:
        deployment["metadata"]["labels"]["app.kubernetes.io/version"] = label
    return deployment


@pytest.mark.parametrize(
    ("image", "label", "followed"),
    [
        ("public.ecr.aws/karpenter/controller:1.14.2", "", "1.14"),
        ("public.ecr.aws/karpenter/controller:1.15.1@sha256:0123", "", "1.15"),
        ("registry.example.com:5000/mirror/karpenter/controller:v1.15.0", "", "1.15"),
        ("public.ecr.aws/karpenter/controller:v0.37.8", "", "1.14"),
        ("public.ecr.aws/karpenter/controller:1.16.0", "", "1.15"),
        ("public.ecr.aws/karpenter/controller:2.0.0", "", "1.15"),
        ("public.ecr.aws/karpenter/controller@sha256:0123", "1.15.1", "1.15"),
        ("public.ecr.aws/karpenter/controller@sha256:0123", "1.14.0", "1.14"),
        ("public.ecr.aws/karpenter/controller:nightly", "", "1.15"),
    ],
)
def test_the_release_to_follow_is_that_of_the_deployment(
    image: str, label: str, followed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source(json.dumps(_deployment(image, label)), "karpenter.json")
    assert main(["init", "fleet", "--from", source(BETA), "--region", "eu-west-1"]) == 0
    assert written("fleet/reconciler.yaml")["karpenter"] == followed
    is_assumed = "Karpenter 1.15: assumed" in capsys.readouterr().out
    assert is_assumed == ("nightly" in image)


def test_a_new_fleet_follows_the_newest_release() -> None:
    assert main(["init", "fleet", "--name", "web", "--region", "eu-west-1"]) == 0
    assert written("fleet/reconciler.yaml")["karpenter"] == "1.15"


def cluster(tmp_path: Path, lists: Lists, *words: str) -> int:
    with serving(lists) as url:
        config = write_kubeconfig(tmp_path / "kubeconfig", url)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(config))
            return main(["init", "fleet", "--from-cluster", *words])


def karpenter_lists(text: str = BETA) -> Lists:
    pool, node_class = load_all(text.encode())
    node = {"metadata": {"name": "n", "labels": {"topology.kubernetes.io/region": "eu-west-3"}}}
    return {
        "/apis/karpenter.sh/v1beta1/nodepools": [pool],  # type: ignore[list-item]
        "/apis/karpenter.k8s.aws/v1beta1/ec2nodeclasses": [node_class],  # type: ignore[list-item]
        "/apis/apps/v1/deployments": [CONTROLLER],
        "/api/v1/configmaps": [],
        "/api/v1/nodes": [node],
    }


def test_a_cluster_is_imported_with_its_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster(tmp_path, karpenter_lists(), "--context", "shop") == 0
    config = written("fleet/reconciler.yaml")
    assert config["clusterName"] == "production"
    assert config["aws"]["region"] == "eu-west-3"
    assert written("fleet/nodes/ec2nodeclass-default.yaml")["spec"]["kubelet"] == {"maxPods": 42}
    out = capsys.readouterr().out
    assert "Next: reconciler snapshot --context shop --out cluster.json" in out
    assert "reconciler plan fleet --snapshot cluster.json" in out


def test_settings_that_rbac_hides_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = karpenter_lists() | {"/apis/apps/v1/deployments": 403}
    assert cluster(tmp_path, lists, "--name", "shop") == 0
    assert "Deployment karpenter may not be read" in capsys.readouterr().out


def test_an_unreadable_cluster_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = karpenter_lists() | {"/apis/karpenter.sh/v1/nodepools": 403}
    assert cluster(tmp_path, lists) == 1
    assert "HTTP 403" in capsys.readouterr().err
    assert not Path("fleet").exists()


def test_a_cluster_without_karpenter_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists: Lists = {"/apis/apps/v1/deployments": [], "/api/v1/configmaps": []}
    assert cluster(tmp_path, lists) == 1
    assert "no NodePool, EC2NodeClass, Provisioner or AWSNodeTemplate" in capsys.readouterr().err


def test_a_folder_without_karpenter_is_an_error_with_its_first_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    unnamed = "apiVersion: karpenter.sh/v1alpha5\nkind: Provisioner\nmetadata:\nname: default\n"
    (given / "provisioner.yaml").write_text(unnamed)
    assert main(["init", str(tmp_path / "fleet"), "--from", str(given)]) == 1
    error = capsys.readouterr().err
    assert "no NodePool, EC2NodeClass, Provisioner or AWSNodeTemplate in 1 file; the first" in error
    assert "the Provisioner has no name" in error


@pytest.mark.parametrize("there", ["reconciler.yaml", "nodes/nodepool-web.yaml"])
def test_nothing_is_overwritten(there: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("fleet") / there
    file.parent.mkdir(parents=True)
    file.write_text("mine: true\n")
    assert main(["init", "fleet", "--from", source(BETA)]) == 1
    assert f"{file}" in capsys.readouterr().err
    assert file.read_text() == "mine: true\n"
    assert [p for p in Path("fleet").rglob("*") if p.is_file()] == [file]


def test_existing_repository_files_stay_and_the_additions_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path(".git").mkdir()
    Path(".gitlab-ci.yml").write_text("stages: [test]\n")
    Path(".pre-commit-config.yaml").write_text("repos: []\n")
    assert main(["init", "fleet", "--name", "shop"]) == 0
    out = capsys.readouterr().out
    assert "not changed: .gitlab-ci.yml exists; include the component" in out
    assert "not changed: .pre-commit-config.yaml exists; add a local hook" in out
    assert Path(".gitlab-ci.yml").read_text() == "stages: [test]\n"
    assert Path(".pre-commit-config.yaml").read_text() == "repos: []\n"


def test_a_source_inside_the_new_fleet_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", ".", "--from", source(BETA)]) == 1
    assert "every object would be defined twice" in capsys.readouterr().err


def test_without_a_folder_argument_the_fleet_folder_is_named_fleet() -> None:
    assert main(["init", "--from", source(BETA)]) == 0
    assert Path("fleet/reconciler.yaml").is_file()


@pytest.mark.parametrize("place", ["", "apps/web/"])
def test_a_new_fleet_in_a_folder_with_yaml_is_named_fleet(place: str) -> None:
    Path(place).mkdir(parents=True, exist_ok=True)
    Path(place, "app.yaml").write_text("replicas: 3\n")
    assert main(["init"]) == 0
    assert Path("fleet/reconciler.yaml").is_file()


@pytest.mark.parametrize(
    ("kind", "words", "remedy"),
    [
        ("NodePool", [], "`reconciler init fleet --from .`"),
        ('"EC2NodeClass"', ["infra"], "`reconciler init fleet --from infra`"),
        ("Provisioner", ["."], "`reconciler init fleet --from .`"),
        ("NodePool", ["infra", "--name", "shop"], "`reconciler init fleet --from infra`"),
    ],
)
def test_a_new_fleet_is_not_started_where_karpenters_objects_are(
    kind: str, words: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path("infra/karpenter/nodes.yaml")
    file.parent.mkdir(parents=True)
    file.write_text(f"apiVersion: v1\nkind: Secret\n---\n- kind: {kind}\n")
    assert main(["init", *words]) == 1
    err = capsys.readouterr().err
    assert f"FOLDER: {file} has Karpenter's objects already" in err
    assert remedy in err
    assert [p for p in Path().rglob("*") if p.is_file()] == [file]
    assert main(["init", "fleet"]) == 0, "beside them"


def test_a_new_fleet_is_not_started_inside_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "."]) == 0
    capsys.readouterr()
    assert main(["init"]) == 1
    assert '"./reconciler.yaml" exists already' in capsys.readouterr().err


def test_workflows_are_written_to_the_root_of_the_repository(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path(".git").mkdir()
    assert main(["init", "clusters/shop", "--name", "shop", "--ci", "github"]) == 0
    plan_workflow = YAML(typ="safe").load(Path(".github/workflows/reconciler-plan.yml"))
    assert plan_workflow["on"]["pull_request"]["paths"] == ["clusters/shop/**"]
    assert plan_workflow["jobs"]["plan"]["steps"][1]["with"]["fleets"] == "clusters/shop"
    (hook,) = written(".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert hook["args"] == ["clusters/shop"]
    assert main([*hook["entry"].split()[1:], *hook["args"]]) == 0


def test_workloads_next_to_the_node_pools_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    text = (KARPENTERS / "workloads" / "inflate.yaml").read_text()
    source(text.replace("spec:\n  selector", "spec:\n  replicas: 3\n  selector"), "inflate.yaml")
    assert main(["init", "fleet", "--from", source(BETA), "--name", "web"]) == 0
    assert plan("fleet", capsys)["cost"]["after"] > 0


def test_a_finding_about_the_context_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "fleet", "--context", "shop"]) == 1
    assert "--context: is used only with --from-cluster" in capsys.readouterr().err


def test_without_access_to_aws_no_lock_is_written_and_the_reason_printed(
    without_retry_pauses: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert main(["init", "fleet", "--name", "shop"]) == 0
    out = capsys.readouterr().out
    assert "reconciler.lock was not created: ec2:" in out
    assert "run `reconciler lock fleet` with access to AWS" in out
    assert not Path("fleet/reconciler.lock").exists()
