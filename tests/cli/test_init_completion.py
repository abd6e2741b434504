"""`init` completes what files leave open, so that the new fleet has a plan, and says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from reconciler.source.plainyaml import load_all
from tests.cli.sourcefolders import CLASS, POOL, WEB, write


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def init(*words: str) -> int:
    named = ("--name", "blue", "--region", "us-east-1", "--no-lock", "--ci", "none")
    return main(["init", "fleet", "--from", "given", *named, *words])


def taken() -> dict[str, Any]:
    """Return the objects of the new fleet by kind and name."""
    found = {}
    for path in sorted([*Path("fleet").glob("nodes/*"), *Path("fleet").glob("workloads/*")]):
        (data,) = load_all(path.read_bytes())
        assert isinstance(data, dict)
        found[f"{data['kind']} {data['metadata']['name']}"] = data
    return found


def launched(capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Return the NodePools that the plan of the new fleet launches nodes of."""
    capsys.readouterr()
    assert main(["plan", "fleet", "--set", "cluster=none", "-o", "json"]) == 0
    return {claim["nodePool"] for claim in json.loads(capsys.readouterr().out)["nodeClaims"]}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("${tenant}", "tenant"),
        ("${var.runner_parameters.node-group-name}", "node-group-name"),
        ("${INSTANCE_TYPE//./-}", "instance-type"),
        ("{{ .Values.poolName }}", "poolname"),
        ("{{ group_name | lower }}", "group-name"),
        ("<<GROUP_NAME>>", "group-name"),
        ("pool-${each.key}", "pool-key"),
    ],
)
def test_a_placeholder_for_a_name_is_named_after_its_variable(
    text: str, name: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = "  template:\n    metadata: {labels: {example.com/team: '%s'}}\n" % text  # noqa: UP031
    pool = POOL.replace("general", f"'{text}'").replace("  template:\n", labels)
    pool = pool.replace("name: default", f"name: '{text}'")
    write(work, {"given/n.yaml": pool + "---\n" + CLASS.replace("default", f"'{text}'")})
    write(work, {"given/web.yaml": WEB})
    assert init() == 0
    placeholder, named = text.removeprefix("pool-"), name.removeprefix("pool-")
    printed = capsys.readouterr().out
    assert f"{placeholder} has no value; it is named {named} (write the real one)" in printed
    objects = taken()
    assert set(objects) == {f"NodePool {name}", f"EC2NodeClass {name}", "Deployment web"}
    template = objects[f"NodePool {name}"]["spec"]["template"]
    assert template["spec"]["nodeClassRef"]["name"] == name
    assert template["metadata"]["labels"] == {"example.com/team": name}
    assert launched(capsys) == {name}


def test_a_class_named_after_a_placeholder_is_assumed_beside_one_of_nearly_that_name(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = POOL.replace("name: default", 'name: "default-${tenant}"')
    write(work, {"given/nodes.yaml": pool + "---\n" + CLASS, "given/web.yaml": WEB})
    assert init() == 0
    assert "EC2NodeClass default-tenant is in no file; assumed" in capsys.readouterr().out
    assert launched(capsys) == {"general"}


def test_a_placeholder_that_decides_about_nodes_is_left_to_the_user(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"given/nodes.yaml": POOL.replace("[m7i]", "['${FAMILY}']") + "---\n" + CLASS})
    assert init() == 3
    assert "the placeholder ${FAMILY} has no value" in capsys.readouterr().out


PROVISIONER = """\
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: {name: general}
spec:
  requirements:
    - {key: node.kubernetes.io/instance-type, operator: In, values: [m5.xlarge]}
  ttlSecondsAfterEmpty: 30
"""


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("  provider: {subnetSelector: {a: b}, launchTemplate: old}\n",
         ("names no role and no securityGroupSelectorTerms; assumed: role KarpenterNodeRole-blue, "
         "security groups with karpenter.sh/discovery: blue")),
        ("  provider: {subnetSelector: {a: b}, securityGroupSelector: {a: b}}\n",
         "names no role; assumed: role KarpenterNodeRole-blue"),
        (("  providerRef: {name: general}\n---\napiVersion: karpenter.k8s.aws/v1alpha1\n"
         "kind: AWSNodeTemplate\nmetadata: {name: general}\n"
         "spec: {instanceProfile: p, securityGroupSelector: {a: b}}\n"),
         "names no subnetSelectorTerms; assumed: subnets with karpenter.sh/discovery: blue"),
    ],
)  # fmt: skip
def test_a_class_of_an_alpha_version_gets_what_karpenters_settings_gave_it(
    more: str, says: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"given/nodes.yaml": PROVISIONER + more, "given/web.yaml": WEB})
    assert init() == 0
    assert says in capsys.readouterr().out
    assert launched(capsys) == {"general"}


def test_a_class_of_auto_mode_gets_the_role_that_auto_mode_would_give_it(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node_class = CLASS.replace("karpenter.k8s.aws/v1", "eks.amazonaws.com/v1")
    node_class = node_class.replace("EC2NodeClass", "NodeClass").replace("  role: nodes\n", "")
    node_class = node_class.replace("  amiSelectorTerms: [{alias: al2023@latest}]\n", "")
    pool = POOL.replace("karpenter.k8s.aws", "eks.amazonaws.com", 1)
    pool = pool.replace("kind: EC2NodeClass", "kind: NodeClass")
    write(work, {"given/nodes.yaml": f"{pool}---\n{node_class}", "given/web.yaml": WEB})
    assert init() == 0
    assert "names no role; assumed: role KarpenterNodeRole-blue" in capsys.readouterr().out
    assert launched(capsys) == {"general"}


def test_a_kind_of_the_alpha_versions_is_migrated_whatever_version_is_written(work: Path) -> None:
    template = (
        "apiVersion: karpenter.k8s.aws/v1\nkind: AWSNodeTemplate\nmetadata: {name: general}\n"
    )
    template += (
        "spec: {instanceProfile: p, subnetSelector: {a: b}, securityGroupSelector: {a: b}}\n"
    )
    pool = PROVISIONER.replace("v1alpha5", "v1") + "  providerRef: {name: general}\n"
    write(work, {"given/nodes.yaml": f"{pool}---\n{template}"})
    assert init() == 0
    assert set(taken()) == {"NodePool general", "EC2NodeClass general"}
    assert taken()["EC2NodeClass general"]["spec"]["instanceProfile"] == "p"


def test_a_comma_in_a_placeholder_separates_no_ids(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = '${join(",", var.subnets)}'
    template = f"""\
apiVersion: karpenter.k8s.aws/v1alpha1
kind: AWSNodeTemplate
metadata: {{name: general}}
spec:
  subnetSelector: {{aws-ids: '{ids}'}}
  securityGroupSelector: {{aws-ids: "sg-1, sg-2"}}
"""
    pool = PROVISIONER + "  providerRef: {name: general}\n"
    write(work, {"given/nodes.yaml": f"{pool}---\n{template}", "given/web.yaml": WEB})
    assert init() == 0
    spec = taken()["EC2NodeClass general"]["spec"]
    assert spec["subnetSelectorTerms"] == [{"id": ids}]
    assert spec["securityGroupSelectorTerms"] == [{"id": "sg-1"}, {"id": "sg-2"}]
    assert launched(capsys) == {"general"}


def test_a_class_of_a_template_gets_what_its_values_leave_open(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The values are elsewhere, and no plan's nodes or cost depend on them."""
    without = CLASS.replace("  role: nodes\n", "").replace(
        "  securityGroupSelectorTerms: [{tags: {a: b}}]\n", ""
    )
    text = f"{POOL}---\n{without}".replace("[m7i]", "[${family:=m7i}]")
    write(work, {"given/nodes.tftpl": text, "given/web.yaml": WEB})
    assert init() == 0
    says = (
        "names no role and no securityGroupSelectorTerms; assumed: role KarpenterNodeRole-blue, "
        "security groups with karpenter.sh/discovery: blue"
    )
    assert says in capsys.readouterr().out
    assert launched(capsys) == {"general"}


@pytest.mark.parametrize(
    ("requirement", "is_assumed"),
    [
        ("{key: topology.kubernetes.io/zone, operator: In, values: ['${azs}']}", True),
        ("{key: topology.kubernetes.io/zone, operator: In, values: '${module.vpc.azs}'}", True),
        ("{key: topology.kubernetes.io/zone, operator: In, values: ['{{ .zones }}']}", True),
        ("{key: topology.kubernetes.io/zone, operator: In, values: ['${az}', us-east-1a]}", False),
        ("{key: topology.kubernetes.io/zone, operator: In, values: ['${az}a']}", False),
        ("{key: topology.kubernetes.io/zone, operator: NotIn, values: ['${az}']}", False),
        ("{key: kubernetes.io/arch, operator: In, values: ['${arch}']}", False),
    ],
)
def test_zones_that_only_terraform_knows_are_those_of_the_region(
    requirement: str, is_assumed: bool, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = POOL.replace("      requirements:\n", f"      requirements:\n        - {requirement}\n")
    assert pool != POOL
    write(work, {"given/nodes.yaml": f"{pool}---\n{CLASS}", "given/web.yaml": WEB})
    assert init() == (0 if is_assumed else 3)
    assert ("are not known; nodes may be in every zone" in capsys.readouterr().out) == is_assumed
    if is_assumed:
        requirements = taken()["NodePool general"]["spec"]["template"]["spec"]["requirements"]
        assert "topology.kubernetes.io/zone" not in {one["key"] for one in requirements}
        assert launched(capsys) == {"general"}


def test_a_workload_without_a_name_is_left_out(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as the templates of pods that Spark is given: no cluster has them as objects."""
    template = "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: spark}]}\n"
    files = {"given/nodes.yaml": f"{POOL}---\n{CLASS}", "given/driver.yaml": template}
    write(work, files | {"given/web.yaml": WEB})
    assert init() == 0
    assert "the Pod has no name, so no cluster has it" in capsys.readouterr().out
    assert set(taken()) == {"NodePool general", "EC2NodeClass default", "Deployment web"}


def test_a_class_of_the_current_version_in_a_plain_file_is_never_completed(work: Path) -> None:
    write(work, {"given/nodes.yaml": POOL + "---\n" + CLASS.replace("  role: nodes\n", "")})
    assert init() == 3
    assert "role" not in taken()["EC2NodeClass default"]["spec"]


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (
            CLASS.replace("name: default", "name: own").replace(
                "alias: al2023@latest", "id: ami-1"
            ),
            "EC2NodeClass own: required field `amiFamily` is missing",
        ),
        (
            POOL.replace("name: general", "name: extra").replace(
                "    spec:", "    metadata: {labels: {karpenter.sh/pool: a}}\n    spec:"
            ),
            'NodePool extra: label "karpenter.sh/pool" is not allowed',
        ),
    ],
)
def test_an_object_that_karpenter_refuses_does_not_end_the_plan_of_the_others(
    refused: str, reason: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"given/nodes.yaml": f"{POOL}---\n{CLASS}", "given/web.yaml": WEB}
    write(work, files | {"given/other.yaml": refused})
    assert init() == 3, "something is to be completed by hand"
    listed = capsys.readouterr().out
    assert "other.yaml:" in listed
    assert reason in listed
    assert set(taken()) == {"NodePool general", "EC2NodeClass default", "Deployment web"}
    assert launched(capsys) == {"general"}


def test_an_object_that_a_cluster_has_listed_is_never_refused(work: Path) -> None:
    live = CLASS.replace("{name: default}", "{name: own, uid: 0b5e}")
    live = live.replace("alias: al2023@latest", "id: ami-1")
    write(work, {"given/nodes.yaml": f"{POOL}---\n{CLASS}---\n{live}"})
    init()
    assert "EC2NodeClass own" in taken()


def test_a_field_that_no_object_has_is_left_out_and_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = POOL.replace("spec:\n", "spec:\n  # of the nodes\n  expireAfter: 48h\n", 1)
    pool = pool.replace("1m}", "1m, consolidation: {enabled: true}}")
    write(work, {"given/nodes.yaml": f"{pool}---\n{CLASS}  fips: yes\n", "given/web.yaml": WEB})
    assert init() == 0
    listed = capsys.readouterr().out
    for field in ("expireAfter", "disruption.consolidation", "fips"):
        assert f"spec.{field}: " in listed
    assert "no NodePool has this field; it is left out" in listed
    spec = taken()["NodePool general"]["spec"]
    assert "expireAfter" not in spec
    assert spec["disruption"] == {"consolidateAfter": "1m"}
    assert launched(capsys) == {"general"}


def test_spellings_of_older_versions_in_a_current_pool_are_migrated(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = POOL.replace("spec:\n", "spec:\n  limits: {resources: {cpu: 8}}\n", 1).replace(
        "  template:\n", "  template:\n    metadata: {labels: {karpenter.sh/nodepool: general}}\n"
    )
    write(work, {"given/nodes.yaml": f"{pool}---\n{CLASS}", "given/web.yaml": WEB})
    assert init() == 0
    spec = taken()["NodePool general"]["spec"]
    assert spec["limits"] == {"cpu": 8}
    assert spec["template"]["metadata"]["labels"] == {}
    assert launched(capsys) == {"general"}


def test_a_misspelled_field_is_left_to_the_user(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = POOL.replace("consolidateAfter", "consolidateAftr")
    write(work, {"given/nodes.yaml": f"{pool}---\n{CLASS}"})
    assert init() == 3
    assert "did you mean consolidateAfter?" in capsys.readouterr().out


@pytest.mark.parametrize(
    "reference",
    [
        "{group: karpenter.azure.com, kind: AKSNodeClass, name: default}",
        "{apiVersion: karpenter.k8s.gcp/v1alpha1, kind: GCENodeClass, name: default}",
    ],
)
def test_a_pool_of_another_cloud_is_left_out(
    reference: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aws = "{group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}"
    other = POOL.replace("general", "elsewhere").replace(aws, reference)
    write(work, {"given/nodes.yaml": POOL + "---\n" + CLASS, "given/other.yaml": other})
    assert init() == 0
    assert "NodePool elsewhere makes nodes of " in capsys.readouterr().out
    assert set(taken()) == {"NodePool general", "EC2NodeClass default"}


@pytest.mark.parametrize(
    "version",
    [
        "container.gcp.crossplane.io/v1alpha1",
        "apps.openyurt.io/v1beta2",
        "hypershift.openshift.io/v1beta1",
    ],
)
def test_a_kind_of_another_product_with_the_name_of_ours_is_none_of_ours(
    version: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = (
        f"apiVersion: {version}\nkind: NodePool\nmetadata: {{name: general}}\nspec: {{size: 3}}\n"
    )
    write(work, {"given/nodes.yaml": POOL + "---\n" + CLASS, "given/other.yaml": other})
    assert init() == 0
    assert f"NodePool of {version.split('/', maxsplit=1)[0]} (1)" in capsys.readouterr().out
    assert set(taken()) == {"NodePool general", "EC2NodeClass default"}
    write(work, {"fleet/nodes/other.yaml": other})
    assert main(["validate", "fleet"]) == 0


def test_the_variant_for_auto_mode_does_not_count_beside_one_of_karpenter(work: Path) -> None:
    auto = POOL.replace("karpenter.k8s.aws", "eks.amazonaws.com").replace("EC2Node", "Node")
    auto += "---\napiVersion: eks.amazonaws.com/v1\nkind: NodeClass\nmetadata: {name: default}\n"
    write(
        work,
        {
            "given/a-auto.yaml": auto + "spec: {role: auto}\n",
            "given/b.yaml": POOL + "---\n" + CLASS,
        },
    )
    assert init() == 0
    reference = taken()["NodePool general"]["spec"]["template"]["spec"]["nodeClassRef"]
    assert reference["group"] == "karpenter.k8s.aws"
    assert taken()["EC2NodeClass default"]["spec"]["role"] == "nodes"


def test_an_older_version_in_another_folder_is_named_where_the_user_looks(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"given/live/old.yaml": PROVISIONER, "given/samples/new.yaml": POOL + "---\n" + CLASS}
    write(work, files)
    assert init() == 0
    printed = capsys.readouterr().out
    section = printed[printed.index("Complete by hand") : printed.index("Written")]
    assert "v1 at samples/new.yaml:1:1 is taken over, and v1alpha5 at live/old.yaml:1:1" in section
    assert "--prefer live/old.yaml" in section


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{{ team }}", "the name of Namespace {{ team }} has the placeholder"),
        ("{team}", "the name of this Namespace is no text"),
    ],
)
def test_a_placeholder_without_quotes_is_no_mapping(
    name: str, says: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = f"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n"
    write(work, {"given/nodes.yaml": POOL + "---\n" + CLASS, "given/space.yaml": space})
    assert init() == 0
    assert says in capsys.readouterr().out
    assert set(taken()) == {"NodePool general", "EC2NodeClass default"}


def test_what_names_a_node_is_the_first_reason_for_finding_none(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = "apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: web}\n"
    nameless = PROVISIONER.replace("metadata: {name: general}", "metadata:\nname: general")
    write(work, {"given/a.yaml": old, "given/b.yaml": nameless})
    assert init() == 1
    assert "the Provisioner has no name (set metadata.name)" in capsys.readouterr().err


def test_zones_of_another_region_are_named_as_such(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zone = "        - {key: topology.kubernetes.io/zone, operator: In, values: [eu-west-1a]}\n"
    write(work, {"given/nodes.yaml": f"{POOL}{zone}---\n{CLASS}", "given/web.yaml": WEB})
    assert init() == 0
    printed = capsys.readouterr().out
    assert "region us-east-1, although the zones in use are those of eu-west-1" in printed
    assert launched(capsys) == set()
    assert main(["plan", "fleet", "--set", "cluster=none"]) == 0
    says = "its zones are those of eu-west-1, and the plan is for us-east-1"
    assert says in " ".join(capsys.readouterr().out.split())


TAGS = """\
variable "extra" {}
locals {
  owned = merge(var.extra, { team = "web" })
}
resource "kubectl_manifest" "class" {
  yaml_body = yamlencode({
    apiVersion = "karpenter.k8s.aws/v1"
    kind       = "EC2NodeClass"
    metadata   = { name = "default", labels = var.labels }
    spec = {
      role                       = "nodes"
      amiSelectorTerms           = [{ alias = "al2023@latest" }]
      subnetSelectorTerms        = [{ tags = { a = "b" } }]
      securityGroupSelectorTerms = [{ tags = { a = "b" } }]
      tags                       = TAGS
      kubelet                    = var.kubelet
    }
  })
}
"""


@pytest.mark.parametrize(
    ("written", "tags", "unknown"),
    [
        ('merge(local.owned, { env = "dev" })', {"team": "web", "env": "dev"}, "${var.extra}"),
        ('merge(var.a, { env = "dev" }, var.b)', {"env": "dev"}, "${var.b}"),
        ('merge(null, { env = local.owned["team"] })', {"env": "web"}, ""),
        ("local.owned", {"team": "web"}, "${var.extra}"),
        ("var.extra", None, "${var.extra}"),
        ("merge(var.extra, var.b)", None, "${merge(var.extra, var.b)}"),
        ("{ for k, v in local.owned : upper(k) => v }", {"TEAM": "web"}, "${var.extra}"),
        ("[for x in var.a : x]...", None, "${expression [for x in var.a : x]...}"),
    ],
)
def test_maps_that_terraform_knows_in_part_have_the_entries_of_the_files(
    written: str, tags: dict[str, str] | None, unknown: str, work: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write(work, {"given/main.tf": TAGS.replace("TAGS", written), "given/pool.yaml": POOL})
    write(work, {"given/web.yaml": WEB})
    assert init() == 0
    printed = capsys.readouterr().out
    spec = taken()["EC2NodeClass default"]["spec"]
    assert spec.get("tags") == tags
    assert "kubelet" not in spec
    assert "${var.kubelet} is not known; left out" in printed
    assert unknown in printed
    assert ("in spec.tags are not known" in printed) is bool(tags and unknown)
    assert launched(capsys) == {"general"}


def test_of_many_charts_from_elsewhere_one_is_shown_and_the_others_are_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: NAME}
spec: {chart: {spec: {chart: NAME, sourceRef: {kind: HelmRepository, name: apps}}}}
"""
    names = ("cache", "db", "dns", "mail", "web")
    releases = {f"given/{n}.yaml": release.replace("NAME", n) for n in names}
    write(work, {"given/nodes.yaml": f"{CLASS}---\n{POOL}"} | releases)
    assert init() == 0
    printed = capsys.readouterr().out
    assert printed.count("is not read (vendor it") == 1
    listed = "HelmRelease db, HelmRelease dns, HelmRelease mail, HelmRelease web"
    assert f"and 4 more with this reason: {listed}\n" in printed


@pytest.mark.parametrize("ending", [".tpl", ".j2", ".gotmpl", ".template"])
def test_templates_that_other_programs_fill_in_are_read(ending: str, work: Path) -> None:
    node_class = CLASS.replace("role: nodes", "role: ${NODE_ROLE}")
    write(work, {f"given/class.yaml{ending}": node_class, "given/pool.yaml": POOL})
    assert init() == 0
    assert taken()["EC2NodeClass default"]["spec"]["role"] == "${NODE_ROLE}"


@pytest.mark.parametrize(
    ("alias", "assumed"),
    [
        ("${AMI_ALIAS}", "al2023@latest"),
        ("al2023@${ALIAS_VERSION}", "al2023@latest"),
        ("bottlerocket@{{ .Values.version }}", "bottlerocket@latest"),
        ("${FAMILY}@v1.2.3", "al2023@latest"),
        ("${AMI_ALIAS:-bottlerocket@v1.20.0}", "bottlerocket@v1.20.0"),
    ],
)
def test_an_image_alias_without_a_value_is_the_newest_of_its_family(
    alias: str, assumed: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node_class = CLASS.replace("al2023@latest", alias)
    assert alias in node_class
    write(work, {"given/nodes.yaml": POOL + "---\n" + node_class, "given/web.yaml": WEB})
    assert init() == 0
    says = f"{alias} has no value; assumed: {assumed} (write the one in use)"
    assert (says in capsys.readouterr().out) == (":-" not in alias)
    assert taken()["EC2NodeClass default"]["spec"]["amiSelectorTerms"] == [{"alias": assumed}]
    assert launched(capsys) == {"general"}


BROKEN = WEB.replace("web", "broken")


@pytest.mark.parametrize(
    ("old", "new", "code", "says"),
    [
        ("replicas: 1", "replicas: ${REPLICAS}", 0, "placeholder ${REPLICAS} has no value (write"),
        (
            'cpu: "1"',
            "cpu: '${CPU}'",
            0,
            "requests.cpu of Deployment broken: the placeholder ${CPU}",
        ),
        ("replicas: 1", "replicas: REPLICAS", 3, "must be an integer, not the string"),
        ('cpu: "1"', "cpu: CPU_REQUEST", 3, 'invalid quantity "CPU_REQUEST"'),
        ("name: broken,", "name: y,", 3, "must be a string, not the boolean true"),
    ],
)
def test_a_workload_that_cannot_be_read_does_not_end_every_plan(
    old: str, new: str, code: int, says: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in BROKEN
    write(work, {"given/nodes.yaml": POOL + "---\n" + CLASS, "given/web.yaml": WEB})
    write(work, {"given/broken.yaml": BROKEN.replace(old, new, 1)})
    assert init() == code
    printed = capsys.readouterr().out
    assert says in printed
    assert ("the API server refuses it" in printed) == (code == 3)
    assert set(taken()) == {"NodePool general", "EC2NodeClass default", "Deployment web"}
    assert launched(capsys) == {"general"}


def test_a_pattern_for_one_nodepool_for_each_value_is_left_out_beside_others(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = '- {key: kubernetes.io/arch, operator: In, values: ["${TYPE}"]}'
    pattern = POOL.replace("general", "bench-${TYPE//./-}").replace(
        "requirements:", f"requirements:\n        {kept}"
    )
    write(work, {"given/nodes.yaml": f"{POOL}---\n{CLASS}---\n{pattern}", "given/web.yaml": WEB})
    assert init() == 0
    says = "NodePool bench-${TYPE//./-} is a pattern for the values of ${TYPE//./-}"
    assert says in capsys.readouterr().out
    assert launched(capsys) == {"general"}


def test_an_unused_class_with_a_placeholder_is_left_out(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = CLASS.replace("name: default", "name: other").replace(
        "spec:\n", "spec:\n  amiFamily: ${FAMILY}\n"
    )
    write(work, {"given/nodes.yaml": f"{POOL}---\n{CLASS}---\n{other}", "given/web.yaml": WEB})
    assert init() == 0
    printed = capsys.readouterr().out
    assert "amiFamily of EC2NodeClass other: the placeholder ${FAMILY} has no value" in printed
    assert "complete 1 placeholder" not in printed, "it is named where it was left out"
    assert launched(capsys) == {"general"}


def test_the_class_of_a_provisioner_does_not_take_the_name_of_another(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inline = PROVISIONER.replace("general", "default") + "  provider: {instanceProfile: old}\n"
    write(work, {"given/nodes.yaml": f"{inline}---\n{CLASS}---\n{POOL}", "given/web.yaml": WEB})
    assert init() == 0
    objects = taken()
    assert {name for name in objects if "Class" in name} == {
        "EC2NodeClass default", "EC2NodeClass default-provider",
    }  # fmt: skip
    template = objects["NodePool default"]["spec"]["template"]["spec"]
    assert template["nodeClassRef"]["name"] == "default-provider"
    assert objects["EC2NodeClass default-provider"]["spec"]["instanceProfile"] == "old"
    assert "another class has the name default" in capsys.readouterr().out
