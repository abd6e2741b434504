"""A hostile folder or text that is opened in an editor with the language server."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import NoReturn

import pytest

from reconciler.lsp.editedfleet import FILE_BYTES_MAX
from reconciler.model.diagnostics import Diagnostic, Severity
from tests.hostile.test_output import CONTROL, PAYLOADS
from tests.hostile.threats import Threat, attack
from tests.hostile.traps import Traps
from tests.hostile.turns import soon
from tests.lsp.editing import CLASS, POOL, START, fleet, hover, path_of, session_of, words
from tests.lsp.editor import Editor

SECRET = "token-of-somebody"


def codes(folder: Path, name: str = "pool", **texts: str) -> dict[str, list[str]]:
    found = session_of(folder, **texts).check(path_of(folder, name))
    return {os.path.basename(path): [o.finding.code for o in all_] for path, all_ in found.items()}


@attack(Threat.HIDDEN, "a link from an opened fleet to a file outside it")
def test_a_link_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside.yaml"
    outside.write_text(f"kind: EC2NodeClass\napiVersion: {SECRET}\n")
    folder = fleet(tmp_path / "fleet", pool=POOL)
    (folder / "linked.yaml").symlink_to(outside)
    found = session_of(folder).check(path_of(folder))
    (linked,) = found[path_of(folder, "linked")]
    assert linked.finding.code == "outside-link"
    assert SECRET not in repr(found)


@attack(Threat.HIDDEN, "a link from an opened fleet to a folder outside it")
def test_a_linked_folder_is_not_read(tmp_path: Path) -> None:
    outside = fleet(tmp_path / "outside", secret=f"kind: {SECRET}\n")
    folder = fleet(tmp_path / "fleet", pool=POOL)
    (folder / "more").symlink_to(outside)
    found = session_of(folder).check(path_of(folder))
    assert SECRET not in repr(found)
    assert SECRET not in repr(words(folder, "kind: |"))


@attack(Threat.RENDERING, "a kustomization and a chart in a folder that is opened in an editor")
def test_sources_are_not_rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, programs = tmp_path / "log", tmp_path / "programs"
    programs.mkdir()
    for name in ("kustomize", "helm", "git"):
        (programs / name).write_text(f"#!/bin/sh\necho {name} >> '{log}'\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    folder = fleet(
        tmp_path / "fleet",
        pool=POOL,
        kustomization="resources: [https://example.invalid/a]\ngenerators: [g.yaml]\n",
        Chart="name: a\nversion: 1.0.0\napiVersion: v2\n",
    )
    codes(folder)
    assert not log.exists()


@attack(Threat.SETTINGS, "a fleet that names addresses, opened in an editor")
def test_no_connection_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    text = "aws: {region: us-east-1, instanceTypes: live, prices: live, endpointUrl: http://a}\n"
    folder = fleet(tmp_path, reconciler=text, pool=POOL)
    codes(folder)
    assert hover(folder, POOL.replace("kind: NodePool", "kind: Node|Pool"))


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join(lines)


TEXTS = {
    "aliases": bomb(),
    "nested": "[" * 200_000,
    "one line": POOL + "# " + "x" * 900_000,
    "documents": "---\na: 1\n" * 100_000,
    "pools": "---\n".join(POOL.replace("name: general", f"name: web-{n}") for n in range(1_000)),
    "requirements": POOL + "        - {key: a, operator: In, values: [b]}\n" * 15_000,
    "quotes": "'" * 500_000,
    "keys": "".join(f"key{n}: 1\n" for n in range(60_000)),
    "one line of objects": json.dumps(
        {
            "apiVersion": "v1",
            "kind": "List",
            "items": [
                {
                    "apiVersion": "karpenter.sh/v1",
                    "kind": "NodePool",
                    "metadata": {"name": f"😀{n}"},
                }
                for n in range(5_000)
            ],
        },
        ensure_ascii=False,
    ),
    "control": POOL.replace("web", '"\\e]0;x\\a\\e[2J\\u202e"'),
    "beyond the limit": "a: " + "x" * (FILE_BYTES_MAX + 1),
}


@attack(Threat.EXHAUSTION, "a text that keeps the language server busy")
@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_a_check_of_any_text_ends_soon(tmp_path: Path, text: str) -> None:
    folder = fleet(tmp_path, pool=POOL)
    with soon(600):
        codes(folder, pool=text)


@attack(Threat.EXHAUSTION, "a text that keeps completion and hover busy")
@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_an_answer_about_any_text_comes_soon(tmp_path: Path, text: str) -> None:
    folder = fleet(tmp_path)
    middle = len(text) // 2
    marked = f"{text[:middle]}|{text[middle:]}"
    with soon(1200):
        words(folder, marked)
        hover(folder, marked)


@attack(Threat.EXHAUSTION, "a folder with more files than an editor should read")
def test_a_large_folder_is_not_read_to_its_end(tmp_path: Path) -> None:
    folder = fleet(tmp_path, pool=POOL)
    for number in range(2_100):
        (folder / f"z{number}.yaml").write_text("")
    assert ["too-large"] in codes(folder).values()


@attack(Threat.OUTPUT, "control sequences in a text that findings quote")
def test_findings_contain_no_control_sequences(tmp_path: Path) -> None:
    pytest.importorskip("pygls")
    from reconciler.lsp.server import _diagnostic
    from reconciler.lsp.session import LocatedFinding

    text = POOL.replace("operator: In", 'operator: "\\e]0;x\\a\\e[2J\\u202e"', 1)
    folder = fleet(tmp_path, pool=text)
    found = session_of(folder).check(path_of(folder))
    messages = [_diagnostic(one).message for all_ in found.values() for one in all_]
    assert messages
    found_span = next(one.span for all_ in found.values() for one in all_)
    quoted = Diagnostic(Severity.ERROR, "x", "a\x1b[2J\u202eb", hint="c\x9d")
    messages.append(_diagnostic(LocatedFinding(quoted, found_span)).message)
    assert all(message.isprintable() for message in messages)


@attack(Threat.PROCESSES, "modules and programs in the folder in which an editor starts the server")
def test_nothing_of_the_workspace_runs(tmp_path: Path) -> None:
    pytest.importorskip("pygls")
    folder = fleet(tmp_path / "fleet", pool=POOL)
    traps = Traps(folder, tmp_path / "log")
    with Editor(folder, cwd=folder) as editor:
        uri = editor.open(folder / "pool.yaml", POOL + "  wieght: 1\n")
        assert editor.findings(uri)
        editor.ask("textDocument/hover", uri, 1, 8)
    assert traps.sprung == []


@attack(Threat.FILES, "an address of an editor that is not a file of this machine")
def test_only_files_of_this_machine_have_answers(tmp_path: Path) -> None:
    pytest.importorskip("pygls")
    folder = fleet(tmp_path / "fleet", pool=POOL)
    with Editor(folder) as editor:
        for uri in (
            "untitled:pool.yaml",
            "http://example.invalid/pool.yaml",
            "file://host/share/pool.yaml",
            f"{folder.as_uri()}/pool%00.yaml",
            f"{folder.as_uri()}/../../../etc/passwd",
        ):
            editor.open_uri(uri, POOL)
            assert editor.ask("textDocument/hover", uri, 1, 8) is None
        good = editor.open(folder / "pool.yaml", POOL)
        assert editor.ask("textDocument/hover", good, 1, 8) is not None


@attack(Threat.OUTPUT, "names that would write lines of their own when they are completed")
@pytest.mark.parametrize("name", ["a\nb: c", "a\x1b]0;x\x07", "user\u202eexe", "a\u2028b", "a\tb"])
def test_no_name_of_another_file_completes_to_more_than_itself(tmp_path: Path, name: str) -> None:
    """Guard: ``isprintable`` in ``propose``."""
    text = CLASS.replace("name: default", f"name: {json.dumps(name)}")
    folder = fleet(tmp_path, other=text)
    marked = START.replace("name: default}", "name: |}")
    found = words(folder, marked)
    assert "default" in found
    assert all(word.isprintable() for word in found)


@attack(Threat.OUTPUT, "Markdown in the values of a fleet, in what a hover shows")
def test_no_value_is_markdown_in_a_hover(tmp_path: Path) -> None:
    """Guard: hovers are made of the schemas, the catalog and the codes of findings alone."""
    shown = 0
    for payload in PAYLOADS.values():
        quoted = json.dumps(payload)
        text = POOL.replace("values: [c]", f"values: [c, {quoted}]") + f"  {quoted}: {quoted}\n"
        text = text.replace("operator: In", f"operator: {quoted}", 1)
        folder = fleet(tmp_path, pool=text)
        lines = text.split("\n")
        for number, line in enumerate(lines):
            for column in (len(line) - len(line.lstrip()), len(line) * 3 // 4):
                found = session_of(folder, pool=text).hover(path_of(folder), number, column)
                if found is not None:
                    shown += 1
                    assert CONTROL.search(found.text.replace("\n", "")) is None
                    assert "evil" not in found.text
                    assert "victim" not in found.text
    assert shown > 100


def framed(content: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%s" % (len(content), content)


MESSAGES = {
    "no JSON": framed(b"{"),
    "no UTF-8": framed(b"\xff\xfe\x00"),
    "a list": framed(b"[]"),
    "nothing": framed(b"null"),
    "nested": framed(b"[" * 100_000),
    "no method": framed(b'{"jsonrpc": "2.0", "id": 5}'),
    "odd parameters": framed(
        b'{"jsonrpc": "2.0", "id": 5, "method": "textDocument/hover", "params": 5}'
    ),
    "an odd position": framed(
        b'{"jsonrpc": "2.0", "id": 5, "method": "textDocument/hover", "params": {"textDocument": '
        b'{"uri": "file:///a.yaml"}, "position": {"line": -5, "character": 1e30}}}'
    ),
    "a negative length": b"Content-Length: -5\r\n\r\n",
    "a command": framed(
        b'{"jsonrpc": "2.0", "id": 5, "method": "workspace/executeCommand", "params": '
        b'{"command": "\\u001b[2Jx", "arguments": []}}'
    ),
}


@attack(Threat.EXHAUSTION, "messages of an editor that are malformed")
def test_a_malformed_message_does_not_end_the_server(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``_LineFormatter``; the package that speaks the protocol keeps the server alive."""
    pytest.importorskip("pygls")
    folder = fleet(tmp_path / "fleet", pool=POOL)
    with Editor(folder) as editor:
        for message in MESSAGES.values():
            editor.send_bytes(message)
        uri = editor.open(folder / "pool.yaml", POOL)
        assert editor.ask("textDocument/hover", uri, 1, 8) is not None
    err = capfd.readouterr().err
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert err.count("\n") < 2 * len(MESSAGES)


@attack(Threat.EXHAUSTION, "hundreds of texts of one folder that are opened at once")
def test_a_flood_of_texts_is_checked_together(tmp_path: Path) -> None:
    """Guard: ``_queued`` in ``FleetServer``: without it the folder is read for each text.

    The folder takes many times longer to check than the texts take to send.
    """
    pytest.importorskip("pygls")
    pools = [POOL.replace("name: web", f"name: web{number}") for number in range(400)]
    folder = fleet(tmp_path / "fleet", pool="---\n".join(pools))
    first, texts = folder / "text0.yaml", 200
    with Editor(folder) as editor:
        for text in range(texts):
            editor.open(folder / f"text{text}.yaml", "kind: NodePool\n")
        assert editor.ask("textDocument/hover", first.as_uri(), 0, 8) is not None
        assert editor.publications(first.as_uri()) < texts / 2
