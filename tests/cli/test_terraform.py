"""Terraform: objects in its plans, its files and templates, and in scripts."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.assembly.inputs.manifests import read_manifests
from reconciler.cli.main import main
from reconciler.desired.terraform.expressions import evaluate
from reconciler.desired.terraform.functions import FUNCTIONS, OPERATORS, Unknown
from reconciler.desired.terraform.hcl import HclError, parse_hcl
from reconciler.desired.terraform.modules import find_objects
from reconciler.desired.terraform.scope import ModuleScope
from reconciler.source.plainyaml import load_all
from tests.cli.sourcefolders import CHART, CLASS, POOL, WEB, below, write
from tests.examples import examples

needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    read_manifests.cache_clear()
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def init(source: str = "given", *words: str) -> int:
    return main(["init", "fleet", "--from", source, "--no-lock", "--ci", "none", *words])


def taken() -> dict[str, dict[str, Any]]:
    """Return the specs of the new fleet by kind and name."""
    found = {}
    for path in sorted([*Path("fleet").glob("nodes/*"), *Path("fleet").glob("workloads/*")]):
        (data,) = load_all(path.read_bytes())
        assert isinstance(data, dict)
        found[f"{data['kind']} {data['metadata']['name']}"] = data["spec"]
    return found


def heredoc(text: str, name: str = "nodes", more: str = "") -> str:
    """Return a resource with objects in an indented heredoc."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    body = f"  yaml_body = <<-YAML\n{lines}  YAML\n"
    return f'resource "kubectl_manifest" "{name}" {{\n{more}{body}}}\n'


FACTS = """\
variable "region" { default = "eu-west-1" }
locals {
  name = "blue" // of the cluster
  tags = { team = "web", "owned" = true }
}
provider "aws" {
  region = var.region
}
module "eks" {
  source       = "terraform-aws-modules/eks/aws"
  cluster_name = local.name /* stated
  once */
}
"""
NAMED = CLASS.replace("role: nodes", "role: ${module.karpenter.node_iam_role_name}").replace(
    "{a: b}", "{karpenter.sh/discovery: ${module.eks.cluster_name}}"
)


def test_what_the_files_state_is_filled_in_and_the_rest_is_one_list(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FACTS + heredoc(NAMED, "class") + heredoc(POOL, "pool")
    write(work, {"given/main.tf": text})
    assert init() == 0
    printed = capsys.readouterr().out
    assert "Fleet blue (eu-west-1)" in printed
    assert "complete 1 placeholder: ${module.karpenter.node_iam_role_name}" in printed
    assert "main.tf:20:9" in printed
    node_class = taken()["EC2NodeClass default"]
    assert node_class["subnetSelectorTerms"] == [{"tags": {"karpenter.sh/discovery": "blue"}}]
    assert main(["plan", "fleet", "--set", "cluster=none"]) == 0


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("<>", "given-fleet"),
        ("TODO: name", "given-fleet"),
        ("b" * 80, "b" * 63),
        ("a.b_c", "a-b-c"),
    ],
)
def test_a_cluster_name_is_taken_only_if_it_can_be_one(
    stated: str, name: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FACTS.replace('"blue"', f'"{stated}"') + heredoc(NAMED, "class") + heredoc(POOL, "pool")
    write(work, {"given/main.tf": text})
    assert main(["init", "given-fleet", "--from", "given", "--no-lock", "--ci", "none"]) == 0
    printed = capsys.readouterr().out
    assert f"Fleet {name} (eu-west-1)" in printed
    assert ("not a name, so not used" in printed) == (name == "given-fleet")
    assert main(["plan", "given-fleet", "--set", "cluster=none"]) == 0


@pytest.mark.parametrize(
    ("expression", "limit"),
    [
        ('templatefile("${path.module}/pool.tftpl", { cpu = 48 })', "48"),
        ('templatefile("pool.tftpl", { cpu = local.limits["cpu"] })', "64"),
        ('templatefile("${path.module}/pool.tftpl", merge(local.limits, { cpu = var.cpu }))', "7"),
        ('templatefile("pool.tftpl", { cpu = var.cpu > 8 ? 1 : 2 })', "2"),
        ('templatefile("pool.tftpl", { cpu = (var.cpu - 1) * 2 + 1 })', "13"),
        ('templatefile("pool.tftpl", { cpu = max(var.cpu, 6) % 4 })', "3"),
        ('templatefile("pool.tftpl", { cpu = var.none > 8 ? 1 : 2 })', "${var.none > 8 ? 1 : 2}"),
        ('templatefile("pool.tftpl", { cpu = var.cpu == 7 ? 1 : 2 })', "1"),
        (
            'templatefile("pool.tftpl", { cpu = length([for x in ["a", "b"] : x if x != "a"]) })',
            "1",
        ),
    ],
)
def test_a_template_gets_its_arguments(expression: str, limit: str, work: Path) -> None:
    template = POOL.replace("spec:\n", 'spec:\n  limits: {cpu: "${cpu}"}\n', 1)
    text = 'variable "cpu" { default = 7 }\nlocals {\n  limits = { cpu = 64 }\n}\n'
    text += f'resource "kubectl_manifest" "pool" {{\n  yaml_body = {expression}\n}}\n'
    write(work, {"given/pool.tftpl": template, "given/main.tf": text + heredoc(CLASS)})
    init()
    assert taken()["NodePool general"]["limits"]["cpu"] == limit


def test_encoded_lists_and_numbers_stand_in_the_middle_of_a_template(work: Path) -> None:
    template = POOL.replace("values: [m7i]", "values: ${jsonencode(families)}").replace(
        "spec:\n", "spec:\n  limits: {cpu: ${jsonencode(cpu)}}\n", 1
    )
    text = 'resource "kubectl_manifest" "p" {\n  yaml_body = templatefile("p.yaml", '
    text += '{ families = compact(["m7i", "", "c7i"]), cpu = 48 })\n}\n'
    write(work, {"given/p.yaml": template, "given/main.tf": text + heredoc(CLASS)})
    assert init() == 0
    pool = taken()["NodePool general"]
    assert pool["limits"] == {"cpu": 48}
    assert pool["template"]["spec"]["requirements"][1]["values"] == ["m7i", "c7i"]


def test_a_rendered_template_file_is_taken_over_and_no_other_template(work: Path) -> None:
    text = """
variable "family" { default = "c7i" }
data "template_file" "pool" {
  template = file("${path.module}/templates/pool.tpl")
  vars     = { node-family = var.family }
}
resource "kubernetes_manifest" "pool" {
  manifest = yamldecode(data.template_file.pool.rendered)
}
"""
    template = POOL.replace("[m7i]", '["${node-family}"]')
    files = {
        "given/main.tf": text + heredoc(CLASS),
        "given/templates/pool.tpl": template,
        "given/templates/pool_spot.tpl": template.replace("on-demand", "spot"),
    }
    write(work, files)
    assert init() == 0
    requirements = taken()["NodePool general"]["template"]["spec"]["requirements"]
    assert requirements[0]["values"] == ["on-demand"]
    assert requirements[1]["values"] == ["c7i"]


def test_a_loop_over_what_is_unknown_makes_one_placeholder(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
variable "subnets" { type = list(string) }
resource "kubernetes_manifest" "class" {
  manifest = {
    apiVersion = "karpenter.k8s.aws/v1"
    kind       = "EC2NodeClass"
    metadata   = { name = "default" }
    spec = {
      role                       = "nodes"
      amiSelectorTerms           = [{ alias = "al2023@latest" }]
      subnetSelectorTerms        = [for s in var.subnets : { id = s } if s != ""]
      securityGroupSelectorTerms = [{ tags = { a = "b" } }]
    }
  }
}
"""
    write(work, {"given/main.tf": text + heredoc(POOL)})
    assert init() == 0
    assert "complete 1 placeholder: ${var.subnets[*]}" in capsys.readouterr().out
    assert taken()["EC2NodeClass default"]["subnetSelectorTerms"] == [{"id": "${var.subnets[*]}"}]


RELEASE = """
variable "limit" { default = 48 }
resource "helm_release" "nodes" {
  name      = "nodes"
  namespace = "karpenter"
  chart     = "${path.module}/charts/nodes"
  values    = [yamlencode({ role = aws_iam_role.node.name, cpu = var.limit })]
  set {
    name  = "replicas"
    value = 3
  }
  set_list {
    name  = "families"
    value = ["m7i", "c7i"]
  }
}
"""


@needs_helm
def test_a_chart_in_the_repository_is_rendered_with_the_values_of_its_release(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = CHART["templates/nodes.yaml"].replace("[m7i]", "{{ toJson .Values.families }}")
    chart = CHART | {"templates/nodes.yaml": pool}
    write(work, below("given/charts/nodes", chart) | {"given/main.tf": RELEASE})
    assert init() == 0
    requirements = taken()["NodePool general"]["template"]["spec"]["requirements"]
    assert requirements[1]["values"] == ["m7i", "c7i"]
    assert "complete 1 placeholder: ${aws_iam_role.node.name}" in capsys.readouterr().out
    assert taken()["NodePool general"]["limits"]["cpu"] == 48
    assert taken()["Deployment web"]["replicas"] == 3


def test_objects_in_a_file_of_values_are_named_by_that_file(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        'resource "helm_release" "karpenter" {\n  repository = "https://charts.example.com"\n'
        '  chart = "karpenter"\n  values = [file("files/values.yaml")]\n}\n'
    )
    objects = "".join(f"  - {part.strip()}\n".replace("\n", "\n    ").rstrip() + "\n"
                      for part in (POOL, CLASS))  # fmt: skip
    write(work, {"given/main.tf": text, "given/files/values.yaml": f"extraManifests:\n{objects}"})
    assert init() == 0
    assert "NodePool general, from files/values.yaml:" in capsys.readouterr().out


def test_objects_in_the_values_of_a_chart_from_elsewhere_are_taken_over(work: Path) -> None:
    from reconciler.source.plainyaml import dump

    items = [next(iter(load_all(text.encode()))) for text in (POOL, CLASS)]
    values = "".join(f"    {line}\n" for line in dump({"resources": items}).splitlines())
    text = 'resource "helm_release" "raw" {\n  repository = "https://charts.example.com"\n'
    text += f'  chart = "raw"\n  values = [<<-EOT\n{values}    EOT\n  ]\n}}\n'
    write(work, {"given/main.tf": text})
    assert init() == 0
    assert set(taken()) == {"EC2NodeClass default", "NodePool general"}


def test_a_chart_from_elsewhere_that_may_make_nodes_is_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'resource "helm_release" "nodes" {\n  repository = "https://charts.example.com"\n'
    text += '  chart = "karpenter-nodes"\n  values = [jsonencode({ nodePools = var.pools })]\n}\n'
    write(work, {"given/main.tf": text})
    assert init() == 1
    printed = capsys.readouterr().err
    assert 'chart "karpenter-nodes" of https://charts.example.com is not in this repo' in printed
    assert "helm template karpenter-nodes --repo https://charts.example.com" in printed


def test_a_manifest_may_be_an_object_of_the_language(work: Path) -> None:
    text = """
resource "kubernetes_manifest" "pool" {
  for_each = { small = 10, large = 100 }
  manifest = {
    apiVersion = "karpenter.sh/v1"
    kind       = "NodePool"
    metadata   = { name = "pool-${each.key}" }
    spec = {
      limits     = { cpu = each.value } # cores
      disruption = { consolidateAfter = "1m" }
      template = {
        spec = {
          nodeClassRef = { group = "karpenter.k8s.aws", kind = "EC2NodeClass", name = "default" }
          requirements = [
            { key = "karpenter.sh/capacity-type", operator = "In", values = ["spot"] },
          ]
        }
      }
    }
  }
}
"""
    write(work, {"given/main.tf": text + heredoc(CLASS)})
    assert init() == 0
    limits = {name: spec["limits"]["cpu"] for name, spec in taken().items() if "Pool" in name}
    assert limits == {"NodePool pool-large": 100, "NodePool pool-small": 10}


def test_a_directive_that_depends_on_known_values_is_followed(work: Path) -> None:
    template = POOL.replace(
        "      requirements:\n",
        "      requirements:\n%{ for f in families ~}\n"
        "        - {key: example.com/${f}, operator: Exists}\n%{ endfor ~}\n"
        "%{ if spot }\n        - {key: example.com/spot, operator: Exists}\n%{ endif }\n",
    )
    text = 'resource "kubectl_manifest" "p" {\n  yaml_body = templatefile("p.tftpl", '
    text += '{ families = ["a", "b"], spot = false })\n}\n'
    write(work, {"given/p.tftpl": template, "given/main.tf": text + heredoc(CLASS)})
    assert init() == 0
    requirements = taken()["NodePool general"]["template"]["spec"]["requirements"]
    keys = [r["key"] for r in requirements]
    assert keys[:2] == ["example.com/a", "example.com/b"]
    assert "example.com/spot" not in keys


@pytest.mark.parametrize(
    ("condition", "is_there"),
    [
        ("module.x.n > 0 && false", False),
        ("false && module.x.n", False),
        ("module.x.n || true", True),
    ],
)
def test_one_known_side_may_decide_a_condition(condition: str, is_there: bool, work: Path) -> None:
    template = f"{POOL}%{{ if limited }}        - {{key: a/b, operator: Exists}}\n%{{ endif }}"
    text = 'resource "kubectl_manifest" "p" {\n  yaml_body = templatefile("p.tftpl", '
    text += f"{{ limited = {condition} }})\n}}\n"
    write(work, {"given/p.tftpl": template, "given/main.tf": text + heredoc(CLASS)})
    assert init() == 0
    requirements = taken()["NodePool general"]["template"]["spec"]["requirements"]
    assert ("a/b" in [r["key"] for r in requirements]) is is_there


def test_a_directive_that_depends_on_unknown_values_is_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = f"%{{ if enabled }}\n{POOL}%{{ endif }}\n"
    text = 'resource "kubectl_manifest" "node_pool" {\n'
    text += '  yaml_body = templatefile("p.tftpl", { enabled = module.x.enabled })\n}\n'
    write(work, {"given/p.tftpl": template, "given/main.tf": text + heredoc(CLASS)})
    assert init() == 3  # a fleet without a NodePool is not planned
    assert "NodePool general" not in taken()
    assert "`terraform show -json`" in capsys.readouterr().out


def test_arguments_reach_the_module_that_they_are_passed_to(work: Path) -> None:
    root = 'module "nodes" {\n  source = "./modules/nodes"\n  family = "c7i"\n}\n'
    child = 'variable "family" {}\n' + heredoc(POOL.replace("[m7i]", '["${var.family}"]'))
    write(work, {"given/main.tf": root, "given/modules/nodes/main.tf": child + heredoc(CLASS, "c")})
    assert init() == 0
    requirements = taken()["NodePool general"]["template"]["spec"]["requirements"]
    assert requirements[1]["values"] == ["c7i"]


ZONES = """\
data "aws_availability_zones" "available" {}
locals {
  azs = slice(data.aws_availability_zones.available.names, 0, min(3, 9))
}
module "vpc" {
  source = "terraform-aws-modules/vpc/aws"
  azs    = local.azs
}
provider "aws" {
  region = "us-west-2"
}
"""
OF_ZONE = (
    POOL + "        - {key: topology.kubernetes.io/zone, operator: In, values: ${jsonencode(%s)}}\n"
)


@pytest.mark.parametrize(
    "text",
    ["local.azs", "module.vpc.azs", "module.nodes.zones", "[for az in module.vpc.azs : az]"],
)
@pytest.mark.parametrize("region", ["us-west-2", "eu-west-1"])
def test_the_zones_of_the_region_are_known(text: str, region: str, work: Path) -> None:
    child = 'variable "zones" {}\noutput "zones" {\n  value = var.zones\n}\n'
    call = 'module "nodes" {\n  source = "./nodes"\n  zones = module.vpc.azs\n}\n'
    root = ZONES + call + heredoc(OF_ZONE % text) + heredoc(CLASS, "c")
    write(work, {"given/main.tf": root, "given/nodes/main.tf": child})
    assert init("given", *(("--region", region) if region != "us-west-2" else ())) == 0
    zones = taken()["NodePool general"]["template"]["spec"]["requirements"][2]["values"]
    assert zones == [f"{region}{letter}" for letter in "abc"]


ROLE = """module "karpenter" {
  count  = 1
  source = "terraform-aws-modules/eks/aws//modules/karpenter"
  node_iam_role_name = "${module.eks.cluster_name}-node"
  %s
}
module "eks" {
  source = "terraform-aws-modules/eks/aws"
  name   = "blue"
}
"""


@pytest.mark.parametrize(
    ("argument", "role"),
    [
        ("node_iam_role_use_name_prefix = false", "blue-node"),
        ("node_iam_role_use_name_prefix = true", "${module.karpenter[0].node_iam_role_name}"),
        ("", "${module.karpenter[0].node_iam_role_name}"),
    ],
)
def test_the_role_of_nodes_is_that_of_its_module_unless_it_gets_a_suffix(
    argument: str, role: str, work: Path
) -> None:
    named = CLASS.replace("role: nodes", "role: ${module.karpenter[0].node_iam_role_name}")
    text = ROLE % argument + heredoc(POOL) + heredoc(named, "c")
    write(work, {"given/main.tf": text})
    assert init() == 0
    assert taken()["EC2NodeClass default"]["role"] == role


def test_an_output_of_a_module_that_is_called_twice_is_not_known(work: Path) -> None:
    child = 'variable "role" { default = "a" }\noutput "role" { value = var.role }\n'
    calls = "".join(
        f'module "{name}" {{\n  source = "./child"\n  role = "{name}"\n}}\n' for name in "xy"
    )
    named = CLASS.replace("role: nodes", "role: ${module.x.role}")
    write(
        work,
        {
            "given/main.tf": calls + heredoc(POOL) + heredoc(named, "c"),
            "given/child/main.tf": child,
        },
    )
    assert init() == 0
    assert taken()["EC2NodeClass default"]["role"] == "${module.x.role}"


def test_outputs_that_refer_to_each_other_end(work: Path) -> None:
    modules = {
        f"given/{name}/main.tf": 'variable "v" {}\noutput "o" { value = "${var.v}!" }\n'
        for name in "xy"
    }
    calls = 'module "x" {\n  source = "./x"\n  v = module.y.o\n}\n'
    calls += 'module "y" {\n  source = "./y"\n  v = module.x.o\n}\n'
    named = CLASS.replace("role: nodes", "role: ${module.x.o}")
    write(work, modules | {"given/main.tf": calls + heredoc(POOL) + heredoc(named, "c")})
    assert init() == 0
    assert taken()["EC2NodeClass default"]["role"].startswith("${module.")


@pytest.mark.parametrize(
    "command",
    [
        "cat <<EOF | kubectl apply -f -",
        "kubectl apply -f - <<-EOF",
        "kubectl apply -f - << 'EOF'",
        'kubectl apply -f - <<  "EOF"',
    ],
)
def test_objects_in_a_script_that_terraform_runs_are_taken_over(
    command: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f"{command}\n{POOL}---\n{CLASS}EOF\n"
    text = (
        'resource "null_resource" "nodes" {\n  provisioner "local-exec" {\n'
        f"    command = <<EOT\n{script}EOT\n  }}\n}}\n"
    )
    write(work, {"given/main.tf": text})
    assert init() == 0
    assert set(taken()) == {"EC2NodeClass default", "NodePool general"}
    assert "NodePool general, from given/main.tf:5:1" in capsys.readouterr().out.replace(
        "from main.tf", "from given/main.tf"
    )


def test_a_class_that_is_in_no_file_is_assumed_and_stated(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"given/pool.yaml": POOL, "given/web.yaml": WEB})
    assert init("given", "--name", "blue") == 0
    assert "EC2NodeClass default is in no file; assumed: al2023@latest" in capsys.readouterr().out
    assert taken()["EC2NodeClass default"]["role"] == "KarpenterNodeRole-blue"
    assert main(["plan", "fleet", "--set", "cluster=none", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"]["after"] > 0


def test_a_class_with_nearly_the_name_is_not_replaced_by_an_assumed_one(work: Path) -> None:
    write(work, {"given/nodes.yaml": f"{POOL.replace('default', 'defualt')}---\n{CLASS}"})
    init()
    assert [name for name in taken() if "Class" in name] == ["EC2NodeClass default"]


def test_objects_in_the_heredocs_of_a_script_are_taken_over(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = POOL.replace("[m7i]", "[$FAMILY]").replace("name: general", "name: ${EKS_CLUSTER}-pool")
    script = f"#!/bin/sh\ncat <<'EOF' | envsubst | kubectl apply -f -\n{pool}---\n{CLASS}EOF\n"
    write(work, {"given/install.sh": script})
    assert init("given", "--name", "blue") == 3  # no instance family has that name
    assert "NodePool blue-pool" in taken()
    assert "complete 1 placeholder: $FAMILY (install.sh:13:" in capsys.readouterr().out


def shown(values: dict[str, Any], key: str = "planned_values") -> str:
    cluster = {
        "address": "aws_eks_cluster.this", "type": "aws_eks_cluster",
        "values": {"name": "blue", "arn": "arn:aws:eks:eu-west-1:111122223333:cluster/blue"},
    }  # fmt: skip
    resources = [
        {"address": f"kubectl_manifest.{name}", "type": "kubectl_manifest", "values": value}
        for name, value in values.items()
    ]
    child = {"child_modules": [{"resources": resources}], "resources": [cluster]}
    return json.dumps({"format_version": "1.2", "terraform_version": "1.9.0",
                       key: {"root_module": child}})  # fmt: skip


@pytest.mark.parametrize("key", ["planned_values", "values"])
def test_a_plan_or_a_state_is_a_source(
    key: str, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown({"pool": {"yaml_body": POOL}, "class": {"yaml_body": CLASS}}, key)
    write(work, {"show.json": text, "web.yaml": WEB})
    assert init("show.json") == 0
    assert "Fleet blue (eu-west-1)" in capsys.readouterr().out
    assert set(taken()) == {"EC2NodeClass default", "NodePool general"}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    words = ["plan", "-f", "-", "-f", "web.yaml", "--set", "cluster=none", "-o", "json"]
    assert main(words) == 0
    assert len(json.loads(capsys.readouterr().out)["nodeClaims"]) == 1


def test_a_plan_beside_other_files_states_the_cluster_as_well(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown({"pool": {"yaml_body": POOL}, "class": {"yaml_body": CLASS}})
    write(work, {"given/show.json": text, "given/web.yaml": WEB})
    assert init() == 0
    assert "Fleet blue (eu-west-1)" in capsys.readouterr().out


def test_a_manifest_that_is_known_only_after_an_apply_is_an_error(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"show.json": shown({"pool": {"yaml_body": None}})})
    assert init("show.json") == 1
    assert "kubectl_manifest.pool is known only after `terraform apply`" in capsys.readouterr().err


def test_a_plan_that_is_no_utf_8_is_an_error_with_its_place(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = shown({"pool": {"yaml_body": POOL}}).encode().replace(b"blue", b"bl\xff", 1)
    write(work, {"web.yaml": WEB})
    (work / "show.json").write_bytes(content)
    words = ["plan", "-f", "show.json", "-f", "web.yaml", "--set", "cluster=none"]
    assert main(words) == 1
    assert "show.json:1:728: error: byte 0xff is not UTF-8" in capsys.readouterr().err
    assert init("show.json") == 1
    assert "internal error" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "text",
    [
        'resource "kubectl_manifest" "x" {',
        'locals {\n  a = "${b"\n}',
        "x = " + "[" * 500,
        "locals {\n  a = local.b\n  b = local.a\n}\n"
        + heredoc(POOL.replace("[m7i]", '["${local.a}"]')),
        'locals {\n  a = [for x in local.a : "${x}${x}"]\n}',
        "a = <<X\nno end",
        "}{",
        'x = replace("aaaaaaaaaaaaaaaaaaaaaaaa", "/(a+)+$/", "")',
    ],
)
def test_malformed_or_hostile_files_end_quickly(
    text: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"given/bad.tf": text, "given/nodes.yaml": POOL + "---\n" + CLASS})
    assert init() in (0, 1)
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("text", ["a = 1 /* no end", "b { c = [1, /* no end ] }", "/* no end"])
def test_a_comment_without_an_end_is_an_error_and_no_loop(text: str) -> None:
    with pytest.raises(HclError, match="a comment is not closed"):
        parse_hcl(text)


def test_a_comment_ends_no_line() -> None:
    block = parse_hcl("a = 1 /* first */\nb = /* second */ 2 // third\nc = 3")
    assert {name: a.text for name, a in block.attributes.items()} == {"a": "1", "b": "2", "c": "3"}


TAINTED = POOL.replace(
    "      requirements:\n",
    "%{ if length(taints) > 0 ~}\n      taints:\n%{ for t in taints ~}\n"
    "        - {key: ${t}, effect: NoSchedule}\n%{ endfor ~}\n%{ else }\n"
    "      expireAfter: 24h\n%{ endif ~}\n      requirements:\n",
)


@pytest.mark.parametrize(
    ("taints", "spec", "noted"),
    [
        ('["a", "b"]', {"taints": ["a", "b"]}, False),
        ("[]", {"expireAfter": "24h"}, False),
        ("var.taints", {"expireAfter": "24h"}, True),
        ("local.taints", {"expireAfter": "24h"}, True),
    ],
)
def test_a_part_with_an_unknown_condition_is_left_out_and_listed(
    taints: str,
    spec: dict[str, Any],
    noted: bool,
    work: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "locals { taints = data.x.y.taints }\n" + heredoc(CLASS, "class")
    text += 'resource "kubectl_manifest" "pool" {\n  yaml_body = templatefile("p.tftpl", '
    text += f"{{ taints = {taints} }})\n}}\n"
    write(work, {"given/main.tf": text, "given/p.tftpl": TAINTED})
    init()
    found = taken()["NodePool general"]["template"]["spec"]
    made = {"taints": [t["key"] for t in found["taints"]]} if "taints" in found else {}
    made |= {"expireAfter": found["expireAfter"]} if "expireAfter" in found else {}
    assert made == spec
    printed = capsys.readouterr().out
    line = 'kubectl_manifest pool: a part is left out, because "length(taints) > 0" is not known'
    assert (line in printed.partition("Complete by hand")[2]) == noted


def test_a_part_for_each_item_of_an_unknown_list_has_a_placeholder(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = POOL.replace(
        "values: [m7i]}", 'values: [%{ for f in families ~}"${f}",%{ endfor ~}]}'
    )  # fmt: skip
    text = heredoc(CLASS, "class") + 'resource "kubectl_manifest" "pool" {\n'
    text += '  yaml_body = templatefile("p.tftpl", { families = data.x.y.names })\n}\n'
    write(work, {"given/main.tf": text, "given/p.tftpl": pool})
    assert init() == 3
    values = taken()["NodePool general"]["template"]["spec"]["requirements"][1]["values"]
    assert values == ["${data.x.y.names[*]}"]
    assert "the placeholder ${data.x.y.names[*]} has no value" in capsys.readouterr().out


OPTIONAL = """
variable "pools" {
  type = map(object({
    families = optional(list(string), ["m7i"]) # the newest; with "c7i" beside it
    limit    = optional(object({ cpu = optional(number, 48), memory = optional(string) }), {})
    names    = list(object({ key = string, value = optional(string, "x") }))
    taint    = optional(string)
  }))
  default = {
    general = { names = [{ key = "a" }, { key = "b", value = "z" }] }
    other   = { families = ["c7i"], names = [], limit = { cpu = 7 } }
  }
}
"""


def test_an_attribute_that_is_left_out_has_the_default_of_its_type(work: Path) -> None:
    pool = POOL.replace("name: general", "name: ${each.key}").replace(
        "values: [m7i]", "values: ${jsonencode(each.value.families)}"
    )
    pool = pool.replace(
        "spec:\n",
        "spec:\n  limits: {cpu: ${each.value.limit.cpu}}\n"
        "%{ if each.value.taint != null }\n  weight: 3\n%{ endif }\n",
        1,
    )
    pool = pool.replace(
        "    spec:\n",
        "    metadata: {labels: {%{ for n in each.value.names }"
        "${n.key}: ${n.value}, %{ endfor }}}\n"
        "    spec:\n",
        1,
    )
    text = OPTIONAL + heredoc(CLASS, "class") + heredoc(pool, "p", "  for_each = var.pools\n")
    write(work, {"given/main.tf": text})
    assert init() == 0
    found = {name: spec for name, spec in taken().items() if name.startswith("NodePool")}
    limits = {name: spec["limits"]["cpu"] for name, spec in found.items()}
    assert limits == {"NodePool general": 48, "NodePool other": 7}
    general, other = found["NodePool general"], found["NodePool other"]
    assert general["template"]["metadata"]["labels"] == {"a": "x", "b": "z"}
    requirements = [p["template"]["spec"]["requirements"][1]["values"] for p in (general, other)]
    assert requirements == [["m7i"], ["c7i"]]
    assert "weight" not in general


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "1", "-", "%s"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=3,
)


@pytest.mark.parametrize("name", sorted([*FUNCTIONS, *OPERATORS]))
@settings(max_examples=examples(200))
@given(values=st.lists(JSON, max_size=3))
def test_no_argument_of_a_function_is_an_internal_error(name: str, values: list[object]) -> None:
    """A variable that is null, or of another type, makes the value unknown."""
    names = [f"var.v{number}" for number in range(len(values))]
    text = f"{name}({', '.join(names)})" if name in FUNCTIONS else f" {name} ".join(names)
    scope = ModuleScope(".", lambda _: None, {f"v{n}": value for n, value in enumerate(values)})
    evaluate(text, scope)


def test_a_map_of_variables_without_values_is_not_known() -> None:
    scope = ModuleScope(".", lambda _: None, {"zones": None})
    text = "zipmap(var.zones, var.zones)"
    assert evaluate(text, scope) == Unknown(text)


OFF = 'variable "on" { default = false }\nvariable "pools" { default = { a = "m7i", b = "c7i" } }\n'


@pytest.mark.parametrize(
    ("argument", "names"),
    [
        ("count = var.on ? 1 : 0", {"general"}),
        ("for_each = var.on ? var.pools : {}", {"a", "b"}),
        ("for_each = { for k, v in var.pools : k => v if var.on }", {"key"}),
        ("count = var.on ? length(var.pools) : 0", {"m7i", "c7i"}),
    ],
)
def test_what_is_switched_off_is_taken_over_where_nothing_else_makes_nodes(
    argument: str, names: set[str], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "${values(var.pools)[count.index]}" if "length" in argument else "${each.key}"
    named = POOL if "general" in names else POOL.replace("name: general", f"name: {name}")
    text = OFF + heredoc(named, "pool", f"  {argument}\n") + heredoc(CLASS, "c")
    write(work, {"given/main.tf": text})
    assert init() == 0
    assert {name for name in taken() if "Pool" in name} == {f"NodePool {n}" for n in names}
    assert "it is taken over all the same" in capsys.readouterr().out


def test_what_is_switched_off_stays_so_beside_another_pool(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = OFF + heredoc(POOL, "pool", "  count = var.on ? 1 : 0\n")
    other = POOL.replace("general", "other")
    write(work, {"given/main.tf": text, "given/nodes.yaml": f"{other}---\n{CLASS}"})
    assert init() == 0
    assert {name for name in taken() if "Pool" in name} == {"NodePool other"}
    assert "has no instances: count is" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["local_file", "local_sensitive_file"])
def test_objects_in_a_file_that_terraform_writes_are_taken_over(kind: str, work: Path) -> None:
    pool = POOL.replace("[m7i]", '["${family}"]')
    text = (
        f'resource "{kind}" "nodes" {{\n  filename = "out/nodes.yaml"\n'
        '  content = templatefile("${path.module}/nodes.tftpl", { family = "c7i" })\n}\n'
        'resource "local_file" "script" {\n  filename = "x.sh"\n  content = "echo ok"\n}\n'
    )
    write(work, {"given/main.tf": text, "given/nodes.tftpl": f"{pool}---\n{CLASS}"})
    assert init() == 0
    spec = taken()["NodePool general"]["template"]["spec"]
    assert spec["requirements"][1]["values"] == ["c7i"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"${var.families}"', ["m7i"]),
        ('"${ var.families }"', ["m7i"]),
        ('"${var.families[0]}"', "m7i"),
        ('"${var.number}"', 3),
        ('"${var.number}0"', "30"),
        ('"${var.number}${var.number}"', "33"),
        ('"$${var.number}"', "${var.number}"),
        ('"${var.other}"', Unknown("var.other")),
        ('"${[3, 4][var.number == 3 ? 1 : 0]}"', 4),
        ('"${[3, 4][var.other]}"', Unknown("[3, 4][var.other]")),
        ('"${[3][var.number]}"', Unknown("[3][var.number]")),
        ('split("/", "a/b")[1]', "b"),
        ("merge({ x = 1 }, { y = [2] }).y[0]", 2),
        ("keys({ x = 1 })[4]", Unknown("keys({ x = 1 })[4]")),
        ("keys(var.other)[0]", Unknown("keys(var.other)[0]")),
    ],
)
def test_a_text_of_one_expression_alone_has_its_value(text: str, value: object) -> None:
    """Terraform converts it only where there is more text."""
    scope = ModuleScope(".", lambda _: None, {"families": ["m7i"], "number": 3})
    assert evaluate(text, scope) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("tostring(floor(var.limit / 2))", "5"),
        ('"${floor(var.limit / 2) * 4}Gi"', "20Gi"),
        ("[ceil(5.1), ceil(-1.5), abs(-3), floor(-1.5)]", [6, -1, 3, -2]),
        ("[pow(2, 10), signum(-7), signum(0), parseint(var.hex, 16)]", [1024, -1, 0, 255]),
        ('[tonumber("0.5"), tonumber("12"), tobool("true")]', [0.5, 12, True]),
        ("[sum([1, 2.5]), range(3), range(1, 4), range(3, 0), range(0, 9, 4)]",
         [3.5, [0, 1, 2], [1, 2, 3], [3, 2, 1], [0, 4, 8]]),
        ("[alltrue([true, true]), alltrue([]), anytrue([false]), anytrue([])]",
         [True, True, False, False]),
        ('[base64encode("a"), base64decode("YQ=="), strrev("ab"), strcontains("spot", "po")]',
         ["YQ==", "a", "ba", True]),
        ("chunklist([1, 2, 3], 2)", [[1, 2], [3]]),
        ('index(["a", "b"], "b")', 1),
        ('jsondecode("{\\"cpu\\": [4]}").cpu[0]', 4),
        ('setproduct(["a"], ["x", "y"])', [["a", "x"], ["a", "y"]]),
        ('[setunion(["b"], ["a"]), setintersection(["b", "a"], ["a"])]', [["a", "b"], ["a"]]),
        ('setsubtract(["a", "b"], ["a"])', ["b"]),
    ],
)  # fmt: skip
def test_a_function_that_needs_only_its_arguments_has_its_value(text: str, value: object) -> None:
    """The values are those of ``terraform console``."""
    scope = ModuleScope(".", lambda _: None, {"limit": 10, "hex": "ff"})
    assert evaluate(text, scope) == value


@pytest.mark.parametrize(
    "text",
    [
        "range(0, 1e9)", "range(0, 9, 0)", "pow(10, 64)", "pow(2, 1e9)", "pow(0, -1)",
        'floor("x")', "floor(true)", 'tobool("yes")', 'base64decode("%")', 'parseint("z", 10)',
        'index(["a"], "b")', "chunklist([1], 0)", 'jsondecode("{")', 'sum("ab")',
        "setproduct(range(1000), range(1000))",
    ],
)  # fmt: skip
def test_a_function_without_a_value_leaves_a_placeholder(text: str) -> None:
    assert evaluate(text, ModuleScope(".", lambda _: None)) == Unknown(text)


def test_a_placeholder_of_an_encoded_object_is_in_the_file_of_its_resource(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines of the encoded text are not those of the file: the object's first line is."""
    encoded = (
        '\nresource "kubectl_manifest" "class" {\n  yaml_body = yamlencode({\n'
        '    apiVersion = "karpenter.k8s.aws/v1"\n    kind = "EC2NodeClass"\n'
        '    metadata = { name = "default" }\n    spec = {\n      role = var.role\n'
        '      tags = { fleet = "${var.fleet.first}-${var.fleet.second}" }\n'
        '      amiSelectorTerms = [{ alias = "al2023@latest" }]\n'
        '      subnetSelectorTerms = [{ tags = { a = "b" } }]\n'
        '      securityGroupSelectorTerms = [{ tags = { a = "b" } }]\n    }\n  })\n}\n'
    )
    write(work, {"given/main.tf": heredoc(POOL) + encoded})
    assert init() == 0
    out = capsys.readouterr().out
    line = (heredoc(POOL) + encoded).splitlines().index("  yaml_body = yamlencode({") + 1
    assert f"EC2NodeClass default, from main.tf:{line}:1" in out
    assert f"main.tf:{line}:1: warning: complete" in out


def test_an_object_that_nothing_sets_has_the_defaults_of_its_type(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variable = (
        'variable "nodes" {\n  type = object({\n    family = optional(string, "c7i")\n'
        "    role = optional(string)\n    size = number\n  })\n}\n"
    )
    pool = POOL.replace("[m7i]", '["${var.nodes.family}"]')
    node_class = CLASS.replace("role: nodes", 'role: "${var.nodes.role}"')
    write(work, {"given/main.tf": variable + heredoc(pool, "p") + heredoc(node_class, "c")})
    assert init() == 0
    requirements = taken()["NodePool general"]["template"]["spec"]["requirements"]
    assert requirements[1]["values"] == ["c7i"]
    assert "complete 1 placeholder: ${var.nodes.role}" in capsys.readouterr().out


def test_a_file_that_terraform_writes_is_read_once() -> None:
    read: list[str] = []

    def content_of(path: str) -> str:
        read.append(path)
        return POOL

    text = 'resource "local_file" "nodes" {\n  content = templatefile("nodes.tftpl", {})\n}\n'
    found = find_objects({"main.tf": text}, content_of)
    assert [one.path for one in found.texts] == ["nodes.tftpl"]
    assert read == ["nodes.tftpl"]


def test_what_a_written_file_without_objects_leaves_out_is_not_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = '  content = templatefile("a.tftpl", { on = data.x.y.on })\n'
    files = {
        "given/main.tf": f'resource "local_file" "script" {{\n{script}}}\n' + heredoc(POOL, "pool"),
        "given/a.tftpl": "%{ if on }\necho\n%{ endif }\n",
        "given/class.yaml": CLASS,
    }
    write(work, files)
    assert init() == 0
    assert "a part is left out" not in capsys.readouterr().out


def test_objects_in_a_heredoc_of_a_printed_script_are_taken_over(work: Path) -> None:
    inner = f"cat <<EOF | kubectl apply -f -\n{POOL}---\n{CLASS}EOF\n"
    write(work, {"given/steps.sh": f"cat <<__EOF__\n# Step 5:\n{inner}__EOF__\n"})
    assert init("given", "--name", "blue") == 0
    assert set(taken()) == {"EC2NodeClass default", "NodePool general"}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("  for_each = var.pools\n", 'for_each is "var.pools"'),
        ("  count = var.is_on ? 1 : 0\n", 'count is "var.is_on ? 1 : 0"'),
    ],
)
def test_a_resource_without_instances_is_named(
    more: str, reason: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'variable "pools" { default = {} }\nvariable "is_on" { default = false }\n'
    write(work, {"given/main.tf": text + heredoc(CLASS, "class") + heredoc(POOL, "pool", more)})
    init()
    printed = capsys.readouterr().out
    assert f"kubectl_manifest pool has no instances: {reason}" in printed
    assert "terraform.tfvars" in printed


@needs_helm
def test_values_with_unknown_expressions_keep_what_is_known(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = (
        "role: nodes\ncpu: 24\nreplicas: 1\n"
        'families: [${join(", ", formatlist("\\"%s\\"", data.x.y.names))}]\n'
        "name: ${lower(module.eks.name)}\n"
    )
    chart = dict(CHART)
    chart["templates/nodes.yaml"] = CHART["templates/nodes.yaml"].replace(
        "values: [m7i]", "values: {{ toJson .Values.families }}"
    )
    text = 'resource "helm_release" "nodes" {\n  name = "nodes"\n  chart = "./charts/nodes"\n'
    text += '  values = [templatefile("values.tftpl", {})]\n}\n'
    write(work, {"given/main.tf": text, "given/values.tftpl": values}
          | {f"given/charts/nodes/{path}": content for path, content in chart.items()})  # fmt: skip
    assert init() == 3
    pool = taken()["NodePool general"]
    assert pool["limits"] == {"cpu": 24}
    values_of = pool["template"]["spec"]["requirements"][1]["values"]
    assert values_of == ["${data.x.y.names}"]


def test_comments_and_brackets_in_lists_are_no_items(work: Path) -> None:
    text = (
        'locals {\n  families = [ # the newest\n    "m7i", // and "m6i", later\n'
        '    /* "c7i",\n */ "r7i"\n  ]\n}\n'
    )  # fmt: skip
    pool = POOL.replace("values: [m7i]", "values: ${jsonencode(local.families)}")
    write(work, {"given/main.tf": text + heredoc(CLASS, "class") + heredoc(pool, "pool")})
    assert init() == 0
    requirement = taken()["NodePool general"]["template"]["spec"]["requirements"][1]
    assert requirement["values"] == ["m7i", "r7i"]


def test_a_template_that_nothing_renders_yields_to_the_file_with_its_objects(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = POOL.replace("[m7i]", "[${family}]")
    other = template.replace("general", "other")
    files = {"given/pool.yaml": f"{POOL}---\n{CLASS}", "given/pool.yaml.tpl": template}
    write(work, files | {"given/other.yaml.tpl": other})
    init()
    requirement = taken()["NodePool general"]["template"]["spec"]["requirements"][1]
    assert requirement["values"] == ["m7i"]
    assert "NodePool other" in taken()
    printed = capsys.readouterr().out
    assert "pool.yaml.tpl:1:1: nothing renders this template" in printed


@pytest.mark.parametrize(
    ("kind", "attribute", "reference"),
    [
        ("kubectl_manifest", "yaml_body", "kubectl_manifest.class.name"),
        ("kubectl_manifest", "yaml_body", "kubectl_manifest.class[0].name"),
        ("kubernetes_manifest", "manifest", "kubernetes_manifest.class.manifest.metadata.name"),
        ("kubernetes_manifest", "manifest", "kubernetes_manifest.class.object.metadata.name"),
    ],
)
def test_a_reference_to_an_object_of_another_resource_is_filled_in(
    kind: str, attribute: str, reference: str, work: Path
) -> None:
    body = (
        f"yamldecode(<<YAML\n{CLASS}YAML\n)" if attribute == "manifest" else f"<<YAML\n{CLASS}YAML"
    )
    text = f'resource "{kind}" "class" {{\n  {attribute} = {body}\n}}\n'
    pool = POOL.replace("name: default}", f"name: ${{{reference}}}}}")
    write(work, {"given/main.tf": text + heredoc(pool, "pool")})
    assert init() == 0
    reference_made = taken()["NodePool general"]["template"]["spec"]["nodeClassRef"]["name"]
    assert reference_made == "default"
    assert set(taken()) == {"EC2NodeClass default", "NodePool general"}


def test_resources_that_refer_to_each_other_end(work: Path) -> None:
    text = "".join(
        f'resource "kubernetes_manifest" "{a}" {{\n  manifest = {{ kind = '
        f"kubernetes_manifest.{b}.manifest.kind }}\n}}\n"
        for a, b in ("xy", "yx")
    )
    write(work, {"given/main.tf": text + heredoc(CLASS, "class") + heredoc(POOL, "pool")})
    assert init() in (0, 3)


VALUES = """
variable "limit" { type = number }
"""


@pytest.mark.parametrize(
    ("files", "words", "limit"),
    [
        ({"terraform.tfvars": 1}, [], 1),
        ({"a.auto.tfvars": 1, "b.auto.tfvars": 2}, [], 2),
        ({"envs/prod.tfvars": 3}, [], 3),
        ({"terraform.tfvars": 1, "envs/prod.tfvars": 3}, [], 3),
        ({"envs/dev.tfvars": 3, "envs/prod.tfvars": 4}, ["--prefer", "envs/prod.tfvars"], 4),
        ({"envs/dev/x.tfvars": 3, "envs/prod/x.tfvars": 4}, ["--prefer", "envs/dev"], 3),
        ({"other/prod.tfvars": 3}, [], "${var.limit}"),
    ],
)
def test_variables_have_the_values_of_the_file_that_counts(
    files: dict[str, int], words: list[str], limit: object, work: Path
) -> None:
    pool = POOL.replace("spec:\n", 'spec:\n  limits: {cpu: "${var.limit}"}\n', 1)
    text = VALUES + heredoc(CLASS, "class") + heredoc(pool, "pool")
    values = {f"given/{path}": f"limit = {number}\n" for path, number in files.items()}
    write(work, {"given/main.tf": text, "given/other/main.tf": VALUES} | values)
    init("given", *words)
    assert taken()["NodePool general"]["limits"]["cpu"] == str(limit)


def test_of_several_files_with_values_one_has_to_be_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = POOL.replace("spec:\n", 'spec:\n  limits: {cpu: "${var.limit}"}\n', 1)
    text = VALUES + heredoc(CLASS, "class") + heredoc(pool, "pool")
    values = {f"given/envs/{name}.tfvars": "limit = 3\n" for name in ("dev", "prod", "stage")}
    write(work, {"given/main.tf": text} | values)
    init()
    printed = capsys.readouterr().out.partition("Complete by hand")[2]
    assert "3 files have values for the variables of module .: envs/dev.tfvars" in printed
    assert "--prefer envs/prod.tfvars" in printed


LIMITS_BY_KEY = """
variable "env" {{ {default} }}
variable "limits" {{ default = {{ {limits} }} }}
locals {{ sizes = {{ {sizes} }} }}
output "size" {{ value = {choice} }}
"""


@pytest.mark.parametrize(
    ("choice", "limits", "sizes", "default", "limit", "said"),
    [
        ("local.sizes[var.env]", "dev = 3", "dev = 1", "", "3", 'assumed to be "dev"'),
        ("local.sizes[var.env]", "dev = 3, prod = 4", "dev = 1", "", "3", 'assumed to be "dev"'),
        ("lookup(local.sizes, var.env, 1)", "dev = 3, prod = 4", "dev = 1", "", "3", '"dev"'),
        (
            "local.sizes[var.env]", "dev = 3, prod = 4", "dev = 1, prod = 2", "",
            "${var.limits[var.env]}", "var.env chooses among dev, prod and has no value",
        ),
        ("1", "dev = 3, prod = 4", "dev = 1", 'default = "prod"', "4", ""),
        ("local.sizes[var.env]", "dev = 3", "prod = 1", "", "${var.limits[var.env]}", ""),
    ],
)  # fmt: skip
def test_a_variable_that_can_only_be_one_key_is_assumed_to_be_it(
    choice: str, limits: str, sizes: str, default: str, limit: str, said: str, work: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pool = POOL.replace("spec:\n", 'spec:\n  limits: {cpu: "${var.limits[var.env]}"}\n', 1)
    text = LIMITS_BY_KEY.format(choice=choice, limits=limits, sizes=sizes, default=default)
    write(work, {"given/main.tf": text + heredoc(CLASS, "class") + heredoc(pool, "pool")})
    init()
    assert taken()["NodePool general"]["limits"]["cpu"] == limit
    printed = capsys.readouterr().out.partition("Complete by hand")[2].partition("Written")[0]
    assert said in printed
    assert bool(said) == ("var.env" in printed.partition("complete 1 placeholder")[0])


MANY = """
resource "kubectl_manifest" "each" {
  for_each  = fileset("${path.module}/nodes", "PATTERN")
  yaml_body = templatefile("${path.module}/nodes/${each.value}", { family = "c7i" })
}
"""
DOCUMENTS = """
data "kubectl_path_documents" "nodes" {
  pattern = "${path.module}/nodes/PATTERN"
  vars    = { family = "c7i" }
}
"""


@pytest.mark.parametrize(
    ("text", "pattern", "names"),
    [
        (MANY, "*.yaml", {"a", "b"}),
        (MANY, "**/*.yaml", {"a", "b", "c"}),
        (MANY, "**", {"a", "b", "c", "d"}),
        (MANY, "{a,x/c}.yaml", {"a", "c"}),
        (MANY, "?.yml", {"d"}),
        (DOCUMENTS, "*.yaml", {"a", "b"}),
        (DOCUMENTS, "a*", {"a"}),
    ],
)
def test_a_pattern_of_files_names_templates_with_their_variables(
    text: str, pattern: str, names: set[str], work: Path
) -> None:
    pool = POOL.replace("[m7i]", '["${family}"]')
    paths = {"a": "a.yaml", "b": "b.yaml", "c": "x/c.yaml", "d": "d.yml"}
    files = {
        f"given/nodes/{path}": pool.replace("name: general", f"name: {name}")
        for name, path in paths.items()
    }
    write(work, {"given/main.tf": text.replace("PATTERN", pattern), "given/c.yaml": CLASS} | files)
    init()
    filled = {
        name.split()[1]
        for name, spec in taken().items()
        if name.startswith("NodePool")
        and spec["template"]["spec"]["requirements"][1]["values"] == ["c7i"]
    }
    assert filled == names


def test_documents_that_a_resource_only_counts_are_not_read(work: Path) -> None:
    counted = DOCUMENTS.replace('"nodes" {', '"counted" {').replace('"c7i"', '""')
    applied = """
resource "kubectl_manifest" "nodes" {
  count     = length(data.kubectl_path_documents.counted.documents)
  yaml_body = element(data.kubectl_path_documents.nodes.documents, count.index)
}
"""
    text = (counted + DOCUMENTS).replace("PATTERN", "*.yaml") + applied
    pool = POOL.replace("[m7i]", '["${family}"]')
    write(work, {"given/main.tf": text, "given/nodes/a.yaml": pool, "given/c.yaml": CLASS})
    assert init() == 0
    spec = taken()["NodePool general"]["template"]["spec"]
    assert spec["requirements"][1]["values"] == ["c7i"]


def test_documents_of_a_data_source_that_is_switched_off_are_not_read(work: Path) -> None:
    off = DOCUMENTS.replace('"nodes" {', '"nodes" {\n  count = false ? 1 : 0')
    text = off.replace("PATTERN", "*.yaml") + heredoc(POOL, "pool")
    other = POOL.replace("name: general", "name: other")
    write(work, {"given/main.tf": text, "given/nodes/a.yaml": other, "given/c.yaml": CLASS})
    assert init() == 0
    assert [name for name in taken() if name.startswith("NodePool")] == ["NodePool general"]


def test_a_variable_that_no_object_depends_on_is_not_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = LIMITS_BY_KEY.format(
        default="", limits="dev = 3, prod = 4", sizes="dev = 1", choice="var.limits[var.env]"
    )
    write(work, {"given/main.tf": text + heredoc(CLASS, "class") + heredoc(POOL, "pool")})
    init()
    assert "var.env" not in capsys.readouterr().out


def test_the_workspace_of_terraform_is_assumed_as_well(work: Path) -> None:
    pool = POOL.replace("spec:\n", 'spec:\n  limits: {cpu: "${local.cpu}"}\n', 1)
    text = "locals {\n  sizes = { prod = 7 }\n  cpu = local.sizes[terraform.workspace]\n}\n"
    write(work, {"given/main.tf": text + heredoc(CLASS, "class") + heredoc(pool, "pool")})
    init()
    assert taken()["NodePool general"]["limits"]["cpu"] == "7"


@pytest.mark.parametrize(
    ("default", "stated", "expression", "family"),
    [
        ('""', "", 'var.ami != "" ? "Custom" : "AL2023"', "AL2023"),
        ('""', 'ami = "x"\n', 'var.ami != "" ? "Custom" : "AL2023"', "Custom"),
        ("null", "", 'var.ami == null ? "AL2023" : "Custom"', "AL2023"),
        ("null", "", 'var.ami == "x" ? "Custom" : "AL2023"', "AL2023"),
        ('""', "", "var.ami", "${var.ami}"),
    ],
)
def test_a_variable_without_a_value_has_its_default_in_comparisons_alone(
    default: str, stated: str, expression: str, family: str, work: Path
) -> None:
    node_class = CLASS.replace("  role: nodes", f"  role: nodes\n  amiFamily: ${{{expression}}}")
    text = f'variable "ami" {{ default = {default} }}\n'
    text += heredoc(node_class, "class") + heredoc(POOL, "pool")
    write(work, {"given/main.tf": text, "given/terraform.tfvars": stated})
    init()
    assert taken()["EC2NodeClass default"]["amiFamily"] == family


OPEN_CLASS = CLASS.replace(
    "  subnetSelectorTerms: [{tags: {a: b}}]\n",
    "  subnetSelectorTerms:\n%{ for id in subnets ~}\n    - id: ${id}\n%{ endfor ~}\n"
    "  blockDeviceMappings:\n    - deviceName: /dev/xvda\n      ebs:\n"
    "        volumeSize: ${size}Gi\n        volumeType: ${type}\n        iops: ${iops}\n",
)


def test_a_template_that_a_script_applies_has_the_values_of_its_module(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        'locals {\n  class = templatefile("${path.module}/class.yaml.tpl", '
        '{ subnets = ["subnet-1", "subnet-2"], size = 80, type = "gp3", iops = 3000 })\n}\n'
        'resource "null_resource" "class" {\n  provisioner "local-exec" {\n'
        "    command = \"echo '${local.class}' | kubectl apply -f -\"\n  }\n}\n"
    )
    write(work, {"given/class.yaml.tpl": OPEN_CLASS, "given/main.tf": text + heredoc(POOL)})
    assert init() == 0
    spec = taken()["EC2NodeClass default"]
    assert spec["subnetSelectorTerms"] == [{"id": "subnet-1"}, {"id": "subnet-2"}]
    assert spec["blockDeviceMappings"][0]["ebs"] == {
        "volumeSize": "80Gi", "volumeType": "gp3", "iops": 3000,
    }  # fmt: skip


def test_a_template_with_loops_that_nothing_renders_has_each_part_once(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings of volumes that no plan depends on are left out, and a size is assumed."""
    more = "%{ if tagged ~}\n  tags: {a: b}\n%{ endif ~}\n"
    write(work, {"given/class.yaml.tpl": OPEN_CLASS + more, "given/pool.yaml": POOL})
    assert init() == 0
    printed = capsys.readouterr().out
    spec = taken()["EC2NodeClass default"]
    assert spec["subnetSelectorTerms"] == [{"id": "${subnets[*]}"}]
    assert spec["blockDeviceMappings"][0]["ebs"] == {"volumeSize": "20Gi"}
    assert 'a part is left out, because "tagged" is not known' in printed
    assert "volumeSize is not known; assumed: 20Gi" in printed
    assert "volumeType, iops are not known; left out" in printed


def test_the_settings_of_karpenters_release_are_taken_over(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        'resource "helm_release" "karpenter" {\n  name = "karpenter"\n'
        '  repository = "oci://public.ecr.aws/karpenter"\n  chart = "karpenter"\n'
        '  version = "v1.14.1"\n  values = [<<-EOT\n    settings:\n'
        "      interruptionQueue: ${module.karpenter.queue_name}\n"
        "      featureGates: {spotToSpotConsolidation: true}\n  EOT\n  ]\n"
        '  set {\n    name = "settings.clusterName"\n    value = "blue"\n  }\n}\n'
    )
    write(work, {"given/main.tf": text + heredoc(f"{POOL}---\n{CLASS}")})
    assert init() == 0
    (config,) = load_all(Path("fleet/reconciler.yaml").read_bytes())
    assert isinstance(config, dict)
    assert (config["clusterName"], config["karpenter"]) == ("blue", "1.14")
    assert config["featureGates"] == {"SpotToSpotConsolidation": True}
    assert "interruptionQueue" not in config
