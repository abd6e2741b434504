"""Nothing of a tenant becomes part of user data, unless it has the form of its field."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.adapters.aws.bootstrap.family import user_data
from reconciler.adapters.aws.bootstrap.setup import ControlPlane, Setup
from reconciler.adapters.aws.launch.requests import launch_requests
from reconciler.model.errors import CloudError
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimSpec
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.taint import Taint
from tests.adapters.aws.test_requests import CONTROL_PLANE, a_resolved_class
from tests.contracts.cloud import a_launch, a_type
from tests.examples import examples

FAMILIES = ("AL2", "AL2023", "Bottlerocket", "Windows2019", "Windows2022", "Windows2025", "Custom")
PLANE = ControlPlane("web", "https://web.example.com", "Y2E=", "10.0.0.10", "10.0.0.0/16")
SETUP = Setup(PLANE, {"team": "red"}, (Taint("gpu", "NoSchedule", "yes"),), 29, {"podsPerCore": 4})
HOSTILE = (
    "x'; touch /PWNED; '",
    "$(touch /PWNED)",
    "`touch /PWNED`",
    "a\ntouch /PWNED",
    "a\r\n--//\nContent-Type: text/x-shellscript",
    'x"; touch /PWNED; "',
    "a b",
    "a,node-role=x",
    "a\0b",
    "x' ; Start-Process calc ; '",
    "a\\",
    "é",
    "a=b",
    "a\u2028b",
    "a" * 300,
)
PLACES: dict[str, Callable[[str], Setup]] = {
    "label key": lambda t: replace(SETUP, labels={t: "red"}),
    "label value": lambda t: replace(SETUP, labels={"team": t}),
    "taint key": lambda t: replace(SETUP, taints=(Taint(t, "NoSchedule"),)),
    "taint value": lambda t: replace(SETUP, taints=(Taint("gpu", "NoSchedule", t),)),
    "taint effect": lambda t: replace(SETUP, taints=(Taint("gpu", t),)),
    "cluster name": lambda t: replace(SETUP, cluster=replace(PLANE, name=t)),
    "endpoint": lambda t: replace(SETUP, cluster=replace(PLANE, endpoint=t)),
    "endpoint path": lambda t: replace(SETUP, cluster=replace(PLANE, endpoint=f"https://a/{t}")),
    "CA": lambda t: replace(SETUP, cluster=replace(PLANE, ca_bundle=t)),
    "DNS": lambda t: replace(SETUP, cluster=replace(PLANE, dns=t)),
    "DNS zone": lambda t: replace(SETUP, cluster=replace(PLANE, dns=f"fe80::1%{t}")),
    "CIDR": lambda t: replace(SETUP, cluster=replace(PLANE, cidr=t)),
    "cluster DNS": lambda t: replace(SETUP, kubelet={"clusterDNS": [t]}),
    "kubelet key": lambda t: replace(SETUP, kubelet={"evictionHard": {t: "5%"}}),
    "kubelet value": lambda t: replace(SETUP, kubelet={"evictionSoftGracePeriod": {"a": t}}),
    "kubelet text": lambda t: replace(SETUP, kubelet={"podsPerCore": t}),
}
ALLOWED = {"kubelet key": {"a" * 300}, "kubelet value": {"a" * 300}, "kubelet text": {"a" * 300},
           "CA": {"a" * 300}, "endpoint path": {"a" * 300}}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_an_ordinary_setup_is_accepted(family: str) -> None:
    user_data(family, SETUP)
    user_data(family, replace(SETUP, cluster=ControlPlane("web")))
    six = replace(PLANE, dns="fd00::a", cidr="fd00::/108", endpoint="https://[fd00::1]:6443")
    user_data(family, replace(SETUP, cluster=six))
    user_data(family, replace(SETUP, labels={"example.com/a_b.c": ""}, kubelet={
        "evictionHard": {"memory.available": "5%", "nodefs.inodesFree": "100Mi"},
        "evictionSoftGracePeriod": {"memory.available": "1m30s"},
        "kubeReserved": {"cpu": "1500m", "example.com/x": "1e3"},
        "clusterDNS": ["10.0.0.10", "fd00::a"],
        "cpuCFSQuota": True,
    }))  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", PLACES)
def test_text_outside_of_the_grammar_is_refused(place: str, family: str) -> None:
    for text in HOSTILE:
        if text in ALLOWED.get(place, ()):
            continue
        with pytest.raises(CloudError, match="cannot be part of user data"):
            user_data(family, PLACES[place](text))


@settings(max_examples=examples(3000))
@given(place=st.sampled_from(sorted(PLACES)), text=st.text(max_size=40))
def test_any_text_is_refused_or_has_only_harmless_characters(place: str, text: str) -> None:
    try:
        script = user_data("AL2", PLACES[place](text))
    except CloudError:
        return
    assert text in script or text in {"", PLANE.name}
    assert re.fullmatch(r"[A-Za-z0-9._:/%+=\[\]-]*", text)


@pytest.mark.parametrize("family", FAMILIES[:-1])
@pytest.mark.parametrize("text", HOSTILE)
def test_a_label_of_a_claim_reaches_no_user_data(text: str, family: str) -> None:
    """The value would come from a pod's node affinity, with an open requirement of the NodePool."""
    wanted = NodeSelectorRequirement("team", Operator.IN, (text,))
    claim = NodeClaim(Metadata(name="c"), NodeClaimSpec(requirements=(wanted,)))
    launch = a_launch("i", a_resolved_class(ami_family=family), "m7g.large", node_claim=claim)
    with pytest.raises(CloudError, match="cannot be part of user data"):
        launch_requests(launch, a_type, CONTROL_PLANE)


def test_the_text_of_the_author_of_the_class_is_left_alone() -> None:
    setup: Any = replace(SETUP, custom="#!/bin/sh\necho \"$(date)\" 'x'\n")
    assert "echo \"$(date)\" 'x'" in user_data("AL2", setup)
    assert base64.b64encode(user_data("Custom", setup).encode())


@pytest.mark.parametrize(
    "text",
    [
        "[settings.kubernetes]\nnode-labels = 5\n",
        "[settings.kubernetes]\nnode-labels = ['a']\n",
        "[settings]\nbootstrap-commands = 5\n",
        "[settings]\nkubernetes = [1]\n",
        "settings = [1]\n",
        f"a = {'[' * 5000}{']' * 5000}\n",
        f"{'.'.join('a' * 5000)} = 1\n",
        f"a = {'9' * 5000}\n",
    ],
    ids=range(8),
)
def test_odd_settings_of_bottlerocket_are_refused(text: str) -> None:
    with pytest.raises(CloudError, match="the user data of a Bottlerocket EC2NodeClass"):
        user_data("Bottlerocket", replace(SETUP, custom=text, raid0=True))


@pytest.mark.parametrize("version", ["1.²", "1..2", "9" * 5000, "٣.1.1", ""])
def test_an_odd_version_of_bottlerocket_counts_as_an_old_one(version: str) -> None:
    assert "--dirs" in user_data("Bottlerocket", replace(SETUP, image_version=version, raid0=True))


@pytest.mark.parametrize("family", ["AL2", "AL2023", "Bottlerocket"])
def test_an_expression_for_the_number_of_pods_is_not_written(family: str) -> None:
    expression = {"maxPods": "min(30, vcpus * 8)"}
    node_class = a_resolved_class(ami_family=family, kubelet=expression)
    launch = a_launch("i", node_class, "m7g.large", node_claim=NodeClaim(Metadata(name="c")))
    requests = launch_requests(launch, a_type, CONTROL_PLANE)
    (template, *_) = requests.templates
    script = base64.b64decode(template["LaunchTemplateData"]["UserData"]).decode()
    assert "min(" not in script
