"""``reconciler hash`` on typical files."""

import io
import json
import sys
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.desired.hash import node_pool_hash, object_hash
from reconciler.model.errors import InvalidFleetError, ReconcilerError, UnreadableError
from tests.cli import commandlines

POOL = """\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: general}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements: []
"""
CLASS = """\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec: {role: KarpenterNodeRole-c1, amiSelectorTerms: [{alias: al2023@latest}]}
"""
ROWS = [
    {"kind": "EC2NodeClass", "name": "default", "hash": "16993001224129005270", "version": "v6"},
    {"kind": "NodePool", "name": "general", "hash": "6821555240594823858", "version": "v3"},
]


def run(*words: str) -> int:
    return commandlines.run("hash", *words)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        f"{POOL}---\n{CLASS}---\nkind: ConfigMap\napiVersion: v1\nmetadata: {{name: x}}\n"
    )
    return path


def test_hashes_are_those_of_the_applied_objects(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(file), "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == ROWS


def test_a_folder_a_list_and_stdin_are_accepted(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (file.parent / "reconciler.yaml").write_text("packing: cheapest\n")
    run(str(file.parent), "-o", "json")
    assert json.loads(capsys.readouterr().out) == ROWS
    items = [{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "a"}}]
    content = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    run("-", "-o", "json")
    expected = node_pool_hash({"spec": {"template": {"spec": {"expireAfter": "720h"}}}})
    assert json.loads(capsys.readouterr().out)[0]["hash"] == expected


def test_hashes_are_printed_as_a_table(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(str(file))
    assert capsys.readouterr().out == (
        "KIND          NAME     HASH                  VERSION\n"
        "EC2NodeClass  default  16993001224129005270  v6\n"
        "NodePool      general  6821555240594823858   v3\n"
    )


def test_the_cluster_certificate_is_part_of_the_hash_of_a_class(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(str(file), "-o", "json", "--set", "clusterCABundle=LS0tLS1CRUdJTg==")
    found = json.loads(capsys.readouterr().out)[0]["hash"]
    node_class = {"kind": "EC2NodeClass", "spec": {"role": "KarpenterNodeRole-c1"}}
    node_class["spec"] |= {"amiSelectorTerms": [{"alias": "al2023@latest"}]}
    assert (found, "v6") == object_hash(node_class, "LS0tLS1CRUdJTg==")
    assert found == "15421723925657391126"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: [", "fleet.yaml:1:5"),
        (POOL + "      expireAfter: soon\n", "expireAfter"),
        (POOL + "      taints: 3\n", "fleet.yaml:9:15"),
        (CLASS.replace("role:", "tags: {a: 1}, role:"), "fleet.yaml:4:18"),
        (
            CLASS.replace("role:", "blockDeviceMappings: [{ebs: {volumeSize: big}}], role:"),
            "volumeSize",
        ),
    ],
)
def test_an_object_without_a_hash_is_reported_with_its_position(
    tmp_path: Path, text: str, place: str
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(InvalidFleetError) as caught:
        run(str(path))
    assert place in str(caught.value)


@pytest.mark.parametrize("name", ["missing.yaml", "empty.yaml"])
def test_nothing_to_hash_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(UnreadableError):
        run(str(tmp_path / name))


def test_every_error_is_handled_by_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    for spec in ("[]", "3", "{template: 7}", "{template: {spec: {nodeClassRef: []}}}"):
        path.write_text(POOL.partition("spec:")[0] + f"spec: {spec}\n")
        with pytest.raises(ReconcilerError):
            run(str(path))


def test_on_the_command_line_an_error_is_one_line(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hash", str(file)]) == 0
    capsys.readouterr()
    file.write_text(POOL + "      expireAfter: soon\n")
    assert main(["hash", str(file)]) == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.count("\n") == 1
    assert f"{file}:9:20" in streams.err
