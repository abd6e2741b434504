"""Files that take a multiple of their size in memory, or that a library reads without a limit."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from reconciler.adapters.kubernetes.access import KUBECONFIG_BYTES_MAX, access_of
from reconciler.assembly.inputs.files import (
    BYTES_MAX,
    CATALOG_BYTES_MAX,
    TEXT_BYTES_MAX,
    read_document,
)
from reconciler.cli.main import main
from reconciler.model.errors import ClusterError, UnreadableError
from reconciler.model.settings import Settings
from reconciler.observed.isolation import OBJECT_BYTES_MAX
from reconciler.observed.snapshot import read_snapshot
from tests.hostile.threats import Threat, attack

ROOT = Path(__file__).resolve().parents[2]
FLEET = str(ROOT / "examples" / "web")


def a_hole(path: Path, size: int, head: bytes = b"") -> str:
    """Write a file of zeros that takes no room on the disk."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return str(path)


@attack(
    Threat.EXHAUSTION, "a sparse file just below the limit, in place of a snapshot or manifests"
)
@pytest.mark.parametrize("option", ["--snapshot", "-f"])
def test_a_large_file_that_is_not_json_takes_no_memory(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``TEXT_BYTES_MAX`` in ``read_document``."""
    path = a_hole(tmp_path / "hole", BYTES_MAX - 1)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError, match="more than 64 MiB, and not JSON"):
            read_document(path)
        assert main(["plan", FLEET, option, path]) == 1
        assert tracemalloc.get_traced_memory()[1] < TEXT_BYTES_MAX
    finally:
        tracemalloc.stop()
    assert capsys.readouterr().err.count("\n") == 1


@attack(Threat.EXHAUSTION, "a file larger than its kind ever is, on the command line")
@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["plan", FLEET, "--snapshot"], BYTES_MAX),
        (["plan", FLEET, "-f"], 2**28),
        (["plan", FLEET, "--catalog"], CATALOG_BYTES_MAX),
        (["simulate", FLEET, "--faults"], 2**22),
        (["explain", "pod", "a/b", FLEET, "--plan"], 2**28),
        (["apply", "FILE", FLEET], 2**28),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, list) else None,
)
def test_each_kind_of_file_has_a_limit(
    words: list[str], size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: the limit that each command passes to ``read_bytes``."""
    path = a_hole(tmp_path / "large.json", size + 1, b'{"kind": "List"')
    line = [path if word == "FILE" else word for word in words]
    assert main(line if path in line else [*line, path]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "more than" in err or "larger than" in err


@attack(Threat.EXHAUSTION, "one object of a snapshot with millions of empty values")
@pytest.mark.parametrize("kind", ["NodePool", "Pod", "ResourceClaim", "Unknown"])
@pytest.mark.parametrize("form", ["JSON", "YAML"])
def test_an_object_larger_than_any_of_a_cluster_is_not_decoded(form: str, kind: str) -> None:
    """Guard: ``OBJECT_BYTES_MAX``. What is decoded takes fifty times the memory of its text."""
    count = OBJECT_BYTES_MAX // 3 + 1 if form == "JSON" else 200_000
    filler = b"[]," * count + b"[]"
    if form == "YAML":
        filler = b'"%s"' % (b"x" * OBJECT_BYTES_MAX)
    head = (
        b'{"apiVersion": "v1", "kind": "%s", "metadata": {"name": "a"}, "spec": [' % kind.encode()
    )
    content = b'{"kind": "List", "items": [%s%s]}]}' % (head, filler)
    content = content if form == "JSON" else b"# YAML\n" + content
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError, match="more than 4 MiB"):
            read_snapshot(content, "snapshot.json")
        if form == "JSON":
            assert tracemalloc.get_traced_memory()[1] < 3 * len(content)
    finally:
        tracemalloc.stop()


def named(context: object = None, **fields: object) -> object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "contexts": [{"name": "a", "context": context or {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "correct-horse"}}],
        **fields,
    }


KUBECONFIGS: dict[str, bytes] = {
    "nested JSON": b'{"a":' + b"[" * 20_000,
    "closed nested JSON": b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "nested YAML": b"a:\n" + b"".join(b"%sa:\n" % (b" " * i) for i in range(1, 1_500)),
    "a list": b"[]",
    "a number": b"1",
    "not UTF-8": b"\xff\xfe\x00",
    "a context that is a number": json.dumps(named(1)).encode(),
    "contexts that are a number": json.dumps(named(contexts=1)).encode(),
    "contexts of numbers": json.dumps(named(contexts=[1])).encode(),
    "a server that is a number": json.dumps(
        named(clusters=[{"name": "c", "cluster": {"server": 7}}])
    ).encode(),
    "an unfinished token": b"users:\n- name: u\n  user:\n    token: 'correct-horse",
    "a token with a tab": b"users:\n- name: u\n  user:\n\ttoken: correct-horse",
}


@attack(Threat.EXHAUSTION, "a kubeconfig that is nested without end, or is not one")
@pytest.mark.parametrize("content", KUBECONFIGS.values(), ids=KUBECONFIGS)
def test_an_odd_kubeconfig_is_an_error_of_one_line(
    content: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guard: what ``_load_configuration`` catches. No message quotes the file."""
    (tmp_path / "kubeconfig").write_bytes(content)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    assert main(["snapshot", "--out", str(tmp_path / "s.json")]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"Error: {tmp_path / 'kubeconfig'}: the kubeconfig does not lead to")
    assert err.count("\n") == 1
    assert "correct-horse" not in err


@attack(Threat.EXHAUSTION, "a device, a folder or a sparse file in place of a kubeconfig")
@pytest.mark.parametrize("kind", ["device", "folder", "sparse", "second of two"])
def test_a_kubeconfig_is_a_small_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: ``_expect_small_file``."""
    (tmp_path / "good").write_text(json.dumps(named()))
    hole = a_hole(tmp_path / "hole", KUBECONFIG_BYTES_MAX + 1)
    place = {
        "device": "/dev/zero",
        "folder": str(tmp_path),
        "sparse": hole,
        "second of two": f"{tmp_path / 'good'}:{hole}",
    }[kind]
    monkeypatch.setenv("KUBECONFIG", place)
    with pytest.raises(ClusterError, match=r"more than 4 MiB|not a regular file"):
        access_of(Settings(region="us-east-1"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "good"))
    assert access_of(Settings(region="us-east-1")).server == "https://127.0.0.1:1"
