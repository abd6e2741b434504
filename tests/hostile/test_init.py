"""Attacks by which untrusted YAML makes `init` read or write unintended files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.cli.test_init import BETA
from tests.hostile.threats import Threat, attack


@pytest.fixture(autouse=True)
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    folder = tmp_path / "work" / "given"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    (folder / "karpenter.yaml").write_text(BETA)
    return folder


def init(*words: str) -> int:
    return main(["init", "fleet", "--from", "given", "--region", "us-east-1", *words])


def all_text(folder: Path) -> str:
    files = [p for p in folder.rglob("*") if p.is_file() and ".schemas" not in p.parts]
    return "".join(p.read_text() for p in files)


@attack(
    Threat.SECRETS, "a symbolic link in Karpenter's YAML to a file of the user, for init to copy"
)
def test_init_does_not_follow_a_symbolic_link_out_of_the_source(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text(BETA.replace("name: web", "name: s3cret"))
    (given / "link.yaml").symlink_to(secret)
    assert init() == 0
    assert "the symbolic link leads out of the folder" in capsys.readouterr().out
    assert "s3cret" not in all_text(Path("fleet"))


@attack(Threat.HIDDEN, "a symbolic link in the new folder to a folder outside it, for init to fill")
@pytest.mark.parametrize("name", ["nodes", ".schemas", ".github"])
def test_init_does_not_write_through_a_linked_folder(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    Path("fleet").mkdir()
    (Path("fleet") / name).symlink_to(outside)
    assert init("--ci", "github") == 1
    assert "leads out of" in capsys.readouterr().err
    assert list(outside.iterdir()) == []
    assert [p.name for p in Path("fleet").iterdir()] == [name]


@attack(Threat.HIDDEN, "a dangling link with the name of a new file that leads out of the folder")
@pytest.mark.parametrize("name", ["reconciler.yaml", "nodes/nodepool-web.yaml"])
def test_init_does_not_write_through_a_linked_file(name: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    link = Path("fleet") / name
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    assert init() == 1
    assert not target.exists()


@attack(Threat.HIDDEN, "an object name that leads out of the folder if used as a file name")
@pytest.mark.parametrize("name", ["../../escaped", "/escaped", "a/b", "\\x1b[31m", "..", "con\\n"])
def test_an_object_name_never_leads_out_of_the_folder(
    name: str, given: Path, tmp_path: Path
) -> None:
    (given / "karpenter.yaml").write_text(BETA.replace("name: web", f'name: "{name}"'))
    assert init() == 3
    made = [p for p in tmp_path.rglob("*.yaml") if "given" not in p.parts]
    assert all((tmp_path / "work" / "fleet") in p.parents for p in made)
    nodes = sorted(p.name for p in Path("fleet/nodes").iterdir())
    assert all(set(n) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.") for n in nodes)


_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(12)
)


@attack(Threat.EXHAUSTION, "a file that exhausts the machine when init reads it")
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(_BOMB, id="a YAML bomb"),
        pytest.param("a: " + "[" * 5000, id="deep nesting"),
        pytest.param("x" * (5 * 2**20), id="more than 4 MiB"),
        pytest.param("- &a [*a]\n", id="a value inside itself"),
        pytest.param("---\n" * 20_000 + "kind: x\n", id="many documents"),
        pytest.param(
            "kind: NodePool\nspec: {subnetSelector: {"
            + ", ".join(f"k{n}: 'a,b,c,d,e,f,g,h'" for n in range(40))
            + "}}\n",
            id="alternatives that multiply",
        ),
    ],
)
def test_files_beyond_the_limits_are_skipped(
    content: str, given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (given / "bomb.yaml").write_text(content)
    start = time.monotonic()
    assert init() == 0
    assert time.monotonic() - start < 30
    assert "bomb.yaml" in capsys.readouterr().out
    assert Path("fleet/nodes/nodepool-web.yaml").is_file()


@attack(Threat.EXHAUSTION, "selector alternatives that multiply to millions of terms")
def test_a_combinatorial_explosion_of_alternatives_is_a_finding(
    given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = ", ".join(f"k{n}: 'a,b,c,d,e,f,g,h'" for n in range(40))
    (given / "karpenter.yaml").write_text(
        BETA
        + "---\napiVersion: karpenter.k8s.aws/v1alpha1\nkind: AWSNodeTemplate\n"
        + f"metadata: {{name: many}}\nspec: {{instanceProfile: p, subnetSelector: {{{tags}}}}}\n"
    )
    assert init() == 3
    assert "has more than 30 alternatives" in capsys.readouterr().out


@attack(Threat.SETTINGS, "a Deployment that looks like Karpenter's and redirects credentials")
def test_settings_of_a_deployment_cannot_set_endpoints(given: Path) -> None:
    (given / "karpenter.yaml").write_text(
        BETA
        + """\
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: karpenter, labels: {app.kubernetes.io/name: karpenter}}
spec:
  template:
    spec:
      containers:
        - name: controller
          env:
            - {name: AWS_ENDPOINT_URL, value: "https://evil.example"}
            - {name: AWS_ENDPOINT_URL_EC2, value: "https://evil.example"}
            - {name: ASSUME_ROLE_ARN, value: "arn:aws:iam::1:role/evil"}
            - {name: CLUSTER_NAME, value: shop}
"""
    )
    assert init() == 0
    assert "evil" not in Path("fleet/reconciler.yaml").read_text()
    assert "clusterName: shop" in Path("fleet/reconciler.yaml").read_text()


@attack(Threat.OUTPUT, "escape sequences and workflow commands in an object that init reports")
def test_the_report_prints_no_control_characters(
    given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (given / "evil.yaml").write_text(
        'apiVersion: "v1"\nkind: "Ser\\e[31mvice"\nmetadata: {name: "x\\n::error::pwned"}\n'
    )
    assert init() == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert not any(line.lstrip().startswith("::") for line in out.splitlines())


@attack(Threat.HIDDEN, "unexpected types where Karpenter has mappings and lists")
@pytest.mark.parametrize(
    "spec",
    ["[]", "x", "{template: [1]}", "{template: {spec: {nodeClassRef: [x], kubelet: 1}}}",
     "{disruption: {budgets: [1, {reasons: x}]}, template: {metadata: x}}"],
)  # fmt: skip
@pytest.mark.parametrize(
    "head",
    ["karpenter.sh/v1beta1\nkind: NodePool", "karpenter.sh/v1alpha5\nkind: Provisioner",
     "karpenter.k8s.aws/v1alpha1\nkind: AWSNodeTemplate", "apps/v1\nkind: Deployment"],
)  # fmt: skip
def test_unexpected_shapes_are_findings(
    spec: str, head: str, given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = f"---\napiVersion: {head}\nmetadata: {{name: karpenter}}\nspec: {spec}\n"
    (given / "karpenter.yaml").write_text(BETA + extra)
    assert init() in (0, 3)
    assert "internal error" not in capsys.readouterr().err


@attack(Threat.EXHAUSTION, "a named pipe in place of git's files, where init looks for the forge")
def test_init_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    Path(".git").mkdir()
    os.mkfifo(".git/config")
    command = [sys.executable, "-m", "reconciler", "init", "fleet", "--from", "given"]
    done = subprocess.run(
        [*command, "--region", "us-east-1"], stdin=subprocess.DEVNULL, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (Path("fleet") / "nodes").is_dir()


NESTED = {
    "heredoc": "yaml_body = <<-YAML\n kind: NodePool\n /* (\n YAML\n",
    "comment": "yaml_body = <<-YAML /* x\n kind: NodePool\n YAML\n",
    "directive": 'yaml_body = "%{ for x in y }kind: NodePool"\n',
    "template": 'yaml_body = templatefile("given.yaml", {a = "${"})\n',
}


@attack(Threat.EXHAUSTION, "a text within Terraform's files that does not end")
@pytest.mark.parametrize("text", NESTED.values(), ids=list(NESTED))
def test_a_text_without_an_end_is_a_finding(
    text: str, given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (given / "main.tf").write_text(f'resource "kubectl_manifest" "a" {{\n{text}}}\n')
    assert init() == 0
    assert "internal error" not in capsys.readouterr().err
