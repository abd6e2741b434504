"""Policies end to end: the shipped examples, verdicts in every format, exemptions, exit codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from reconciler._resources import resource_path
from reconciler.cli.main import main
from reconciler.installation import install_remedy
from tests.repositories import commit_all, init

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.stem for path in (ROOT / "examples" / "policies").glob("*.yaml"))
NOW = "2026-03-02T12:00:00Z"
POOL = """\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: general}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
        - {key: karpenter.sh/capacity-type, operator: In, values: [spot]}
        - {key: karpenter.k8s.aws/instance-family, operator: In, values: [m7g]}
"""
CLASS = """\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  role: nodes
  amiSelectorTerms: [{alias: al2023@v20260115}]
  subnetSelectorTerms: [{id: subnet-0123456789abcdef0}]
  securityGroupSelectorTerms: [{id: sg-0123456789abcdef0}]
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      containers: [{name: api, image: api, resources: {requests: {cpu: 1500m, memory: 1Gi}}}]
"""


def instance_type(family: str, price: float) -> dict[str, Any]:
    labels = {"kubernetes.io/arch": "arm64", "karpenter.k8s.aws/instance-family": family}
    return {
        "name": f"{family}.large",
        "capacity": {"cpu": "2", "memory": "8Gi", "pods": "29", "ephemeral-storage": "20Gi"},
        "overhead": {"cpu": "100m"},
        "requirements": [
            {"key": key, "operator": "In", "values": [value]} for key, value in labels.items()
        ],
        "offerings": [
            {"zone": "z-a", "capacityType": kind, "price": amount}
            for kind, amount in (("on-demand", price), ("spot", price / 2))
        ],
    }


CATALOG = [instance_type("m7g", 0.1), instance_type("t3", 0.1), instance_type("x2", 3.0)]


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Return a repository with one commit, its fleet at rest with four spot nodes."""
    folder = tmp_path / "shop"
    folder.mkdir()
    init(folder)
    for name, text in (("pool", POOL), ("class", CLASS), ("app", DEPLOYMENT)):
        (folder / f"{name}.yaml").write_text(text)
    (folder / "batch.yaml").write_text(POOL.replace("general", "batch"))
    commit_all(folder)
    (tmp_path / "catalog.json").write_text(json.dumps(CATALOG))
    return folder


Plan = Callable[..., int]


@pytest.fixture
def plan(fleet: Path) -> Plan:
    """Return a function that plans the working tree compared with the first commit."""

    def run(*words: str, base: bool = True) -> int:
        catalog = str(fleet.parent / "catalog.json")
        given = ["--catalog", catalog, "--now", NOW, *(("--base", "HEAD") if base else ())]
        return main(["plan", str(fleet), *given, *words])

    return run


def write(folder: Path, *policies: dict[str, Any]) -> str:
    """Write a file of policies and return its path."""
    file = folder / "policies.yaml"
    file.write_text(json.dumps({"policies": policies}))
    return str(file)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def more_pods(fleet: Path) -> None:
    edit(fleet / "app.yaml", "replicas: 4", "replicas: 20")


def expensive_types(fleet: Path) -> None:
    edit(fleet / "pool.yaml", "values: [m7g]", "values: [x2]")
    (fleet / "batch.yaml").write_text(POOL.replace("general", "batch").replace("m7g", "x2"))


def large_pods(fleet: Path) -> None:
    edit(fleet / "app.yaml", "cpu: 1500m", "cpu: 64")


def without_batch(fleet: Path) -> None:
    (fleet / "batch.yaml").unlink()


def other_family(fleet: Path) -> None:
    edit(fleet / "pool.yaml", "values: [m7g]", "values: [t3]")
    edit(fleet / "batch.yaml", "values: [m7g]", "values: [t3]")


def old_image(fleet: Path) -> None:
    edit(fleet / "class.yaml", "v20260115", "v20250115")


def on_demand(fleet: Path) -> None:
    edit(fleet / "pool.yaml", "values: [spot]", "values: [on-demand]")
    edit(fleet / "batch.yaml", "values: [spot]", "values: [on-demand]")


VIOLATIONS: dict[str, tuple[Callable[[Path], None], str]] = {
    "cost-increase": (expensive_types, "more a month; at most $500.00 is allowed"),
    "cost-increase-percent": (more_pods, "makes the fleet 400.0% more expensive"),
    "nodes-replaced": (other_family, "replaces 4 of 4 nodes; at most a quarter is allowed"),
    "unschedulable-pods": (large_pods, "4 pods cannot be scheduled"),
    "nodepool-removal": (without_batch, "removes NodePool batch"),
    "instance-families": (other_family, "instance families other than"),
    "image-age": (old_image, "older than 90 days"),
    "spot-share": (on_demand, "0 of 4 launched nodes are spot nodes"),
}


def shipped(*names: str) -> list[str]:
    return [w for name in names for w in ("--policy", str(ROOT / f"examples/policies/{name}.yaml"))]


def test_every_shipped_policy_has_a_violation() -> None:
    assert sorted(VIOLATIONS) == SHIPPED


@pytest.mark.parametrize("base", [True, False], ids=["with a base", "without a base"])
def test_a_harmless_change_complies_with_every_shipped_policy(
    base: bool, fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(fleet / "app.yaml", "name: api, image: api", "name: api, image: api2")
    words = shipped(*(SHIPPED if base else set(SHIPPED) - {"cost-increase"}))

    assert plan(*words, "--fail-on", "warnings", "-o", "json", base=base) == 0

    found = json.loads(capsys.readouterr().out)["policies"]
    assert {policy["result"] for policy in found} == {"passed"}
    assert [policy["name"] for policy in found] == sorted(p["name"] for p in found)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_policy_finds_its_violation(
    name: str, fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = VIOLATIONS[name]
    change(fleet)

    assert plan(*shipped(name), "--fail-on", name) == 3

    captured = capsys.readouterr()
    where = f"examples/policies/{name}.yaml:"
    (line,) = captured.err.splitlines()
    assert line.startswith("Error: ")
    assert where in line
    assert f"policy {name} forbids this plan: " in line
    assert message in line
    assert message.split(";")[0].split(" other")[0] in " ".join(captured.out.split())


NEVER = {"name": "never", "expression": "false", "message": "nothing may change"}


def verdicts(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    policies: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["policies"]
    return policies


def test_policies_of_the_configuration_judge_the_plan(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet / "reconciler.yaml").write_text(
        "fleet: shop\npolicies:\n- name: never\n  expression: size(plan.nodeClaims) == 0\n"
    )

    assert plan("-o", "json", base=False) == 3

    captured = capsys.readouterr()
    (verdict,) = json.loads(captured.out)["policies"]
    assert verdict["source"] == "head"
    assert (verdict["file"], verdict["line"], verdict["column"]) == ("reconciler.yaml", 4, 15)
    assert verdict["message"] == "not true: size(plan.nodeClaims) == 0"
    assert captured.err == (
        "Error: reconciler.yaml:4:15: policy never forbids this plan: "
        "not true: size(plan.nodeClaims) == 0 (nodeClaims has 4 entries, the rule requires 0)\n"
    )


COST = {"name": "cost", "expression": "plan.atRest.perMonth <= 100.0"}
COST_FOUND = "atRest.perMonth is $584/month, the rule allows at most $100/month"
FAMILY = {"name": "family", "expression": "plan.nodeClaims.all(c, c.launch.zone == 'z-b')"}


@pytest.mark.parametrize("form", ["text", "markdown", "html", "github", "sarif"])
def test_each_format_shows_the_values_that_a_violated_policy_compares(
    form: str, fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    more_pods(fleet)
    assert plan("--policy", write(fleet.parent, COST), "-o", form) == 3
    out, err = capsys.readouterr()
    shown = unescape(out).replace("\u200b", "").replace("**", "")
    for text in (shown, err):
        assert COST_FOUND in " ".join(text.split())


def test_the_json_has_the_values_that_a_violated_policy_compares(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    more_pods(fleet)
    assert plan("--policy", write(fleet.parent, COST, FAMILY), "-o", "json") == 3
    document = json.loads(capsys.readouterr().out)
    cost, family = document["policies"]
    (value,) = cost["values"]
    amount = document["atRest"]["perMonth"]
    assert value == {
        "path": "atRest.perMonth", "value": amount, "operator": "<=", "limit": 100.0,
    }  # fmt: skip
    (listed,) = family["values"]
    assert (listed["path"], listed["count"], listed["violating"]) == ("nodeClaims", 20, 20)
    names = {claim["name"] for claim in document["nodeClaims"]}
    assert len(listed["names"]) == 5
    assert set(listed["names"]) <= names


def test_a_rule_about_each_entry_names_those_that_violate_it(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    without_batch(fleet)
    rule = "!plan.changes.exists(c, c.op == 'delete')"
    assert plan("--policy", write(fleet.parent, {"name": "a", "expression": rule})) == 3
    assert "(1 of 1 entry in changes violates the rule: batch)" in capsys.readouterr().err


def test_the_plan_with_verdicts_has_the_form_of_the_schema(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    exemption = {"owner": "a", "expires": "2026-01-01", "reason": "b"}
    file = write(fleet.parent, {**NEVER, "exemptions": [exemption]})

    plan("--policy", file, "-o", "json")

    schema = json.loads(Path(resource_path("schemas", "plan.v1.json")).read_text(encoding="utf-8"))
    document = json.loads(capsys.readouterr().out)
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(document)
    assert document["policies"][0]["exemption"]["expired"] is True


def test_a_plan_without_policies_does_not_mention_them(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan("-o", "json") == 0
    assert "policies" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_each_format_shows_the_verdicts(
    form: str, fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"name": "other", "expression": "true"}
    assert plan("--policy", write(fleet.parent, NEVER, other), "-o", form) == 3

    out = capsys.readouterr().out
    assert out.index("1 policy violated") < out.index("NodePool")
    assert "nothing may change" in out
    assert "Other policies" in out
    assert "1 passed" in out
    assert "exempted" not in out
    assert "other" in out


def test_annotations_name_the_policy_in_the_repository(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"name": "own", "severity": "warning", "expression": "false", "message": "of the fleet"}
    (fleet / "reconciler.yaml").write_text(json.dumps({"policies": [own]}))

    assert plan("--policy", write(fleet.parent, NEVER), "-o", "github") == 3

    lines = capsys.readouterr().out.splitlines()
    assert "::error title=policy-never::policy never: nothing may change" in lines
    (line,) = (line for line in lines if "policy-own" in line)
    assert line.startswith("::warning file=reconciler.yaml,line=1,col=")


def test_code_scanning_gets_the_violations(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan("--policy", write(fleet.parent, NEVER), "-o", "sarif") == 3
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    (result,) = (r for r in run["results"] if r["ruleId"] == "policy-never")
    assert (result["level"], result["message"]["text"]) == (
        "error",
        "policy never: nothing may change",
    )


def test_a_forbidden_plan_is_not_saved(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    out = fleet.parent / "plan.json"

    assert plan("--policy", write(fleet.parent, NEVER), "--out", str(out)) == 3

    assert not out.exists()
    assert f"Error: {out}: the plan was not saved" in capsys.readouterr().err


def test_a_warning_fails_the_plan_only_with_fail_on(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(fleet.parent, {**NEVER, "severity": "warning"})
    assert plan("--policy", file) == 0
    assert "1 policy warning." in capsys.readouterr().out
    assert plan("--policy", file, "--fail-on", "warnings") == 3
    assert plan("--policy", file, "--fail-on", "never") == 3
    assert plan("--policy", file, "--detailed-exitcode") == 2


def test_fail_on_with_an_unknown_policy_is_a_usage_error(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan("--policy", write(fleet.parent, NEVER), "--fail-on", "nevr") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == ('Error: --fail-on: there is no policy "nevr" (did you mean never?)\n')


@pytest.mark.parametrize(
    ("exemption", "result", "code"),
    [
        ({"owner": "team-a", "expires": "2026-03-02"}, "exempted", 0),
        ({"owner": "team-a", "expires": "2026-03-01"}, "failed", 3),
        ({"owner": "team-a", "expires": "2026-03-02T13:00:00+01:00"}, "failed", 3),
        ({"owner": "team-a", "expires": "2026-03-02T13:00:01+01:00"}, "exempted", 0),
        ({"owner": "team-a", "expires": "2027-01-01", "when": "plan.fleet == 'shop'"},
         "exempted", 0),
        ({"owner": "team-a", "expires": "2027-01-01", "when": "plan.fleet == 'x'"}, "failed", 3),
    ],
    ids=["last day", "day after", "ended", "a second before", "that applies", "another fleet"],
)  # fmt: skip
def test_an_exemption_lasts_until_its_expiry(
    exemption: dict[str, Any],
    result: str,
    code: int,
    fleet: Path,
    plan: Plan,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write(fleet.parent, {**NEVER, "exemptions": [exemption]})
    assert plan("--policy", file, "-o", "json") == code
    assert [v["result"] for v in verdicts(capsys)] == [result]


def test_an_expired_exemption_is_named_where_its_policy_applies_again(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    exemption = {"owner": "team-a", "expires": "2026-01-31", "reason": "migration"}
    assert plan("--policy", write(fleet.parent, {**NEVER, "exemptions": [exemption]})) == 3
    captured = capsys.readouterr()
    wording = "(the exemption of team-a expired at 2026-02-01 00:00 UTC)"
    assert wording in captured.err
    assert wording in " ".join(captured.out.split())


def test_an_exemption_names_its_owner_and_reason(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    exemption = {"owner": "team-a", "expires": "2026-12-31", "reason": "migration"}
    assert plan("--policy", write(fleet.parent, {**NEVER, "exemptions": [exemption]})) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(exempted by team-a until 2027-01-01 00:00 UTC: migration)" in out


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"expression": "plan.cost.("}, "policy a: expression: Syntax error"),
        ({"expression": "plan.cst.after > 1.0"}, 'no such field: "cst" (did you mean plan.cost?)'),
        ({"expression": "plen.cost.after > 1.0"}, 'unknown name "plen"'),
        ({"expression": "plan.cost.after"}, "must be true or false"),
        ({"expression": "plan.cost.after / 0 > 1"}, "policy a: expression: "),
        ({"expression": "frobnicate(plan)"}, "frobnicate"),
        ({"expression": "false", "messageExpression": "'a' +"}, "messageExpression: Syntax error"),
        ({"expression": "false", "messageExpression": "1"}, "messageExpression: must be a string"),
        ({"expression": "true", "messageExpression": "plen"}, "messageExpression: unknown name"),
        (
            {
                "expression": "false",
                "exemptions": [{"owner": "a", "expires": "2027-01-01", "when": "plan.x"}],
            },
            'exemptions[0].when: no such field: "x"',
        ),
    ],
)
def test_an_expression_without_a_value_is_an_error_and_never_a_pass(
    policy: dict[str, Any],
    words: str,
    fleet: Path,
    plan: Plan,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write(fleet.parent, {"name": "a", **policy})

    assert plan("--policy", file) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"Error: {file}:1:")
    assert words in line


def test_an_error_in_a_policy_of_the_base_names_that_revision(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    """The planned revision may have corrected it, and its file looks right."""
    config = "policies: [{name: a, expression: plan.cst.after > 1.0}]\n"
    (fleet / "reconciler.yaml").write_text(config)
    commit_all(fleet)
    (fleet / "reconciler.yaml").write_text(config.replace("cst", "cost"))
    assert plan() == 1
    assert capsys.readouterr().err.startswith("Error: reconciler.yaml:1:34 of the base revision: ")


def test_validate_reports_fields_that_no_plan_has(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet / "reconciler.yaml").write_text(
        "policies:\n"
        "- name: a\n"
        "  expression: >-\n"
        "    has(plan.atRest) ||\n"
        "      plan.cost.after < 5.0 && plan.cost.aftr < 5.0\n"
        "  messageExpression: 'string(plan.unschedulabel)'\n"
        "- name: b\n"
        '  expression: "!has(plan.tax) || plan.tax < 5.0"\n'
        "  exemptions:\n"
        "  - {owner: a, expires: 2026-12-31, when: plan.fleet == plan.cst}\n"
    )

    assert main(["validate", str(fleet), "-o", "json"]) == 3

    found = json.loads(capsys.readouterr().out)["diagnostics"]
    assert [(d["severity"], d["line"], d["column"]) for d in found] == [
        ("error", 5, 42), ("error", 6, 35), ("warning", 8, 26), ("error", 10, 62),
    ]  # fmt: skip
    assert {d["code"] for d in found} == {"unknown-plan-field"}
    assert found[0]["message"] == 'policy a: expression: plan.cost has no field "aftr"'
    assert [d["hint"] for d in found[:2]] == ["did you mean after?", "did you mean unschedulable?"]
    assert found[3]["message"] == 'policy b: exemptions[0].when: plan has no field "cst"'


def test_an_error_elsewhere_in_the_file_hides_no_error_of_a_policy(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet / "reconciler.yaml").write_text(
        "packing: cheapst\npolicies:\n- name: a\n  expression: plan.(\n"
    )

    assert main(["validate", str(fleet), "-o", "json"]) == 3

    found = json.loads(capsys.readouterr().out)["diagnostics"]
    assert [(d["code"], d["line"]) for d in found] == [("not-allowed", 1), ("bad-expression", 4)]


def test_a_file_of_policies_in_the_fleet_folder_is_reported_as_without_effect(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ROOT / "examples/policies/spot-share.yaml"
    (fleet / "spot-share.yaml").write_text(file.read_text())

    assert main(["validate", str(fleet), "-o", "json"]) == 0

    found = json.loads(capsys.readouterr().out)["diagnostics"]
    place = [(d["code"], d["severity"], d["file"], d["line"]) for d in found]
    assert place == [("policies-in-fleet", "warning", "spot-share.yaml", 3)]


def test_validate_reports_an_expression_that_does_not_compile(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet / "reconciler.yaml").write_text(
        "policies:\n- name: a\n  expression: plan.(\n- name: b\n  expression: plan.cost == 1\n"
        "  messageExpression: plen.x\n"
    )

    assert main(["validate", str(fleet), "-o", "json"]) == 3

    found = json.loads(capsys.readouterr().out)["diagnostics"]
    assert [(d["code"], d["line"], d["column"]) for d in found] == [
        ("bad-expression", 3, 15),
        ("bad-expression", 6, 22),
    ]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"name": "Bad Name", "expression": "true"}, "policies[0].name: invalid value"),
        ({"name": "unschedulable", "expression": "true"}, "has a meaning of its own in --fail-on"),
        ({"name": "none", "expression": "true"}, "has a meaning of its own in --fail-on"),
        ({"name": "a"}, "required field `expression` is missing"),
        ({"name": "a", "expression": "true", "severty": "error"}, "did you mean severity?"),
        (
            {"name": "a", "expression": "true", "exemptions": [{"owner": "b", "expires": "soon"}]},
            '"soon" is not a date',
        ),
        ({"name": "a", "expression": "true", "exemptions": [{"expires": "2026-01-01"}]}, "`owner`"),
    ],
)
def test_a_malformed_policy_is_an_error_with_its_position(
    policy: dict[str, Any],
    words: str,
    fleet: Path,
    plan: Plan,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write(fleet.parent, policy)
    assert plan("--policy", file) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"Error: {file}:1:")
    assert words in captured.err

    (fleet / "reconciler.yaml").write_text(json.dumps({"policies": [policy]}))
    assert main(["validate", str(fleet)]) == 3
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_of_policies_is_an_error(
    text: str, fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    """A download that was cut would otherwise forbid nothing."""
    file = fleet.parent / "policies.yaml"
    file.write_text(text)
    assert plan("--policy", str(file)) == 1
    assert "the file of policies is empty" in capsys.readouterr().err
    file.write_text("policies: []\n")
    assert plan("--policy", str(file)) == 0


def test_two_policies_of_the_operator_with_one_name_are_an_error(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(fleet.parent, NEVER)
    other = str(shutil.copy(file, fleet.parent / "more.yaml"))
    assert plan("--policy", file, "--policy", other) == 1
    assert 'duplicate policy "never"' in capsys.readouterr().err


def test_the_operators_configuration_may_have_policies(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    config = fleet.parent / "operator.yaml"
    config.write_text(json.dumps({"policies": [NEVER], "packing": "cheapest"}))
    assert plan("--config", str(config), "-o", "json") == 3
    assert [v["source"] for v in verdicts(capsys)] == ["operator"]


def test_without_the_package_a_policy_is_an_error(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(fleet.parent, NEVER)
    monkeypatch.setattr("reconciler.adapters.cel.sandbox.find_spec", lambda _: None)
    assert plan("--policy", file) == 1
    assert install_remedy("cel") in capsys.readouterr().err
