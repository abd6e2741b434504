"""`reconciler lsp` as an editor starts it: messages on standard input and output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.lsp.editing import CLASS, POOL, START, cursor_in, fleet
from tests.lsp.editor import Editor

pytest.importorskip("pygls")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(scope="module")
def editor(workspace: Path) -> Iterator[Editor]:
    with Editor(workspace) as editor:
        yield editor


def test_the_server_announces_what_it_does(editor: Editor) -> None:
    found = editor.capabilities
    assert found["hoverProvider"]
    assert found["completionProvider"]["triggerCharacters"]
    assert found["codeActionProvider"]["codeActionKinds"] == ["quickfix"]


def test_findings_follow_opening_changes_and_saving(editor: Editor, workspace: Path) -> None:
    folder = fleet(workspace / "findings", pool=POOL)
    wrong = POOL.replace("operator: In", "operator: Inn", 1)
    uri = editor.open(folder / "pool.yaml", wrong)
    (found,) = editor.findings(uri)
    assert (found["code"], found["severity"], found["source"]) == ("not-allowed", 1, "reconciler")
    assert found["range"]["start"] == {"line": 9, "character": 20}
    assert found["range"]["end"] == {"line": 9, "character": 23}
    assert found["message"].startswith("spec.template.spec.requirements[0].operator: ")

    editor.change(uri, POOL)
    assert editor.findings(uri) == []

    (folder / "class.yaml").write_text(CLASS.replace("name: default", "name: other"))
    editor.notify("textDocument/didSave", textDocument={"uri": uri})
    assert [one["code"] for one in editor.findings(uri)] == ["missing-nodeclass"]


def test_closing_a_file_shows_the_findings_of_what_is_on_disk(
    editor: Editor, workspace: Path
) -> None:
    folder = fleet(workspace / "closed", pool=POOL)
    uri = editor.open(folder / "pool.yaml", POOL.replace("In\n", "Inn\n", 1))
    assert len(editor.findings(uri)) == 1
    editor.notify("textDocument/didClose", textDocument={"uri": uri})
    assert editor.findings(uri) == []


def test_completion_replaces_the_word_at_the_cursor(editor: Editor, workspace: Path) -> None:
    folder = fleet(workspace / "completed")
    text, line, column = cursor_in(f"{START}      requi|\n")
    uri = editor.open(folder / "pool.yaml", text)
    found = editor.ask("textDocument/completion", uri, line, column)
    first = found["items"][0]
    assert first["textEdit"] == {
        "range": {
            "start": {"line": line, "character": 6},
            "end": {"line": line, "character": 11},
        },
        "newText": "requirements:",
    }


def test_hover_shows_types_and_price(editor: Editor, workspace: Path) -> None:
    folder = fleet(workspace / "hovered")
    text, line, column = cursor_in(POOL.replace("kind: NodePool", "kind: Node|Pool"))
    uri = editor.open(folder / "pool.yaml", text)
    found = editor.ask("textDocument/hover", uri, line, column)
    assert " of 1,371 types, cheapest " in found["contents"]["value"]


def test_a_code_action_rewrites_older_spellings(editor: Editor, workspace: Path) -> None:
    folder = fleet(workspace / "fixed")
    old = f"{POOL}  disruption: {{consolidationPolicy: WhenUnderutilized}}\n"
    uri = editor.open(folder / "pool.yaml", old)
    zero = {"line": 0, "character": 0}
    (action,) = editor.request(
        "textDocument/codeAction",
        textDocument={"uri": uri},
        range={"start": zero, "end": zero},
        context={"diagnostics": []},
    )
    (edit,) = action["edit"]["changes"][uri]
    assert edit["newText"] == "  disruption: {consolidationPolicy: WhenEmptyOrUnderutilized}"


@pytest.mark.parametrize(
    ("method", "params", "code", "reason"),
    [
        ("textDocument/hover", {"textDocument": {}}, -32602, "params.textDocument.uri"),
        ("textDocument/hover", {"position": "here"}, -32602, "params.position"),
        ("textDocument/hover", [1], -32602, "params"),
        ("textDocument/hover", None, -32602, "params"),
        ("textDocument/none", {}, -32601, "textDocument/none"),
        ("textDocument/none", None, -32601, "textDocument/none"),
    ],
)
def test_a_request_that_cannot_be_served_gets_an_error(
    editor: Editor, method: str, params: object, code: int, reason: str
) -> None:
    error = editor.exchange(method, params)["error"]
    assert error["code"] == code
    assert reason in error["message"]
    assert len(error["message"]) < 400


def test_params_with_fields_of_a_message_are_read_as_params(
    editor: Editor, workspace: Path
) -> None:
    folder = fleet(workspace / "nested")
    uri = editor.open(folder / "pool.yaml", POOL)
    message = {"jsonrpc": "2.0", "id": 7, "method": "shutdown"}
    found = editor.exchange(
        "textDocument/hover",
        {"textDocument": {"uri": uri, **message}, "position": {"line": 1, "character": 8}},
    )
    assert "error" not in found


def test_a_request_before_the_start_or_after_the_end_gets_an_error(workspace: Path) -> None:
    editor = Editor(workspace)
    try:
        editor.notify("textDocument/didOpen", textDocument={})
        for method in ("textDocument/hover", "shutdown"):
            assert editor.exchange(method, {})["error"]["code"] == -32002
        editor.initialize()
        assert editor.capabilities["hoverProvider"]
        assert editor.exchange("shutdown") == {"jsonrpc": "2.0", "id": 4, "result": None}
        assert editor.exchange("textDocument/hover", {})["error"]["code"] == -32600
    finally:
        editor.end()


def test_a_wrong_setting_ends_the_server_at_its_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lsp", "--set", "packing=best"]) == 1
    assert "packing" in capsys.readouterr().err
