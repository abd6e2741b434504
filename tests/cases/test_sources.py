"""What a repository renders to is what is read of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from reconciler.cli.main import main
from reconciler.source.plainyaml import load_all
from tests.cases import FOLDER, NOW, check_complete, parameters, run_json

KIND: Final = "sources"


class Taken(NamedTuple):
    """What `init --from` and `plan` of a case give: objects, the report, the plan."""

    code: int
    objects: dict[str, Any]
    report: str
    plan: Any


def taken_over(case: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Taken:
    """Start a fleet from a case, and plan it."""
    words = ["--from", str(FOLDER / KIND / case), "--name", "blue", "--region", "us-east-1"]
    code = main(["init", str(folder), *words, "--ci", "none", "--no-lock"])
    report = "".join(capsys.readouterr())
    objects: dict[str, Any] = {}
    for path in (*folder.glob("nodes/*.yaml"), *folder.glob("workloads/*.yaml")):
        for data in load_all(path.read_bytes()):
            assert isinstance(data, dict)
            objects[f"{data['kind']} {data['metadata']['name']}"] = data["spec"]
    plan = None
    if code == 0:
        fixed = ("--now", NOW, "--set", "cluster=none", "--set", "packing=default")
        _, plan, _ = run_json(capsys, "plan", str(folder), *fixed)
    return Taken(code, objects, report, plan)


def pods(plan: Any) -> int:
    return len(plan["placements"]) + len(plan["unschedulable"])


def kustomize_overlay(take: Callable[[str], Taken]) -> None:
    asked = take("kustomize-overlay")
    assert asked.code == 1
    assert "overlays/prod, overlays/staging" in asked.report
    found = take("kustomize-overlay/overlays/prod")
    pool = found.objects["NodePool prod-general"]
    assert (pool["limits"]["cpu"], pool["weight"]) == ("500", 50)
    assert "EC2NodeClass prod-default" in found.objects
    assert found.objects["Deployment prod-web"]["replicas"] == 40
    assert "launches nothing" in found.report
    assert found.plan["nodeClaims"] == []


def kustomize_patch_first(take: Callable[[str], Taken]) -> None:
    found = take("kustomize-patch-first")
    assert found.objects["Deployment web"]["replicas"] == 2
    assert pods(found.plan) == 2


def flux_defaults(take: Callable[[str], Taken]) -> None:
    found = take("flux-defaults")
    node_class = found.objects["EC2NodeClass default"]
    assert node_class["amiSelectorTerms"] == [{"alias": "al2023@latest"}]
    assert node_class["role"] == "KarpenterNodeRole-blue"
    for terms in ("subnetSelectorTerms", "securityGroupSelectorTerms"):
        assert node_class[terms] == [{"tags": {"karpenter.sh/discovery": "blue"}}]
    assert str(found.objects["NodePool default"]["limits"]["cpu"]) == "100"
    assert "complete 2 placeholders: $(TEAM)" in found.report
    assert "REPLACE_ME" in found.report


def auto_mode(take: Callable[[str], Taken]) -> None:
    found = take("auto-mode")
    assert found.report.count("of eks.amazonaws.com (EKS Auto Mode) are not supported") == 1
    assert "not found" not in found.report


def helm_partial(take: Callable[[str], Taken]) -> None:
    found = take("helm-partial")
    assert found.objects["EC2NodeClass default"]["role"] == "KarpenterNodeRole"
    assert "NodePool default" in found.objects


def flux(take: Callable[[str], Taken]) -> None:
    found = take("flux")
    assert found.objects["NodePool prod-general"]["limits"] == {"cpu": 64}
    node_class = found.objects["EC2NodeClass prod-general"]
    assert node_class["role"] == "blue-nodes"
    assert node_class["amiSelectorTerms"] == [{"alias": "al2023@v20250620"}]
    assert found.objects["Deployment prod-web"]["replicas"] == 5
    assert "launches nothing" in found.report
    assert "nameReference" in found.report
    assert found.plan["nodeClaims"] == []


def terraform(take: Callable[[str], Taken]) -> None:
    found = take("terraform")
    assert str(found.objects["NodePool default"]["limits"]["cpu"]) == "48"
    node_class = found.objects["EC2NodeClass default"]
    assert node_class["subnetSelectorTerms"] == [{"tags": {"karpenter.sh/discovery": "blue"}}]
    assert "complete 1 placeholder: ${aws_iam_role.node.name}" in found.report


def argocd(take: Callable[[str], Taken]) -> None:
    found = take("argocd")
    pool = found.objects["NodePool general"]
    assert str(pool["limits"]["cpu"]) == "32"
    assert pool["template"]["spec"]["requirements"][0]["values"] == ["m7i", "c7i"]
    assert found.objects["EC2NodeClass general"]["role"] == "blue-nodes"


ANSWERS: Final[dict[str, Callable[[Callable[[str], Taken]], None]]] = {
    "kustomize-overlay": kustomize_overlay,
    "kustomize-patch-first": kustomize_patch_first,
    "flux-defaults": flux_defaults,
    "auto-mode": auto_mode,
    "helm-partial": helm_partial,
    "flux": flux,
    "terraform": terraform,
    "argocd": argocd,
}
OPEN: Final[set[str]] = set()
TOOLS: Final = {
    "kustomize": {"kustomize-overlay", "kustomize-patch-first", "flux"},
    "helm": {"helm-partial", "argocd"},
}


@pytest.mark.parametrize("case", parameters(KIND, ANSWERS, OPEN))
def test_what_is_taken_over_is_what_the_tools_render(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for tool, cases in TOOLS.items():
        if case in cases and shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    ANSWERS[case](lambda name: taken_over(name, tmp_path / name.replace("/", "-"), capsys))


def test_every_case_has_an_answer() -> None:
    check_complete(KIND, ANSWERS)
