"""Adoption of a fleet that Karpenter launched: listed first, executed on demand, without drift."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.cli.main import main
from reconciler.desired.hash import node_class_hash, node_pool_hash
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve
from tests.yamltext import dump_all

REPOSITORY = Path(__file__).resolve().parents[2]
POOL_HASH = "karpenter.sh/nodepool-hash"
CLASS_HASH = "karpenter.k8s.aws/ec2nodeclass-hash"
CA = "LS0tbm90IGEgY2VydGlmaWNhdGU="


def a_pool(**labels: str) -> dict[str, Any]:
    ref = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    spec = {"nodeClassRef": ref, "requirements": [], "expireAfter": "Never"}
    template = {"metadata": {"labels": {"team": "web", **labels}}, "spec": spec}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "web"},
        "spec": {
            "template": template,
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
        },
    }


def a_class(**tags: str) -> dict[str, Any]:
    discovery = [{"tags": {"karpenter.sh/discovery": "web"}}]
    options = {
        "httpEndpoint": "enabled",
        "httpProtocolIPv6": "disabled",
        "httpPutResponseHopLimit": 1,
        "httpTokens": "required",
    }
    return {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": "default"},
        "spec": {
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "role": "nodes",
            "subnetSelectorTerms": discovery,
            "securityGroupSelectorTerms": discovery,
            "metadataOptions": options,
            **({"tags": tags} if tags else {}),
        },
    }


class Site:
    """A cluster of Karpenter: EC2, the output of kubectl, and a folder with the same objects."""

    def __init__(self, folder: Path, cloud: EmbeddedEC2, url: str) -> None:
        self.folder = folder / "fleet"
        self.folder.mkdir()
        self.cloud = cloud
        self.url = url
        self.snapshot = folder / "cluster.json"
        self.pool, self.node_class = a_pool(), a_class()
        self.claims: list[dict[str, Any]] = []
        self.pods: list[dict[str, Any]] = []
        self.write(self.pool, self.node_class)

    def write(self, *objects: Mapping[str, Any]) -> None:
        text = dump_all(objects)
        (self.folder / "fleet.yaml").write_text(text)

    def launch(self, name: str, pool: str = "web", **more: str) -> str:
        """Launch an instance as Karpenter does, with its NodeClaim in the cluster."""
        ec2 = self.cloud.connect("ec2", 1)
        tags = {
            "kubernetes.io/cluster/web": "owned",
            "eks:eks-cluster-name": "web",
            "karpenter.sh/nodepool": pool,
            "karpenter.sh/nodeclaim": name,
            "karpenter.k8s.aws/ec2nodeclass": "default",
            **more,
        }
        subnets = ec2.describe_subnets(
            Filters=[
                {"Name": "tag:karpenter.sh/discovery", "Values": ["*"]},
                {"Name": "availability-zone", "Values": ["us-east-1a"]},
            ]
        )["Subnets"]
        images = ec2.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])
        groups = ec2.describe_security_groups(
            Filters=[{"Name": "tag:karpenter.sh/discovery", "Values": ["*"]}]
        )["SecurityGroups"]
        (row,) = ec2.run_instances(
            ImageId=images["Images"][0]["ImageId"],
            InstanceType="m7i.large",
            MinCount=1,
            MaxCount=1,
            SubnetId=subnets[0]["SubnetId"],
            SecurityGroupIds=[g["GroupId"] for g in groups],
            TagSpecifications=[
                {
                    "ResourceType": "instance",
                    "Tags": [{"Key": k, "Value": v} for k, v in tags.items()],
                }
            ],
        )["Instances"]
        self.claims.append(self.claim(name, row, pool))
        return str(row["InstanceId"])

    def claim(self, name: str, row: Mapping[str, Any], pool: str) -> dict[str, Any]:
        """Return the NodeClaim of Karpenter 1.14, created with the cluster's certificate."""
        zone = row["Placement"]["AvailabilityZone"]
        template = self.pool["spec"]["template"]
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:10:00Z"}
            for kind in ("Launched", "Registered", "Initialized")
        ]
        return {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {
                "name": name,
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {
                    "karpenter.sh/nodepool": pool,
                    "team": "web",
                    "node.kubernetes.io/instance-type": row["InstanceType"],
                    "topology.kubernetes.io/zone": zone,
                    "karpenter.sh/capacity-type": "on-demand",
                },
                "annotations": {
                    POOL_HASH: node_pool_hash(self.pool),
                    f"{POOL_HASH}-version": "v3",
                    CLASS_HASH: node_class_hash(self.node_class, CA),
                    f"{CLASS_HASH}-version": "v6",
                },
            },
            "spec": {**template["spec"]},
            "status": {
                "providerID": f"aws:///{zone}/{row['InstanceId']}",
                "imageID": row["ImageId"],
                "nodeName": f"{name}.ec2.internal",
                "conditions": conditions,
            },
        }

    def live(self, data: Mapping[str, Any], key: str, digest: str) -> dict[str, Any]:
        annotations = {key: digest, f"{key}-version": "v3" if key == POOL_HASH else "v6"}
        return {**data, "metadata": {**data["metadata"], "annotations": annotations}}

    def capture(self) -> None:
        items = [
            self.live(self.pool, POOL_HASH, node_pool_hash(self.pool)),
            self.live(self.node_class, CLASS_HASH, node_class_hash(self.node_class, CA)),
            *self.claims,
            *self.pods,
        ]
        self.snapshot.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))

    def words(self) -> list[str]:
        sets = ("cluster=embedded", "clusterName=web", f"aws.endpointUrl={self.url}", "fleet=web")
        return [str(self.folder), *(word for s in sets for word in ("--set", s))]

    def adopt(self, *words: str, snapshot: bool = True) -> int:
        self.capture()
        given = ["--snapshot", str(self.snapshot)] if snapshot else []
        return main(["state", "adopt", *self.words(), *given, *words])

    def tags(self, instance: str) -> dict[str, str]:
        return self.cloud.running_instances()[instance]

    def plan(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["plan", *self.words(), "-o", "json"]) in (0, 2)
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    clock = SimulatedClock()
    cloud = EmbeddedEC2(clock)
    cloud.seed(decode(a_class(), EC2NodeClass))
    with serve(cloud) as url:
        yield Site(tmp_path, cloud, url)


def test_the_list_writes_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    instance = site.launch("web-1")
    before = site.tags(instance)
    assert site.adopt() == 0
    output = capsys.readouterr().out
    assert "1 of 1 can be adopted." in output
    assert next(w for w in output.splitlines() if instance in w).split()[-2:] == ["web-1", "ours"]
    assert site.tags(instance) == before
    assert not (site.folder / ".reconciler").exists()


def test_adopted_instances_are_tagged_recorded_and_not_drifted(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    instances = [site.launch(f"web-{n}") for n in range(2)]
    assert site.adopt("--yes") == 0
    assert all(site.tags(i)["reconciler/fleet"] == "web" for i in instances)
    plan = site.plan(capsys)
    assert plan["drift"] == []
    assert [a for a in plan["actions"] if a["kind"] == "provision"] == []
    assert main(["get", "nodeclaims", str(site.folder), "--set", "fleet=web", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["items"]
    assert [row["metadata"]["name"] for row in rows] == ["web-0", "web-1"]


def test_instances_are_tagged_once(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.launch("web-1")
    assert site.adopt("--yes") == 0
    calls = len(site.cloud.calls)
    assert site.adopt("--yes") == 0
    assert "Cluster web has no instances to adopt" in capsys.readouterr().out
    assert "CreateTags" not in [c.operation for c in site.cloud.calls[calls:]]


def test_a_difference_between_git_and_the_cluster_is_announced_and_causes_drift(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.launch("web-1")
    site.write(a_pool(version="2"), site.node_class)
    assert site.adopt("--yes") == 0
    assert (
        "it will drift: NodePool web in git differs from the one it was created from"
        in capsys.readouterr().out
    )
    assert [d["reason"] for d in site.plan(capsys)["drift"]] == ["NodePoolDrifted"]


def test_a_claim_drifted_from_its_class_stays_drifted(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.launch("web-1")
    site.claims[0]["metadata"]["annotations"][CLASS_HASH] = "1"
    assert site.adopt("--yes") == 0
    assert (
        "EC2NodeClass default in git differs from the one it was created from"
        in capsys.readouterr().out
    )
    assert [d["reason"] for d in site.plan(capsys)["drift"]] == ["NodeClassDrift"]


def test_instances_of_others_are_refused_with_the_reason(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    other = site.launch("web-1", **{"reconciler/fleet": "other"})
    lost = site.launch("web-2", pool="gone")
    going = site.launch("web-3")
    site.claims[2]["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    stray = site.launch("web-4")
    del site.claims[3]
    twin = [site.launch("web-5"), site.launch("web-5")]
    assert site.adopt("--yes") == 0
    output = {w.split()[0]: w for w in capsys.readouterr().out.splitlines() if w.startswith("i-")}
    assert "refused: it belongs to fleet other" in output[other]
    assert "refused: git has no NodePool gone" in output[lost]
    assert "refused: Karpenter is deleting NodeClaim web-3" in output[going]
    assert "refused: the snapshot has no NodeClaim for it" in output[stray]
    assert sorted("another NodeClaim is named web-5" in output[i] for i in twin) == [False, True]
    ours = [
        i for i, t in site.cloud.running_instances().items() if t.get("reconciler/fleet") == "web"
    ]
    assert ours == [min(twin)]


def test_nothing_is_adopted_while_karpenter_runs(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = site.launch("web-1")
    labels = {"app.kubernetes.io/name": "karpenter"}
    metadata = {"name": "karpenter-0", "namespace": "kube-system", "labels": labels}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}
    site.pods.append({**pod, "status": {"phase": "Running"}})
    assert site.adopt() == 0
    assert site.adopt("--yes") == 3
    assert "kube-system/karpenter-0" in capsys.readouterr().err
    assert "reconciler/fleet" not in site.tags(instance)
    site.pods[0]["status"]["phase"] = "Succeeded"
    assert site.adopt("--yes") == 0


def test_without_a_snapshot_the_absence_of_karpenter_must_be_confirmed(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = site.launch("web-1")
    assert site.adopt("--yes", snapshot=False) == 3
    assert "--karpenter-is-gone" in capsys.readouterr().err
    assert site.adopt("--yes", "--karpenter-is-gone", snapshot=False) == 0
    assert "created from git" in capsys.readouterr().out
    assert site.tags(instance)["reconciler/fleet"] == "web"
    assert site.plan(capsys)["drift"] == []


def test_running_adopt_again_adds_missing_tags(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    instances = [site.launch(f"web-{n}") for n in range(2)]
    site.cloud.faults.add("CreateTags", Fault.DENIED)
    assert site.adopt("--yes") == 1
    assert "cannot tag instances: " in capsys.readouterr().err
    assert site.adopt("--yes") == 0
    assert "tags restored" in capsys.readouterr().out
    assert all(site.tags(i)["reconciler/fleet"] == "web" for i in instances)


@pytest.mark.parametrize("denied", [False, True])
def test_the_json_output_equals_the_text_output(
    site: Site, capsys: pytest.CaptureFixture[str], *, denied: bool
) -> None:
    schema = json.loads((REPOSITORY / "schemas" / "adoption.v1.json").read_text())
    mine = site.launch("web-1")
    theirs = site.launch("web-2", pool="elsewhere")

    def adoption(*words: str) -> dict[str, Any]:
        code = site.adopt("-o", "json", *words)
        assert code == (1 if denied and words else 0)
        value: dict[str, Any] = json.loads(capsys.readouterr().out)
        jsonschema.validate(value, schema)
        return value

    shown = adoption()
    assert (shown["fleet"], shown["done"]) == ("web", False)
    assert {row["id"]: row["becomes"] for row in shown["instances"]} == {
        mine: "ours",
        theirs: "refused",
    }
    if denied:
        site.cloud.faults.add("CreateTags", Fault.DENIED, times=None)
    done = adoption("--yes")
    assert done["done"]
    assert [mine in problem for problem in done["problems"]] == [True] * denied
    if denied:
        site.cloud.faults.clear()
        again = json.loads(adopted_again(site, capsys))
        assert {r["id"]: r["becomes"] for r in again["instances"]}[mine] == "tagged"


def adopted_again(site: Site, capsys: pytest.CaptureFixture[str]) -> str:
    assert site.adopt("-o", "json", "--yes") == 0
    return capsys.readouterr().out


def test_the_help_names_the_required_confirmation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", "adopt", "--help"]) == 0
    output = capsys.readouterr().out
    assert "--yes" in output
    assert "--karpenter-is-gone" in output
