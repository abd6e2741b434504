"""Foreign NodeClaims and names in the cluster: no node is drained, no instance terminated."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.cli.main import main
from tests.cli import test_kubernetes_end_to_end as live
from tests.cli.test_kubernetes_end_to_end import Site, started
from tests.hostile.threats import Threat, attack

site = live.site
KARPENTERS = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}


def a_claim(name: str, labels: dict[str, str], reference: dict[str, str]) -> dict[str, Any]:
    finalizers = ["karpenter.sh/termination", "reconciler/termination"]
    meta = {"name": name, "labels": labels, "finalizers": finalizers}
    return {"kind": "NodeClaim", "metadata": meta, "spec": {"nodeClassRef": reference}}


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"reconciler/fleet": "shop"},
        {"reconciler/fleet": "shop", "karpenter.sh/nodepool": "web"},
    ],
    ids=["without labels", "with the label of the fleet", "with the labels of a copy"],
)
@attack(Threat.OWNERSHIP, "a NodeClaim of Karpenter, deleted so that the daemon drains it")
def test_a_claim_of_karpenter_is_not_treated_as_ours(site: Site, labels: dict[str, str]) -> None:
    site.sandbox.kube.absent = frozenset({"capacitybuffers"})
    sandbox = started(site)
    living = set(sandbox.cloud.running_instances())
    sandbox.kube.add(a_claim("theirs", labels, KARPENTERS))
    sandbox.kube.delete("nodeclaims", "theirs")
    before = dict(sandbox.kube.of("nodeclaims")["theirs"]["metadata"])
    site.keep_for(3)
    assert sandbox.kube.of("nodeclaims")["theirs"]["metadata"] == before
    assert set(sandbox.cloud.running_instances()) == living
    assert site.recorder.messages("NodeDeleted") == []


@attack(Threat.OWNERSHIP, "a copy of our NodeClaim whose status names another owner's instance")
def test_a_forged_status_terminates_nothing(site: Site) -> None:
    site.sandbox.kube.absent = frozenset({"capacitybuffers"})
    sandbox = started(site)
    (theirs, *_) = sandbox.cloud.connect("ec2", 1).run_instances(
        ImageId="ami-first", MinCount=1, MaxCount=1
    )["Instances"]
    sandbox.joined.add(theirs["InstanceId"])  # it is not meant for this cluster
    name = min(sandbox.kube.of("nodeclaims"))
    provider = f"aws:///us-east-1a/{theirs['InstanceId']}"
    forged = {"providerID": provider, "nodeName": "stranger"}
    sandbox.kube.change("nodeclaims", name, lambda claim: claim["status"].update(forged))
    sandbox.kube.delete("nodeclaims", name)
    site.keep(lambda: name not in sandbox.kube.of("nodeclaims"))
    assert theirs["InstanceId"] in sandbox.cloud.running_instances()


@pytest.mark.parametrize("verb", ["cordon", "uncordon", "drain", "delete node", "delete nodeclaim"])
@attack(Threat.OWNERSHIP, "the name of another owner's node in a command that acts on nodes")
def test_a_node_of_another_owner_is_not_touched_by_name(
    site: Site, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox = started(site)
    sandbox.kube.add(
        {
            "kind": "Node",
            "metadata": {"name": "managed-1"},
            "spec": {"providerID": "aws:///us-east-1a/i-theirs"},
            "status": {},
        }
    )
    calls = len(sandbox.kube.calls)
    assert main([*verb.split(), "managed-1", str(site.folder), *site.words("x")[2:]]) == 1
    assert "no node of fleet shop" in capsys.readouterr().err
    assert len(sandbox.kube.calls) == calls
