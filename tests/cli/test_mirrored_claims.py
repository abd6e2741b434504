"""Our NodeClaims as objects of a cluster with the CRD: created, corrected, and deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.adapters.kubernetes.apiserver import Call, RefusedError
from tests.cli import test_kubernetes_end_to_end as live
from tests.cli.test_kubernetes_end_to_end import Site, Town, started

site = live.site
Claims = dict[str, dict[str, Any]]


@pytest.fixture
def town(site: Site) -> Town:
    """Two nodes in a cluster that has Karpenter's kinds."""
    site.town.kube.absent = frozenset({"capacitybuffers"})
    return started(site)


def claims(town: Town) -> Claims:
    return town.kube.of("nodeclaims")


def conditions(claim: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in claim["status"]["conditions"]}


def test_each_claim_is_shown_with_labels_status_and_conditions(site: Site, town: Town) -> None:
    site.keep(lambda: all(conditions(c).get("Ready") == "True" for c in claims(town).values()))
    assert len(claims(town)) == 2
    nodes = town.kube.of("nodes")
    for claim in claims(town).values():
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


def test_karpenter_does_not_manage_our_claims(town: Town) -> None:
    for claim in claims(town).values():
        reference = claim["spec"]["nodeClassRef"]
        assert reference["group"] == "reconciler", "no kind that a Karpenter supports"


def test_an_unchanged_claim_is_not_written_again(site: Site, town: Town) -> None:
    site.keep(lambda: all(conditions(c).get("Ready") == "True" for c in claims(town).values()))
    site.keep_for(3)
    before = {n: c["metadata"]["resourceVersion"] for n, c in claims(town).items()}
    site.keep_for(3)
    assert {n: c["metadata"]["resourceVersion"] for n, c in claims(town).items()} == before


def test_deleting_a_claim_drains_its_node_and_terminates_its_instance(
    site: Site, town: Town
) -> None:
    name, claim = min(claims(town).items())
    instance = claim["status"]["providerID"].rpartition("/")[2]
    town.fewest = town.replicas
    town.kube.delete("nodeclaims", name)
    assert name in claims(town), "our finalizer holds it"
    site.keep(lambda: name not in claims(town) and town.settled())
    assert instance not in town.cloud.living()
    assert claim["status"]["nodeName"] not in town.kube.of("nodes")
    assert town.fewest >= 1, "the budget held"
    assert len(town.cloud.living()) == 2
    assert f"NodeClaim {name} was deleted" in site.ears.said("NodeDeleted")[0]


def test_deleting_a_node_removes_its_claim(site: Site, town: Town) -> None:
    name, claim = min(claims(town).items())
    town.kube.delete("nodes", claim["status"]["nodeName"])
    site.keep(lambda: name not in claims(town) and town.settled())
    assert len(claims(town)) == len(town.cloud.living()) == 2


def _edited(claim: dict[str, Any]) -> None:
    claim["metadata"]["labels"]["karpenter.sh/nodepool"] = "other"
    claim["metadata"]["finalizers"] = ["x.io/y"]
    claim["status"]["providerID"] = "aws:///us-east-1a/i-other"
    claim["status"]["conditions"] = []


def test_an_edited_copy_is_restored(site: Site, town: Town) -> None:
    site.keep(lambda: all(conditions(c).get("Ready") == "True" for c in claims(town).values()))
    name, before = min(claims(town).items())
    living = set(town.cloud.living())
    provider = before["status"]["providerID"]
    town.kube.change("nodeclaims", name, _edited)
    site.keep(lambda: claims(town)[name]["status"]["providerID"] == provider)
    after = claims(town)[name]
    assert after["metadata"]["labels"]["karpenter.sh/nodepool"] == "web"
    assert after["metadata"]["finalizers"] == ["x.io/y", "reconciler/termination"]
    assert conditions(after)["Ready"] == "True"
    assert set(town.cloud.living()) == living


def test_a_missing_copy_is_created_again_and_terminates_nothing(site: Site, town: Town) -> None:
    living = set(town.cloud.living())
    name = min(claims(town))
    town.kube.remove("nodeclaims", name)
    site.keep(lambda: name in claims(town))
    assert set(town.cloud.living()) == living


def test_the_claims_of_others_are_left_alone(site: Site, town: Town) -> None:
    foreign = {
        "kind": "NodeClaim",
        "metadata": {"name": "karpenters", "finalizers": ["karpenter.sh/termination"]},
        "spec": {"nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass"}},
    }
    other = {
        "kind": "NodeClaim",
        "metadata": {"name": "others", "labels": {"reconciler/fleet": "x"}},
    }
    before = [town.kube.add(item)["metadata"]["resourceVersion"] for item in (foreign, other)]
    town.kube.delete("nodeclaims", "karpenters")
    site.keep_for(3)
    assert claims(town)["others"]["metadata"]["resourceVersion"] == before[1]
    written = [c for c in town.kube.calls if c.resource == "nodeclaims" and c.method != "GET"]
    assert not {c.name for c in written} & {"karpenters", "others"}


def test_a_claim_of_the_same_name_that_is_not_ours_is_reported(site: Site, town: Town) -> None:
    name = min(claims(town))
    town.kube.remove("nodeclaims", name)
    town.kube.add({"kind": "NodeClaim", "metadata": {"name": name}, "spec": {}})
    site.keep(lambda: any(f"a NodeClaim {name} that is not ours" in m for m in said(site)))
    assert claims(town)[name].get("status") is None
    assert len(town.cloud.living()) == 2


def said(site: Site) -> list[str]:
    return site.ears.said("Retrying")


def test_a_node_pool_missing_in_git_is_reported_only(site: Site, town: Town) -> None:
    town.kube.add({"kind": "NodePool", "metadata": {"name": "theirs"}})
    site.keep(lambda: bool(site.ears.said("Ignored")))
    before = len(site.ears.said("Ignored"))
    site.keep_for(3)
    assert len(site.ears.said("Ignored")) <= before + 1, "once in each start of the daemon"
    assert set(site.ears.said("Ignored")) == {
        "NodePools of the cluster that git does not have are not acted on: theirs"
    }
    assert "theirs" in town.kube.of("nodepools")


def _forbid(moving: Callable[[Call], None], verb: str) -> Callable[[Call], None]:
    def fault(call: Call) -> None:
        moving(call)
        if call.resource == "nodeclaims" and (call.verb == verb or verb == "any"):
            raise RefusedError(403, "Forbidden", "no")

    return fault


@pytest.mark.exhaustive
@pytest.mark.parametrize("verb", ["any", "list", "create", "patch"])
def test_problems_with_the_copies_do_not_block_launches(site: Site, verb: str) -> None:
    site.town.kube.absent = frozenset({"capacitybuffers"})
    site.town.kube.fault = _forbid(site.town.fault, verb)
    started(site)
    assert len(site.town.cloud.living()) == 2
    assert len([m for m in said(site) if "nodeclaims" in m]) <= 2, "it is not said in each pass"


def test_uninstall_removes_the_copies_and_leaves_nodes_and_instances(
    site: Site, town: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["uninstall", str(site.folder), *site.words("x")[2:10], "--auto-approve"]
    assert main([*words, "--settle", "0s"]) == 0, capsys.readouterr().err
    assert "Removed 2 NodeClaims" in capsys.readouterr().out
    assert claims(town) == {}
    assert len(town.kube.of("nodes")) == len(town.cloud.living()) == 2
