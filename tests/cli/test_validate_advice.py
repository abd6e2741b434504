"""Findings of `validate` about likely mistakes, and the fixes of `validate --fix`."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import boto3
import pytest

from reconciler.catalog.catalog import bundled_data
from reconciler.catalog.regions import REGIONS
from reconciler.cli.main import main
from reconciler.desired.fleet import Fleet, SourceFile, read_fleet
from tests.cli.test_validate_bad_input import CLASS, POOL


def read(files: dict[str, str]) -> Fleet:
    fleet, _ = read_fleet(SourceFile(name, text.encode()) for name, text in files.items())
    return fleet


REQUIREMENTS = "spec.template.spec.requirements"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "class.yaml").write_text(CLASS)
    (fleet / "pool.yaml").write_text(POOL)
    return fleet


def pool_with(key: str, values: str, operator: str = "In") -> str:
    old = "karpenter.sh/capacity-type\n          operator: In\n          values: [spot]"
    new = f"{key}\n          operator: {operator}\n          values: {values}"
    assert old in POOL
    return POOL.replace(old, new)


def found(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    main(["validate", str(folder), "-o", "json", *words])
    report = json.loads(capsys.readouterr().out)
    return [d for d in report["diagnostics"] if d["severity"] != "info"]


@pytest.mark.parametrize(
    ("key", "values", "code", "hint"),
    [
        ("karpenter.k8s.aws/instance-family", "[m5, c55]", "unknown-instance-family", "c5"),
        ("node.kubernetes.io/instance-type", "[m5.lrage]", "unknown-instance-type", "m5.large"),
        ("beta.kubernetes.io/instance-type", "[m5.lrage]", "unknown-instance-type", "m5.large"),
        ("topology.kubernetes.io/zone", "[us-east-1aa]", "unknown-zone", "us-east-1a"),
        ("topology.kubernetes.io/zone", "[us-eas-1b]", "unknown-zone", "us-east-1b"),
        ("topology.k8s.aws/zone-id", "[use1-az22]", "unknown-zone", "use1-az2"),
    ],
)
def test_an_unknown_name_is_a_warning_with_the_nearest_known_one(
    key: str,
    values: str,
    code: str,
    hint: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "pool.yaml").write_text(pool_with(key, values))

    (finding,) = found(folder, capsys)

    assert (finding["code"], finding["severity"]) == (code, "warning")
    assert finding["hint"] == f"did you mean {hint}?"
    assert finding["path"].startswith(f"{REQUIREMENTS}[0].values[")
    assert finding["line"] == 14


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("node.kubernetes.io/instance-type", "[m5.large, g4ad.xlarge]"),
        ("topology.kubernetes.io/zone", "[us-west-2-lax-1a, us-east-1-wl1-bos-wlz-1]"),
        ("topology.kubernetes.io/zone", "[cn-north-1a, us-gov-west-1a]"),
        ("topology.kubernetes.io/zone", "[eu-west-1a]"),
        ("team", "[m5.lrage]"),
    ],
)
def test_names_that_are_known_or_cannot_be_judged_are_not_reported(
    key: str, values: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(pool_with(key, values))
    assert found(folder, capsys) == []


def test_a_zone_of_another_region_is_a_warning_where_the_fleet_names_its_region(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(pool_with("topology.kubernetes.io/zone", "[us-east-1a]"))
    (folder / "reconciler.yaml").write_text("aws: {region: eu-west-1}\n")

    (finding,) = found(folder, capsys)

    assert finding["code"] == "zone-of-another-region"
    assert "eu-west-1a, eu-west-1b, eu-west-1c" in finding["hint"]
    assert found(folder, capsys, "--set", "aws.region=us-east-1") == []


@pytest.mark.parametrize(
    ("region", "hint"),
    [
        ("eu-west1", "did you mean eu-west-1?"),
        ("us-east-1a", "did you mean us-east-1?"),
        ("mars-1", "ignore this if AWS has added it since"),
    ],
)
def test_an_unknown_region_is_a_warning_with_the_nearest_known_one(
    region: str, hint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "reconciler.yaml").write_text(f"fleet: web\naws:\n  region: {region}\n")

    (finding,) = found(folder, capsys)

    assert (finding["code"], finding["severity"]) == ("unknown-region", "warning")
    assert finding["message"] == f'region "{region}" is not known'
    assert finding["hint"] == hint
    assert (finding["path"], finding["file"]) == ("aws.region", "reconciler.yaml")
    assert (finding["line"], finding["column"]) == (3, 11)


def test_regions_of_prices_and_commitments_are_judged_beside_other_errors(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "reconciler.yaml").write_text(
        "priceBook: {rules: [{regions: [us-east-1, us-eats-1], discountPercent: 3}]}\n"
        "commitments:\n"
        "  savingsPlans: [{type: EC2Instance, commitment: 1, family: m5, region: eu-wset-1}]\n"
        "  reservedInstances: [{instanceType: m5.large, count: 1, region: eu-west-3}]\n"
        "clustername: web\n"
    )
    unknown = [f["path"] for f in found(folder, capsys) if f["code"] == "unknown-region"]
    assert unknown == ["priceBook.rules[0].regions[1]", "commitments.savingsPlans[0].region"]


def test_every_region_of_aws_is_known() -> None:
    session = boto3.session.Session()
    aws = {
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions("ec2", partition_name=partition)
    }
    assert aws | set(bundled_data()[1].regions) <= REGIONS


def test_names_in_a_fleet_of_another_provider_are_not_judged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = pool_with("node.kubernetes.io/instance-type", "[c-4x-amd64-linux]")
    text = text.replace("group: karpenter.k8s.aws, kind: EC2NodeClass", "group: x.io, kind: K")
    (folder / "pool.yaml").write_text(text)
    assert found(folder, capsys) == []


def test_a_quantity_in_gb_suggests_gi(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pool.yaml").write_text(POOL.replace("cpu: 100", "memory: 4Gb"))
    (finding,) = found(folder, capsys)
    assert finding["hint"] == "did you mean 4Gi or 4G?"


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("720h", "30d", "did you mean 720h?"),
        ("720h", "2w", "did you mean 336h?"),
        ("720h", "90 min", "did you mean 90m?"),
        ("720h", "1 hour", "did you mean 1h?"),
        ("720h", "never", "did you mean Never?"),
        ("720h", "soon", "examples: 30m, 720h, Never"),
        ("nodes: 10%", "{nodes: '1', schedule: '@daily', duration: 2d}", "did you mean 48h?"),
        ("nodes: 10%", "{nodes: '1', schedule: '@daily', duration: 90s}",
         "examples: 8h, 1h30m"),
    ],
)  # fmt: skip
def test_a_duration_in_other_units_suggests_one_that_is_read(
    old: str, new: str, hint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(POOL.replace(old, new))
    (finding,) = found(folder, capsys)
    assert finding["code"] == "bad-format"
    assert finding["message"].startswith("invalid duration ")
    assert finding["hint"] == hint


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ("0 7 * mon-fri", "expected exactly 5 fields, found 4"),
        ("@dayly", "unrecognized descriptor"),
    ],
)
def test_a_schedule_that_cannot_be_read_says_why(
    schedule: str, problem: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = f"{{nodes: '1', schedule: '{schedule}', duration: 8h}}"
    (folder / "pool.yaml").write_text(POOL.replace("nodes: 10%", budget))
    (finding,) = found(folder, capsys)
    assert finding["message"] == f'invalid schedule "{schedule}": {problem}'


@pytest.mark.parametrize(
    ("key", "values", "hint"),
    [
        ("kubernetes.io/arch", "[amd46]", "did you mean amd64?"),
        ("beta.kubernetes.io/arch", "[x86_64]", "did you mean amd64?"),
        ("kubernetes.io/arch", "[aarch64]", "did you mean arm64?"),
        ("kubernetes.io/arch", "[sparc]", "known: amd64, arm64"),
        ("kubernetes.io/os", "[Linux]", "did you mean linux?"),
        ("karpenter.k8s.aws/instance-hypervisor", "[nitro-sandbox]", "known: nitro, xen"),
        ("karpenter.k8s.aws/instance-cpu-manufacturer", "[AMD]", "did you mean amd?"),
        (
            "karpenter.k8s.aws/instance-encryption-in-transit-supported",
            "['yes']",
            "known: false, true",
        ),
        ("karpenter.k8s.aws/nitro-sandbox", "[enabled]", "known: false, true"),
        ("karpenter.k8s.aws/instance-capability-flex", "['True']", "did you mean true?"),
        ("karpenter.k8s.aws/instance-tenancy", "[host]", "known: default, dedicated"),
    ],
)
def test_a_value_of_a_label_that_no_instance_type_has_is_a_warning(
    key: str, values: str, hint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(pool_with(key, values))
    (finding,) = found(folder, capsys)
    assert (finding["code"], finding["severity"]) == ("unknown-label-value", "warning")
    assert (finding["hint"], finding["line"]) == (hint, 14)


def test_a_setting_that_no_command_can_use_is_an_error_at_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "reconciler.yaml").write_text("fleet: web\nhistory:\n  keep: 12h\n")
    (finding,) = found(folder, capsys)
    assert (finding["code"], finding["severity"]) == ("bad-setting", "error")
    assert (finding["path"], finding["line"], finding["column"]) == ("history.keep", 3, 9)
    assert finding["message"].startswith('"12h" must be at least 24h')


def test_settings_of_a_missing_node_pool_are_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "reconciler.yaml").write_text(
        "nodePools:\n  genral: {packing: cheapest}\n  general: {packing: default}\n"
    )
    (finding,) = found(folder, capsys)
    assert (finding["code"], finding["severity"]) == ("missing-nodepool", "warning")
    assert finding["message"] == 'NodePool "genral" not found in this folder'
    assert finding["hint"] == "did you mean general?"
    assert (finding["file"], finding["line"], finding["column"]) == ("reconciler.yaml", 2, 3)


@pytest.mark.parametrize("key", ["windows", "budgets"])
def test_a_schedule_of_ours_without_a_time_zone_is_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    entries = (
        "{schedule: 0 22 * * *, duration: 8h}",
        "{schedule: 0 22 * * *, duration: 8h, timeZone: UTC}",
        "{schedule: 0 * * * *, duration: 5m}",
        "{schedule: 0 5 1 * *, duration: 5m}",
    )
    listed = "".join(f"    - {entry}\n" for entry in entries)
    (folder / "reconciler.yaml").write_text(f"disruption:\n  {key}:\n{listed}")
    findings = found(folder, capsys)
    assert {(f["code"], f["severity"]) for f in findings} == {("no-time-zone", "warning")}
    assert [(f["file"], f["line"], f["column"]) for f in findings] == [
        ("reconciler.yaml", 3, 18),
        ("reconciler.yaml", 6, 18),
    ]
    assert findings[0]["path"] == f"disruption.{key}[0].schedule"
    assert "timeZone" in findings[0]["hint"]
    main(["plan", str(folder), "--now", "2026-03-02T09:00:00Z"])
    assert "reconciler.yaml:3:18" in "".join(capsys.readouterr())


def test_a_setting_in_the_wrong_case_suggests_the_right_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "reconciler.yaml").write_text("clustername: prod\n")
    (finding,) = found(folder, capsys)
    assert finding["hint"] == "did you mean clusterName?"
    assert (finding["file"], finding["line"], finding["column"]) == ("reconciler.yaml", 1, 1)


CONFLICT = POOL.replace(
    "  limits: {cpu: 100}\n",
    "<<<<<<< HEAD\n  limits: {cpu: 100}\n=======\n  limits: {cpu: 200}\n>>>>>>> feature\n",
)


def test_a_merge_conflict_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pool.yaml").write_text(f"{CONFLICT}---\n{CONFLICT}")

    first, second = found(folder, capsys)

    assert (first["code"], first["line"], first["column"]) == ("merge-conflict", 21, 1)
    assert first["message"] == "unresolved merge conflict: <<<<<<< HEAD"
    assert (second["code"], second["line"]) == ("merge-conflict", 47)


def test_markers_that_remain_after_half_a_resolution_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(POOL.replace("  limits: {", ">>>>>>> feature\n  limits: {"))
    (finding,) = found(folder, capsys)
    assert (finding["code"], finding["line"]) == ("merge-conflict", 21)


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("  limits:", "   limits:", "21:4", "lines up with no line above"),
        ("\n  name: general", "\n  name: general\n    uid: a", "5:5", "deeper than"),
        ("  limits:", "\tlimits:", "21:1", "tab"),
        ("          operator: In", "         operator: In", "13:10", "lines up with no line above"),
    ],
    ids=["too deep", "below a value", "a tab", "between two levels"],
)
def test_a_wrong_indentation_is_named(
    old: str, new: str, place: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(POOL.replace(old, new, 1))

    (finding,) = found(folder, capsys)

    assert finding["code"] == "indentation"
    assert f"{finding['line']}:{finding['column']}" == place
    assert words in finding["message"]
    assert " or " not in finding["hint"].replace(" or ", "", 1)


@pytest.mark.parametrize(
    "text", ["a: [1\n", "a: b: c\n", 'a: "x" y\nb: 1\n', "x: {a: 1\n   y: 2\n"]
)
def test_other_syntax_errors_are_not_blamed_on_the_indentation(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(text)
    assert [f["code"] for f in found(folder, capsys)] == ["syntax"]


def test_an_old_version_does_not_hide_other_findings(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = POOL.replace("karpenter.sh/v1\n", "karpenter.sh/v1beta1\n")
    text = text.replace("720h", "30d").replace("cpu: 100", "cpu: many")
    (folder / "pool.yaml").write_text(text.replace("name: default", "name: defualt"))

    codes = [f["code"] for f in found(folder, capsys)]

    assert codes == ["old-version", "bad-format", "bad-format"]


@pytest.mark.parametrize("operator", ["Exists", "DoesNotExist"])
def test_values_beside_an_operator_without_values_are_a_warning(
    operator: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(pool_with("team", "[a]", operator))

    (finding,) = found(folder, capsys)

    assert (finding["code"], finding["severity"]) == ("idle-values", "warning")
    assert finding["path"] == f"{REQUIREMENTS}[0].values"
    assert operator in finding["message"]


@pytest.mark.parametrize(
    ("first", "second", "is_empty"),
    [
        (("kubernetes.io/arch", "In", "[amd64]"), ("kubernetes.io/arch", "In", "[arm64]"), True),
        (("beta.kubernetes.io/arch", "In", "[amd64]"), ("kubernetes.io/arch", "NotIn", "[amd64]"),
         True),
        (("team", "In", "[a]"), ("team", "DoesNotExist", "[]"), True),
        (("team", "Gt", '["4"]'), ("team", "Lt", '["5"]'), True),
        (("team", "Gt", '["4"]'), ("team", "Lt", '["6"]'), False),
        (("team", "NotIn", "[a]"), ("team", "DoesNotExist", "[]"), False),
        (("team", "In", "[a, b]"), ("team", "In", "[b, c]"), False),
        (("team", "In", "[a]"), ("crew", "In", "[b]"), False),
    ],
)  # fmt: skip
def test_requirements_without_a_value_in_common_are_a_warning(
    first: tuple[str, str, str],
    second: tuple[str, str, str],
    is_empty: bool,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    key, operator, values = second
    more = f"\n        - {{key: {key}, operator: {operator}, values: {values}}}"
    (folder / "pool.yaml").write_text(pool_with(first[0], first[2] + more, first[1]))

    findings = [f for f in found(folder, capsys) if f["code"] == "contradiction"]

    assert [(f["severity"], f["path"]) for f in findings] == (
        [("warning", f"{REQUIREMENTS}[1]")] if is_empty else []
    )


def test_replicas_without_the_gate_are_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = POOL.replace("limits: {cpu: 100}", "replicas: 2\n  limits: {nodes: '3'}")
    (folder / "pool.yaml").write_text(text)

    (finding,) = found(folder, capsys)

    assert (finding["code"], finding["severity"]) == ("gate-is-off", "warning")
    assert finding["path"] == "spec.replicas"
    assert found(folder, capsys, "--set", "featureGates.StaticCapacity=true") == []
    (folder / "reconciler.yaml").write_text("featureGates: {StaticCapacity: true}\n")
    assert found(folder, capsys) == []


OLD = """\
# who: the platform team
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name:   web}   # as in DNS
spec:
    disruption:
        consolidationPolicy:   "WhenUnderutilized"   # was the default

        consolidateAfter: 30s
        budgets:
        - {nodes: 10%,  reasons: [ underutilized ,'empty']}
        - nodes: "5"
          reasons:
            - drifted # AMI rollouts
    template:
      spec:
        requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [spot]}]
        nodeClassRef: {apiVersion: karpenter.k8s.aws/v1beta1, kind: EC2NodeClass, name: default}
"""
TODAY = (
    OLD.replace("WhenUnderutilized", "WhenEmptyOrUnderutilized")
    .replace("underutilized ", "Underutilized ")
    .replace("'empty'", "'Empty'")
    .replace("drifted", "Drifted")
    .replace("apiVersion: karpenter.k8s.aws/v1beta1", "group: karpenter.k8s.aws")
)


def test_older_spellings_are_warnings_and_read_as_the_current_ones(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(OLD)

    findings = found(folder, capsys)

    assert {(f["code"], f["severity"]) for f in findings} == {("old-spelling", "warning")}
    assert [f["line"] for f in findings] == [7, 11, 11, 14, 18]
    assert main(["validate", str(folder)]) == 0
    old = read({"class.yaml": CLASS, "pool.yaml": OLD})
    today = read({"class.yaml": CLASS, "pool.yaml": TODAY})
    assert old.node_pools[0].data == today.node_pools[0].data


def test_fix_rewrites_older_spellings_and_nothing_else(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "pool.yaml"
    file.write_text(OLD)
    file.chmod(0o640)

    assert main(["validate", str(folder), "--fix"]) == 0

    assert file.read_text() == TODAY
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert capsys.readouterr().out == (
        "pool.yaml:7:32: fixed: spec.disruption.consolidationPolicy: WhenUnderutilized is now "
        "WhenEmptyOrUnderutilized\n"
        "pool.yaml:11:36: fixed: spec.disruption.budgets[0].reasons[0]: underutilized is now "
        "Underutilized\n"
        "pool.yaml:11:51: fixed: spec.disruption.budgets[0].reasons[1]: empty is now Empty\n"
        "pool.yaml:14:15: fixed: spec.disruption.budgets[1].reasons[0]: drifted is now Drifted\n"
        "pool.yaml:18:24: fixed: spec.template.spec.nodeClassRef.apiVersion: apiVersion: "
        "karpenter.k8s.aws/v1beta1 is now group: karpenter.k8s.aws\n"
        "valid: 1 NodePool, 1 EC2NodeClass\n"
    )
    assert sorted(f.name for f in folder.iterdir()) == ["class.yaml", "pool.yaml"]


def test_fix_twice_is_fix_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pool.yaml").write_text(OLD)
    main(["validate", str(folder), "--fix"])
    before = (folder / "pool.yaml").stat()
    capsys.readouterr()

    assert main(["validate", str(folder), "--fix", "-o", "json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert (report["fixed"], report["notFixed"]) == ([], [])
    assert (folder / "pool.yaml").stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OLD.replace("\n", "\r\n"), TODAY.replace("\n", "\r\n")),
        ("\ufeff" + OLD, "\ufeff" + TODAY),
        (f"---\n---\n{CLASS.replace('default', 'other')}---\n{OLD}",
         f"---\n---\n{CLASS.replace('default', 'other')}---\n{TODAY}"),
        ("apiVersion: v1\nkind: List\nitems:\n- " + OLD[25:].replace("\n", "\n  ") + "\n",
         "apiVersion: v1\nkind: List\nitems:\n- " + TODAY[25:].replace("\n", "\n  ") + "\n"),
    ],
    ids=["CRLF", "byte order mark", "several documents", "a List"],
)  # fmt: skip
def test_fix_keeps_the_form_of_the_file(
    before: str, after: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_bytes(before.encode())
    assert main(["validate", str(folder), "--fix"]) == 0
    assert (folder / "pool.yaml").read_bytes().decode() == after


def test_fix_rewrites_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pool.yaml").unlink()
    (document,) = (r.data for r in read({"a.yaml": TODAY}).node_pools)
    wanted = json.dumps(document, indent=2)
    (folder / "pool.json").write_text(wanted.replace('"Drifted"', '"drifted"'))
    assert main(["validate", str(folder), "--fix"]) == 0
    assert (folder / "pool.json").read_text() == wanted


def test_fix_leaves_a_file_with_a_syntax_error_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = f"{OLD}---\na: [\n"
    (folder / "broken.yaml").write_text(broken)
    (folder / "pool.yaml").write_text(OLD.replace("name:   web", "name: b"))

    assert main(["validate", str(folder), "--fix"]) == 3

    assert (folder / "broken.yaml").read_text() == broken
    assert "WhenEmptyOrUnderutilized" in (folder / "pool.yaml").read_text()


def test_fix_rewrites_beside_errors_of_another_kind(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(f"{OLD}    wieght: 3\n")
    assert main(["validate", str(folder), "--fix"]) == 3
    assert (folder / "pool.yaml").read_text() == f"{TODAY}    wieght: 3\n"


def test_fix_reports_what_it_cannot_rewrite(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = OLD.replace('"WhenUnderutilized"   #', "|-\n          WhenUnderutilized\n        #")
    (folder / "pool.yaml").write_text(text)

    assert main(["validate", str(folder), "--fix"]) == 0

    assert (folder / "pool.yaml").read_text() == text
    out = capsys.readouterr().out
    assert out.startswith("not fixed: pool.yaml: ")
    assert "edit it by hand" in out


def test_fix_rewrites_a_reason_that_two_budgets_share_through_an_alias(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = POOL.replace(
        "      - nodes: 10%\n",
        "      - nodes: 10%\n        reasons: &all [drifted]\n"
        "      - nodes: 20%\n        reasons: *all\n",
    )
    (folder / "pool.yaml").write_text(text)
    assert main(["validate", str(folder), "--fix"]) == 0
    assert (folder / "pool.yaml").read_text() == text.replace("[drifted]", "[Drifted]")


def test_fix_in_a_folder_that_cannot_be_written_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pool.yaml").write_text(OLD)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)

    assert main(["validate", str(folder), "--fix"]) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Error: pool.yaml: cannot be written: Permission denied")
    assert (folder / "pool.yaml").read_text() == OLD
    assert sorted(f.name for f in folder.iterdir()) == ["class.yaml", "pool.yaml"]
