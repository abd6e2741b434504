"""Limits of the language server, each exceeded alone, and the addresses and names that it reads."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from reconciler.assembly.inputs.checking import check_context
from reconciler.lsp.completion import PROPOSALS_MAX
from reconciler.lsp.editedfleet import FILE_BYTES_MAX
from reconciler.model.diagnostics import Severity
from tests.hostile.threats import Threat, attack
from tests.lsp.editing import CLASS, POOL, START, completions, fleet, path_of, session_of, words
from tests.lsp.editor import Editor
from tests.yamltext import load as read_yaml

TEXTS = {
    "bytes": "# " + "x" * FILE_BYTES_MAX,
    "values": f"a: [{'1, ' * 100_000}]\n",
    "aliases": "a: &a 1\nb: [" + "*a, " * 1_001 + "]\n",
    "expanded": f"a: &a [{'1, ' * 999}]\nb: [{'*a, ' * 101}]\n",
    "documents": "---\na: 1\n" * 2_001,
}


@attack(Threat.EXHAUSTION, "a text that exceeds one limit of the language server only")
@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_each_limit_of_an_edited_file_is_a_finding(tmp_path: Path, text: str) -> None:
    """Guards: ``FILE_BYTES_MAX``, and each field of ``_YAML`` in ``editedfleet``."""
    folder = fleet(tmp_path)
    (folder / "class.yaml").unlink()
    found = session_of(folder, pool=text).check(path_of(folder))[path_of(folder)]
    assert {"too-large", "alias-bomb"} & {one.finding.code for one in found}


@attack(Threat.EXHAUSTION, "a file that is too large for an editor, for its fleet to be invalid")
def test_a_file_beyond_the_limit_of_an_editor_is_no_error(tmp_path: Path) -> None:
    """Guard: the comparison with ``FILE_BYTES_MAX`` in ``EditedFleet.check``."""
    folder = fleet(tmp_path, pool=POOL)
    found = session_of(folder, more=TEXTS["bytes"]).check(path_of(folder, "more"))
    assert [one.finding.severity for all_ in found.values() for one in all_] == [Severity.INFO]


@attack(Threat.EXHAUSTION, "more fleets in one editor than are kept in memory")
def test_an_editor_of_many_fleets_keeps_some_of_them(tmp_path: Path) -> None:
    """Guard: ``_FLEETS_MAX``."""
    session = session_of(tmp_path)
    for number in range(102):
        folder = fleet(tmp_path / str(number), pool=POOL)
        session.check(path_of(folder))
    assert len(session._fleets) <= 100
    assert len(session._checked) <= 100


@attack(Threat.EXHAUSTION, "more names to complete than anybody reads")
def test_the_number_of_completions_is_limited(tmp_path: Path) -> None:
    """Guard: ``PROPOSALS_MAX``."""
    files = {
        f"classes{part}": "---\n".join(
            CLASS.replace("name: default", f"name: n{part}-{number}") for number in range(1_100)
        )
        for part in "ab"
    }
    folder = fleet(tmp_path, **files)
    found = words(folder, START.replace("name: default}", "name: |}"))
    assert len(found) == PROPOSALS_MAX


@attack(Threat.OUTPUT, "a name with quotes and backslashes, which ends the quotes around it")
@pytest.mark.parametrize("name", ['": {a: 1}, b: "', "\\", '\\"', "- a", "yes", "1_000", "a #b"])
def test_a_completed_name_is_read_as_itself(tmp_path: Path, name: str) -> None:
    """Guard: the escapes in ``_quoted``."""
    quoted = "'" + name.replace("'", "''") + "'"
    folder = fleet(tmp_path, other=CLASS.replace("name: default", f"name: {quoted}"))
    found = completions(folder, START.replace("name: default}", "name: |}"))
    assert found is not None
    (text,) = (one.text for one in found.proposals if one.label == name)
    assert read_yaml(f"name: {text}\n") == {"name": name}


@attack(Threat.FILES, "an address of an editor on another machine, or of something else than YAML")
@pytest.mark.parametrize(
    "uri",
    [
        *("file://host/share/pool.yaml", "file:////host/share/pool.yaml", "file:///a/p%00.yaml"),
        *("file:///etc/passwd", "http://example.invalid/pool.yaml", "untitled:pool.yaml", ""),
    ],
)
def test_an_address_that_is_no_file_of_a_fleet_has_no_path(uri: str) -> None:
    """Guards: the conditions in ``_fleet_file`` and ``_real_path``."""
    pytest.importorskip("pygls")
    from reconciler.lsp.server import _fleet_file, _real_path

    assert _fleet_file(uri) is None
    assert _real_path(uri) in ("", "/etc/passwd")


@attack(Threat.FILES, "a linked folder in an address, to be another fleet than its real one")
def test_a_file_is_known_by_its_real_folder(tmp_path: Path) -> None:
    """Guard: ``realpath`` in ``_fleet_file``; a link in place of the file is not resolved."""
    pytest.importorskip("pygls")
    from reconciler.lsp.server import _fleet_file

    folder = fleet(tmp_path.resolve() / "fleet", pool=POOL)
    (folder / "linked.yaml").symlink_to("/etc/passwd")
    (folder.parent / "link").symlink_to(folder)
    for name in ("pool.yaml", "linked.yaml"):
        uri = (folder.parent / "link" / name).as_uri()
        assert _fleet_file(uri) == str(folder / name)


@attack(Threat.OUTPUT, "a folder with control sequences in its name, in the log of an editor")
def test_a_logged_error_has_no_control_sequences(tmp_path: Path) -> None:
    """Guard: ``neutralize`` in ``_ask``."""
    pytest.importorskip("pygls")
    folder = fleet(tmp_path / "fleet", pool=POOL)
    gone = tmp_path / "a\x1b]0;x\x07\u202e\n::error::b"
    with Editor(folder) as editor:
        uri = editor.open(gone / "pool.yaml", POOL)
        editor.ask("textDocument/hover", uri, 1, 8)
        logged = list(editor.logged)
    assert logged
    assert all(line.isprintable() for line in logged)


def message(data: object) -> bytes:
    body = json.dumps(data).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


INITIALIZE = message(
    {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"processId": None, "rootUri": None, "capabilities": {}},
    }
)  # fmt: skip


@attack(Threat.EXHAUSTION, "a message of an editor that is longer than any, or says so")
@pytest.mark.parametrize(
    ("first", "is_read_on"),
    [
        (b"Content-Length: 5000\r\n\r\n" + b"x" * 5000, True),
        (b"Content-Length: 99999999999\r\n\r\n" + b"x" * 5000, False),
        (b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", False),
        (b"Content-Length: 1" + b" " * 5000 + b"\r\n", True),
    ],
)
def test_a_message_has_a_limit(
    first: bytes, is_read_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: ``BoundedInput``. Whatever follows what is called endless is a part of it."""
    pytest.importorskip("pygls")
    from reconciler.lsp import server

    monkeypatch.setattr(server, "MESSAGE_MAX", 1000)
    monkeypatch.setattr(server, "HEADER_MAX", 100)
    reads: list[int] = []

    class Input(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            reads.append(size or 0)
            return super().read(size)

    out = io.BytesIO()
    monkeypatch.setattr(out, "close", lambda: None)
    server.serve(check_context(()), Input(first + INITIALIZE), out)
    assert (b'"capabilities"' in out.getvalue()) is is_read_on
    assert max(reads, default=0) <= 1000
