"""``reconciler config``: the effective settings with their origins."""

import json
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.model.errors import InvalidFleetError, UnreadableError, UsageError
from tests.cli import commandlines


def run(*words: str) -> int:
    return commandlines.run("config", *words)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "reconciler.yaml").write_text(
        "packing: cheapest\nnodePools: {a: {perNodeCost: 0.1}}\n"
    )
    return folder


def test_each_setting_shows_its_origin(
    fleet: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECONCILER_CLUSTER_NAME", "prod")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert run(str(fleet), "-o", "json", "--set", "featureGates.NodeOverlay=true") == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: tuple(found[key].values()) for key in (
        "fleet", "packing", "clusterName", "aws.region", "featureGates.NodeOverlay",
        "nodePools.a.perNodeCost",
    )} == {
        "fleet": ("web", "default", "default"),
        "packing": ("cheapest", "file", "reconciler.yaml"),
        "clusterName": ("prod", "environment", "RECONCILER_CLUSTER_NAME"),
        "aws.region": ("eu-west-1", "environment", "AWS_REGION"),
        "featureGates.NodeOverlay": (True, "flag", "--set"),
        "nodePools.a.perNodeCost": (0.1, "file", "reconciler.yaml"),
    }  # fmt: skip


ZONED = """\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: NAME}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements: [{key: topology.kubernetes.io/zone, operator: OPERATOR, values: [ZONES]}]
"""


@pytest.mark.parametrize(
    ("pools", "region"),
    [
        (["In ap-northeast-2a, ap-northeast-2b"], ("ap-northeast-2", "zones of the NodePools")),
        (["In eu-west-1a", "In eu-west-1b"], ("eu-west-1", "zones of the NodePools")),
        (["In eu-west-1a", "In us-west-2b"], ("us-east-1", "default")),
        (["In eu-west-1a, test-zone-a"], ("us-east-1", "default")),
        (["NotIn eu-west-1a"], ("us-east-1", "default")),
        (["In xx-west-1a"], ("us-east-1", "default")),
    ],
)
def test_the_region_is_that_of_the_zones_where_nothing_names_one(
    pools: list[str],
    region: tuple[str, str],
    fleet: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, text in enumerate(pools):
        operator, _, zones = text.partition(" ")
        pool = ZONED.replace("NAME", f"p{number}").replace("OPERATOR", operator)
        (fleet / f"p{number}.yaml").write_text(pool.replace("ZONES", zones))
    assert run(str(fleet), "-o", "json") == 0
    assert tuple(json.loads(capsys.readouterr().out)["aws.region"].values())[::2] == region
    monkeypatch.setenv("AWS_REGION", "sa-east-1")
    assert run(str(fleet), "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["aws.region"]["value"] == "sa-east-1"


def test_the_table_hides_passwords_and_truncates_long_values(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "postgresql://reconciler:s3cret@db.internal/fleets"
    assert run(str(fleet), "--state", url, "--set", f"clusterCABundle={'x' * 500}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["KEY", "VALUE", "FROM"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["state"] == ["postgresql://reconciler:***@db.internal/fleets", "--set"]
    assert rows["packing"] == ["cheapest", "reconciler.yaml"]
    assert rows["featureGates.ReservedCapacity"] == ["true", "default"]
    assert max(map(len, lines)) < 120


def test_an_invalid_file_is_reported_with_its_position(fleet: Path) -> None:
    (fleet / "reconciler.yaml").write_text("packing: cheapest\npackin: default\n")
    with pytest.raises(InvalidFleetError, match=r"reconciler.yaml:2:1.*packin"):
        run(str(fleet))


def test_a_folder_without_a_file_has_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(tmp_path)) == 0
    assert "preferencePolicy" in capsys.readouterr().out


def test_invalid_arguments_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        run(str(tmp_path), "--set", "zebra=1")
    with pytest.raises(UnreadableError):
        run(str(tmp_path / "missing"))


def test_an_invalid_setting_on_the_command_line_is_a_usage_error(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", str(fleet), "--set", "packing=fast"]) == 1
    streams = capsys.readouterr()
    assert (streams.out, streams.err.count("\n")) == ("", 1)
    assert "one of default, cheapest" in streams.err
