"""Our NodeClaims as objects of a cluster with the CRD: created, corrected, and deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.adapters.kubernetes.apiserver import Call, RefusedError
from tests.cli import test_kubernetes_end_to_end as live
from tests.cli.test_kubernetes_end_to_end import Sandbox, Site, started

site = live.site
Claims = dict[str, dict[str, Any]]


@pytest.fixture
def sandbox(site: Site) -> Sandbox:
    """Two nodes in a cluster that has Karpenter's kinds."""
    site.sandbox.kube.absent = frozenset({"capacitybuffers"})
    return started(site)


def claims(sandbox: Sandbox) -> Claims:
    return sandbox.kube.of("nodeclaims")


def conditions(claim: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in claim["status"]["conditions"]}


def test_each_claim_is_shown_with_labels_status_and_conditions(
    site: Site, sandbox: Sandbox
) -> None:
    site.keep(lambda: all(conditions(c).get("Ready") == "True" for c in claims(sandbox).values()))
    assert len(claims(sandbox)) == 2
    nodes = sandbox.kube.of("nodes")
    for claim in claims(sandbox).values():
        assert claim["metadata"]["labels"]["karpenter.sh/nodepool"] == "web"
        assert claim["metadata"]["labels"]["reconciler/fleet"] == "shop"
        assert claim["metadata"]["finalizers"] == ["reconciler/termination"]
        node = nodes[claim["status"]["nodeName"]]
        assert claim["status"]["providerID"] == node["spec"]["providerID"]
        found = conditions(claim)
        assert found["Launched"] == found["Registered"] == found["Initialized"] == "True"
        assert "PodsSeen" not in found, "what only we mean is not shown"
        for condition in claim["status"]["conditions"]:
            assert condition["reason"]
            assert condition["lastTransitionTime"]


def test_karpenter_does_not_manage_our_claims(sandbox: Sandbox) -> None:
    for claim in claims(sandbox).values():
        reference = claim["spec"]["nodeClassRef"]
        assert reference["group"] == "reconciler", "no kind that a Karpenter supports"


def test_an_unchanged_claim_is_not_written_again(site: Site, sandbox: Sandbox) -> None:
    site.keep(lambda: all(conditions(c).get("Ready") == "True" for c in claims(sandbox).values()))
    site.keep_for(3)
    before = {n: c["metadata"]["resourceVersion"] for n, c in claims(sandbox).items()}
    site.keep_for(3)
    assert {n: c["metadata"]["resourceVersion"] for n, c in claims(sandbox).items()} == before


def test_deleting_a_claim_drains_its_node_and_terminates_its_instance(
    site: Site, sandbox: Sandbox
) -> None:
    name, claim = min(claims(sandbox).items())
    instance = claim["status"]["providerID"].rpartition("/")[2]
    sandbox.fewest = sandbox.replicas
    sandbox.kube.delete("nodeclaims", name)
    assert name in claims(sandbox), "our finalizer holds it"
    site.keep(lambda: name not in claims(sandbox) and sandbox.settled())
    assert instance not in sandbox.cloud.running_instances()
    assert claim["status"]["nodeName"] not in sandbox.kube.of("nodes")
    assert sandbox.fewest >= 1, "the budget held"
    assert len(sandbox.cloud.running_instances()) == 2
    assert f"NodeClaim {name} was deleted" in site.recorder.messages("NodeDeleted")[0]


def test_deleting_a_node_removes_its_claim(site: Site, sandbox: Sandbox) -> None:
    name, claim = min(claims(sandbox).items())
    sandbox.kube.delete("nodes", claim["status"]["nodeName"])
    site.keep(lambda: name not in claims(sandbox) and sandbox.settled())
    assert len(claims(sandbox)) == len(sandbox.cloud.running_instances()) == 2


def _edited(claim: dict[str, Any]) -> None:
    claim["metadata"]["labels"]["karpenter.sh/nodepool"] = "other"
    claim["metadata"]["finalizers"] = ["x.io/y"]
    claim["status"]["providerID"] = "aws:///us-east-1a/i-other"
    claim["status"]["conditions"] = []


def test_an_edited_copy_is_restored(site: Site, sandbox: Sandbox) -> None:
    site.keep(lambda: all(conditions(c).get("Ready") == "True" for c in claims(sandbox).values()))
    name, before = min(claims(sandbox).items())
    living = set(sandbox.cloud.running_instances())
    provider = before["status"]["providerID"]
    sandbox.kube.change("nodeclaims", name, _edited)
    site.keep(lambda: claims(sandbox)[name]["status"]["providerID"] == provider)
    after = claims(sandbox)[name]
    assert after["metadata"]["labels"]["karpenter.sh/nodepool"] == "web"
    assert after["metadata"]["finalizers"] == ["x.io/y", "reconciler/termination"]
    assert conditions(after)["Ready"] == "True"
    assert set(sandbox.cloud.running_instances()) == living


def test_a_missing_copy_is_created_again_and_terminates_nothing(
    site: Site, sandbox: Sandbox
) -> None:
    living = set(sandbox.cloud.running_instances())
    name = min(claims(sandbox))
    sandbox.kube.remove("nodeclaims", name)
    site.keep(lambda: name in claims(sandbox))
    assert set(sandbox.cloud.running_instances()) == living


def test_the_claims_of_others_are_left_alone(site: Site, sandbox: Sandbox) -> None:
    foreign = {
        "kind": "NodeClaim",
        "metadata": {"name": "karpenters", "finalizers": ["karpenter.sh/termination"]},
        "spec": {"nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass"}},
    }
    other = {
        "kind": "NodeClaim",
        "metadata": {"name": "others", "labels": {"reconciler/fleet": "x"}},
    }
    before = [sandbox.kube.add(item)["metadata"]["resourceVersion"] for item in (foreign, other)]
    sandbox.kube.delete("nodeclaims", "karpenters")
    site.keep_for(3)
    assert claims(sandbox)["others"]["metadata"]["resourceVersion"] == before[1]
    written = [c for c in sandbox.kube.calls if c.resource == "nodeclaims" and c.method != "GET"]
    assert not {c.name for c in written} & {"karpenters", "others"}


def test_a_claim_of_the_same_name_that_is_not_ours_is_reported(
    site: Site, sandbox: Sandbox
) -> None:
    name = min(claims(sandbox))
    sandbox.kube.remove("nodeclaims", name)
    sandbox.kube.add({"kind": "NodeClaim", "metadata": {"name": name}, "spec": {}})
    site.keep(
        lambda: any(f"a NodeClaim {name} that is not ours" in m for m in retry_messages(site))
    )
    assert claims(sandbox)[name].get("status") is None
    assert len(sandbox.cloud.running_instances()) == 2


def retry_messages(site: Site) -> list[str]:
    return site.recorder.messages("Retrying")


def test_a_node_pool_missing_in_git_is_reported_only(site: Site, sandbox: Sandbox) -> None:
    sandbox.kube.add({"kind": "NodePool", "metadata": {"name": "theirs"}})
    site.keep(lambda: bool(site.recorder.messages("Ignored")))
    before = len(site.recorder.messages("Ignored"))
    site.keep_for(3)
    assert len(site.recorder.messages("Ignored")) <= before + 1, "once in each start of the daemon"
    assert set(site.recorder.messages("Ignored")) == {
        "NodePools of the cluster that git does not have are not acted on: theirs"
    }
    assert "theirs" in sandbox.kube.of("nodepools")


def _forbid(moving: Callable[[Call], None], verb: str) -> Callable[[Call], None]:
    def fault(call: Call) -> None:
        moving(call)
        if call.resource == "nodeclaims" and (call.verb == verb or verb == "any"):
            raise RefusedError(403, "Forbidden", "no")

    return fault


@pytest.mark.exhaustive
@pytest.mark.parametrize("verb", ["any", "list", "create", "patch"])
def test_problems_with_the_copies_do_not_block_launches(site: Site, verb: str) -> None:
    site.sandbox.kube.absent = frozenset({"capacitybuffers"})
    site.sandbox.kube.fault = _forbid(site.sandbox.fault, verb)
    started(site)
    assert len(site.sandbox.cloud.running_instances()) == 2
    assert len([m for m in retry_messages(site) if "nodeclaims" in m]) <= 2, (
        "it is not said in each pass"
    )


def test_uninstall_removes_the_copies_and_leaves_nodes_and_instances(
    site: Site, sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["uninstall", str(site.folder), *site.words("x")[2:10], "--auto-approve"]
    assert main([*words, "--settle", "0s"]) == 0, capsys.readouterr().err
    assert "Removed 2 NodeClaims" in capsys.readouterr().out
    assert claims(sandbox) == {}
    assert len(sandbox.kube.of("nodes")) == len(sandbox.cloud.running_instances()) == 2
