"""Inputs that are slightly deeper or longer than what is read; each limit is stated by its test.

Where ``test_limits`` attacks with what exhausts a machine, here each guard is alone: without it the
input is read, or fails in another place with an internal error.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from reconciler.adapters.git.source import AtRef, read
from reconciler.cli.main import main
from reconciler.engine.loop import describe_error
from reconciler.lsp.cursors import TEXT_MAX as COMPLETED_MAX
from reconciler.model.errors import UnreadableError
from reconciler.model.expressions.patterns import Pattern, PatternError
from reconciler.model.expressions.syntax import CELError, parse_expression
from reconciler.render.cells import Bar, Box, Flow, Lane, Timeline
from reconciler.render.charts import timeline
from reconciler.render.markdown import render_flowchart
from tests.adapters.git.conftest import Repository
from tests.cli.test_plan import NOW, POOL
from tests.hostile.test_git_objects import commit_of_tree, store_genuine
from tests.hostile.test_limits import MOMENT, a_fleet
from tests.hostile.threats import Threat, attack
from tests.lsp.editing import POOL as EDITED
from tests.lsp.editing import fleet, words
from tests.lsp.editor import Editor

MIB = 2**20


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Repository(tmp_path / "shop")
    made.commit({"pool.yaml": POOL})
    return made


@attack(Threat.EXHAUSTION, "a pattern with more parentheses than are read recursively")
@pytest.mark.parametrize("opening", ["(", "(?:", "(a|"])
def test_a_pattern_has_few_levels(opening: str) -> None:
    """Guard: ``_DEPTH_MAX`` of patterns."""
    assert Pattern(opening * 20 + "a" + ")" * 20)
    with pytest.raises(PatternError, match="nested too deeply"):
        Pattern(opening * 40 + "a" + ")" * 40)


@attack(Threat.EXHAUSTION, "an expression with more levels than are read recursively")
@pytest.mark.parametrize(
    ("opening", "closing"),
    [("(", ")"), ("[", "]"), ("!", ""), ("-", ""), ("true ? 1 : ", ""), ("size(", ")")],
)
def test_an_expression_has_few_levels(opening: str, closing: str) -> None:
    """Guards: ``DEPTH_MAX`` of expressions, in parentheses, operators and calls."""
    assert parse_expression(opening * 20 + "1" + closing * 20)
    with pytest.raises(CELError, match="nested too deeply"):
        parse_expression(opening * 60 + "1" + closing * 60)


@attack(Threat.EXHAUSTION, "an expression with a longer chain than is visited recursively")
@pytest.mark.parametrize(
    ("link", "too_many"),
    [(".a", 60), ("[0]", 60), (".size()", 60), (" + 1", 120), (" == 1", 120), (" in 1", 120)],
)
def test_an_expression_has_short_chains(link: str, too_many: int) -> None:
    """Guards: ``DEPTH_MAX`` in a chain of members, ``_TREE_DEPTH_MAX`` in one of operators."""
    assert parse_expression("a" + link * 20)
    with pytest.raises(CELError, match="nested too deeply"):
        parse_expression("a" + link * too_many)


@attack(Threat.EXHAUSTION, "manifests of a cluster with more levels than are read recursively")
@pytest.mark.parametrize("opening", ["[", "{a: "])
def test_a_snapshot_has_few_levels(
    opening: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``DEPTH_MAX`` of plain YAML."""
    snapshot = tmp_path / "objects.yaml"
    closing = "]" if opening == "[" else "}"
    snapshot.write_text(f"kind: List\nitems: {opening * 150}1{closing * 150}\n")
    line = ["plan", a_fleet(tmp_path), "--snapshot", str(snapshot), "--now", NOW]
    assert main([*line, "--catalog", str(tmp_path / "catalog.json")]) == 1
    err = capsys.readouterr().err
    assert "nested more than 100 levels deep" in err
    assert err.count("\n") == 1


@attack(Threat.EXHAUSTION, "an unquoted number of more digits than are converted")
@pytest.mark.parametrize("number", ["1" * 5_000, "-" + "9" * 5_000, "0x" + "f" * 5_000])
def test_a_number_has_few_digits(
    number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``_DIGITS_MAX`` of scalars. Python refuses to convert them, with a ValueError."""
    pool = POOL.replace("spec:\n", f"spec:\n  weight: {number}\n", 1)
    assert main(["validate", a_fleet(tmp_path, pool=pool)]) == 3
    out, err = capsys.readouterr()
    assert "weight" in out
    assert not err


@attack(Threat.EXHAUSTION, "a commit whose message is larger than any")
def test_a_commit_of_some_mebibytes_is_not_read(repository: Repository) -> None:
    """Guard: ``_COMMIT_BYTES_MAX``."""
    tree = repository.git("rev-parse", "HEAD^{tree}")
    who = "a <a@example.com> 1700000000 +0000"
    text = f"tree {tree}\nauthor {who}\ncommitter {who}\n\n{'x' * 2 * MIB}\n"
    oid = store_genuine(repository, "commit", text.encode())
    (repository.path / ".git/refs/heads/main").write_text(f"{oid}\n")
    with pytest.raises(UnreadableError, match="git cannot read object"):
        read(AtRef(str(repository.path), "main"))


@attack(Threat.EXHAUSTION, "a folder of a commit that is larger than any")
def test_a_tree_of_many_mebibytes_is_not_read(repository: Repository) -> None:
    """Guard: ``_TREE_BYTES_MAX``."""
    oid = bytes.fromhex(repository.git("rev-parse", "HEAD:pool.yaml"))
    names = (f"{number:06}-{'x' * 4_000}.txt".encode() for number in range(16_800))
    rows = b"".join(b"100644 " + name + b"\0" + oid for name in names)
    assert len(rows) > 64 * MIB
    commit_of_tree(repository, store_genuine(repository, "tree", rows))
    with pytest.raises(UnreadableError, match="git cannot read object"):
        read(AtRef(str(repository.path), "main"))


@attack(Threat.EXHAUSTION, "a link in a commit whose target is longer than any path")
def test_a_link_of_some_kibibytes_is_not_followed(repository: Repository) -> None:
    """Guard: ``_LINK_BYTES_MAX``. The target is a file of the folder."""
    pool = bytes.fromhex(repository.git("rev-parse", "HEAD:pool.yaml"))

    def codes(target: bytes) -> list[str]:
        link = bytes.fromhex(store_genuine(repository, "blob", target))
        rows = b"120000 link.yaml\0" + link + b"100644 pool.yaml\0" + pool
        commit_of_tree(repository, store_genuine(repository, "tree", rows))
        found = read(AtRef(str(repository.path), "main"))
        return [finding.code for finding in found.diagnostics]

    assert codes(b"./" * 1_000 + b"pool.yaml") == []
    assert codes(b"./" * 4_000 + b"pool.yaml") == ["outside-link"]


@attack(Threat.EXHAUSTION, "an unexpected error whose text is long and has several lines")
def test_an_error_in_the_log_is_short() -> None:
    """Guard: ``_TEXT_MAX`` of the loop."""
    text = describe_error(ZeroDivisionError("x\n" * 50_000))
    assert len(text) < 600
    assert "\n" not in text
    assert "please report it" in text


@attack(Threat.EXHAUSTION, "names that make a chart wider than a page")
def test_labels_of_charts_are_short() -> None:
    """Guards: ``_LABEL_MAX`` of Mermaid and of timelines."""
    name = "n" * 5_000
    chart = render_flowchart(Flow((Box("a", "launch", name, name, 0, ()),)))
    assert max(map(len, chart.splitlines())) < 250
    bar = Bar(MOMENT, MOMENT + timedelta(hours=1), "launch", about="launch")
    page = timeline(Timeline(MOMENT, MOMENT + timedelta(hours=2), (Lane(name, (bar,)),)))
    assert "n" * 100 not in str(page)


@attack(Threat.EXHAUSTION, "a document in an editor that is longer than completion reads")
def test_completion_reads_a_document_of_some_length(tmp_path: Path) -> None:
    """Guard: ``TEXT_MAX`` of cursors."""
    folder = fleet(tmp_path)
    short = EDITED + "  wei|\n"
    long = EDITED + "# x\n" * (COMPLETED_MAX // 4) + "  wei|\n"
    assert "weight" in words(folder, short)
    assert words(folder, long) == []


@attack(Threat.EXHAUSTION, "a text in an editor that is larger than the server keeps")
def test_a_text_of_several_mebibytes_is_not_kept(tmp_path: Path) -> None:
    """Guard: ``TEXT_MAX`` of the server: the file as it is stored has the findings."""
    pytest.importorskip("pygls")
    folder = fleet(tmp_path / "fleet", pool=EDITED)
    with Editor(folder) as editor:
        uri = editor.open(folder / "pool.yaml", EDITED + "# " + "x" * 5 * MIB)
        other = editor.open(folder / "other.yaml", EDITED.replace("web", "other") + "  wieght: 1\n")
        assert editor.findings(other)
        found = [editor.findings(uri) for _ in range(editor.publications(uri))]
        assert not any(found)


@attack(Threat.OUTPUT, "a message to the language server whose error quotes all of it")
def test_what_the_language_server_logs_is_short(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``LINE_MAX``."""
    pytest.importorskip("pygls")
    folder = fleet(tmp_path / "fleet", pool=EDITED)
    with Editor(folder) as editor:
        method = "x" * 50_000
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": {}}).encode()
        editor.send_bytes(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        editor.send_bytes(b"Content-Length: 5\r\n\r\n{\xff\xfex}")
        uri = editor.open(folder / "pool.yaml", EDITED)
        assert editor.ask("textDocument/hover", uri, 1, 8) is not None
    lines = capfd.readouterr().err.splitlines()
    assert lines
    assert max(map(len, lines)) <= 300
