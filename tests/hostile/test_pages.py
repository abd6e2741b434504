"""Hostile text in a recorded fleet, in every form in which commands show it."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.cli.recorded_fleet import NOW_ARGUMENT, record
from tests.cli.test_overlays import COMMITTED, PREFERENCE, a_node, fleet, write_pool
from tests.cli.test_plan import CLASS, NOW, POOL
from tests.engine.world import a_pool
from tests.hostile.test_exports import is_evaluated
from tests.hostile.test_output import (
    PAYLOADS,
    assert_inert_markdown,
    assert_inert_on_a_terminal,
    assert_inert_page,
)
from tests.hostile.threats import Threat, attack
from tests.simulated.simulations import words, write_fleet

__all__ = ["fleet"]

TEXTS = [*PAYLOADS.values(), '=HYPERLINK("http://evil.example","x")', "\t=1+1", "-1+cmd"]
WORDS = (
    "shop", "internal", "team", "storefront", "checkout", "train", "eu-central-1", "m7g.large",
    "InsufficientInstanceCapacity", "zone spread", "no type has", "too young", "allows no",
    "opens at", "its replacement", "search", "spec.template", "Resources", "web-old", "batch",
)  # fmt: skip
"""Parts of names, labels, types, zones and messages in the recorded fleet."""
OURS = {
    "fleet", "at", "sequence", "serial", "revision", "plan", "digest", "kind", "verb", "phase",
    "started_at", "until", "gone_at", "carried_out_at", "outcome",
}  # fmt: skip
"""Columns whose values are those of the program."""
FORMS = ("text", "wide", "json", "yaml", "csv", "markdown", "html")


TABLES = (
    "object", "plan", "node_claim", "command", "journal_intent", "journal_outcome", "unavailable",
    "shelf", "decision", "rollout",
)  # fmt: skip


def poison(state: Path, shift: int) -> None:
    """Write a text behind each of the words in every row of a state."""
    database = sqlite3.connect(state / "state.db")
    database.execute("pragma foreign_keys = off")
    for table in TABLES:
        names = [row[1] for row in database.execute(f"pragma table_info({table})")]
        columns = [name for name in names if name not in OURS]
        change = ", ".join(f"{name} = ?" for name in columns)
        query = f"select rowid, {', '.join(columns)} from {table}"
        for row, *values in database.execute(query).fetchall():
            new = [
                behind(value, shift, in_json=column in ("body", "content"))
                for column, value in zip(columns, values, strict=True)
            ]
            database.execute(f"update {table} set {change} where rowid = ?", (*new, row))
    database.commit()
    database.close()


def behind(value: object, shift: int, *, in_json: bool) -> object:
    if not isinstance(value, (str, bytes)):
        return value
    text = value.decode() if isinstance(value, bytes) else value
    for number, word in enumerate(WORDS):
        hostile = TEXTS[(number + shift) % len(TEXTS)]
        text = text.replace(word, word + (json.dumps(hostile)[1:-1] if in_json else hostile))
    return text.encode() if isinstance(value, bytes) else text


def commands(form: str) -> Iterator[list[str]]:
    """Yield the commands that show a recorded fleet in a form."""
    kinds = ("nodeclaims", "nodes", "nodepools", "plans", "actions", "commands")
    if form != "csv":
        yield from (["get", kind] for kind in kinds)
        yield ["history"]
    if form not in ("csv", "wide"):
        yield from (["status"], ["report"])
    if form != "wide":
        yield ["top", "--once"]
        yield from (["top", "--once", "--by", by] for by in ("namespace", "workload", "label=team"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return folders of fleets in whose record each word has another text."""
    first = tmp_path_factory.mktemp("recorded") / "web"
    record(first / ".reconciler")
    found = []
    for shift in range(0, len(TEXTS), 4):
        folder = first.parent / str(shift) / "web"
        shutil.copytree(first, folder)
        poison(folder / ".reconciler", shift)
        found.append(folder)
    return found


@attack(Threat.OUTPUT, "hostile text in every row of a recorded fleet, in every form of every list")
@pytest.mark.parametrize("form", FORMS)
def test_no_text_of_a_recorded_fleet_is_active(
    form: str, folders: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards: ``join_markup`` of pages, ``markdown_text`` and the output filter."""
    shown = 0
    for folder in folders:
        for command in commands(form):
            assert main([*command, str(folder), NOW_ARGUMENT, "-o", form]) == 0, command
            out, err = capsys.readouterr()
            assert_inert_on_a_terminal(err)
            assert_inert_on_a_terminal(out)
            shown += "evil" in out
            expect_inert(out, form)
    assert shown, "the texts reach the output"


REPLIES = ("text", "json", "markdown", "html")


def names_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and the hostile name of each resource of a record."""
    database = sqlite3.connect(folder / ".reconciler" / "state.db")
    columns = {"node_claim": "name", "command": "id", "plan": "digest"}
    for table, column in columns.items():
        for (name,) in database.execute(f"select {column} from {table}"):
            yield table.replace("_", ""), name
    database.close()


@attack(Threat.OUTPUT, "hostile names of a recorded fleet, where one of them is described")
@pytest.mark.parametrize("form", REPLIES)
def test_no_description_of_a_recorded_fleet_is_active(
    form: str, folders: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards: the sections of each reply, which only painters turn into text."""
    shown = 0
    for folder in folders:
        words = [["describe", kind, name] for kind, name in names_of(folder)]
        words += [["explain", kind, name] for kind, name in names_of(folder) if kind == "nodeclaim"]
        words += [["describe", "nodepool", "web"], ["explain", "nodepool", "web"], ["config"]]
        for command in words:
            now = [] if command == ["config"] else [NOW_ARGUMENT]
            code = main([*command, "-o", form, *now, "--", str(folder)])
            out, err = capsys.readouterr()
            assert_inert_on_a_terminal(err)
            assert_inert_on_a_terminal(out)
            assert "internal error" not in err
            shown += "evil" in out
            if code == 0:
                expect_inert(out, form)
    assert shown, "the texts reach the output"


@attack(Threat.OUTPUT, "hostile text in files, in findings, hashes and settings in every form")
@pytest.mark.parametrize("form", [*REPLIES, "github", "sarif"])
def test_no_reply_about_a_file_is_active(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards: the sections of findings, hashes and settings."""
    shown = 0
    for number, payload in enumerate(TEXTS):
        text = json.dumps(payload.replace("\0", ""))
        folder = tmp_path / str(number)
        folder.mkdir()
        pool = POOL.replace("{name: general}", f"{{name: {text}, labels: {{{text}: {text}}}}}")
        (folder / "pool.yaml").write_text(pool, encoding="utf-8")
        (folder / "class.yaml").write_text(CLASS.replace("default", text, 1), encoding="utf-8")
        (folder / "reconciler.yaml").write_text(
            f"apiVersion: reconciler/v1\nkind: Configuration\nfleet: {text}\nowner: {text}\n",
            encoding="utf-8",
        )
        words = [["validate", str(folder)]]
        if form in REPLIES:
            words += [["hash", str(folder)], ["config", str(folder)]]
        for command in words:
            code = main([*command, "-o", form])
            out, err = capsys.readouterr()
            assert_inert_on_a_terminal(err)
            assert "internal error" not in err
            shown += "evil" in out
            if form != "github":
                assert_inert_on_a_terminal(out)
            if code in (0, 3) and out:
                expect_inert(out, "json" if form == "sarif" else form)
    assert shown or form == "github", "the texts reach the output"


@attack(Threat.OUTPUT, "hostile names in a trace, in its summary in every form")
@pytest.mark.parametrize("form", REPLIES)
def test_the_summary_of_a_trace_is_inert(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = a_trace(tmp_path)
    code = main(["trace", "summary", str(path), "-o", form])
    out, err = capsys.readouterr()
    assert_inert_on_a_terminal(err)
    assert_inert_on_a_terminal(out)
    assert code == 0, err
    expect_inert(out, form)


@attack(Threat.OUTPUT, "hostile names of types, families, pools and nodes, in overlays and checks")
@pytest.mark.parametrize("form", REPLIES)
@pytest.mark.parametrize("payload", TEXTS, ids=range(len(TEXTS)))
def test_no_overlay_or_commitment_is_active(
    payload: str, form: str, fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(payload)
    settings = COMMITTED.replace("family: c7i", f"family: {text}")
    (fleet / "reconciler.yaml").write_text(settings, encoding="utf-8")
    write_pool(fleet, PREFERENCE.replace("c7g", payload.replace('"', "").replace("\0", "")))
    items = [a_node(payload, "m7i.large"), a_node("n", payload)]
    items[0]["metadata"]["labels"]["karpenter.sh/nodepool"] = payload
    (tmp_path / "s.json").write_text(json.dumps({"kind": "List", "items": items}))
    for command in (["overlays"], ["check", "--commitments"]):
        words = [str(fleet), "--snapshot", str(tmp_path / "s.json"), "--now", NOW, "-o", form]
        code = main([*command, *words])
        out, err = capsys.readouterr()
        assert_inert_on_a_terminal(err)
        assert_inert_on_a_terminal(out)
        assert "internal error" not in err
        if code == 0:
            expect_inert(out, form)


def expect_inert(out: str, form: str) -> None:
    match form:
        case "html":
            assert_inert_page(out)
        case "markdown":
            assert_inert_markdown(out, code=True)
        case "json":
            json.loads(out)
        case "csv":
            rows = list(csv.reader(io.StringIO(out, newline="")))
            assert len({len(row) for row in rows}) == 1
            assert not any(is_evaluated(cell) for row in rows for cell in row)


COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"


@attack(Threat.OUTPUT, "hostile names of pods, types and zones, on the page of a backtest")
def test_the_page_of_a_backtest_is_inert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: a page of a backtest names settings alone; the text of a trace is not on it."""
    write_fleet(tmp_path, [a_pool("web", policy="WhenEmptyOrUnderutilized", after="30s")])
    line = words(tmp_path, "--trace", str(a_trace(tmp_path)), "--against", "frontier")
    for form in ("html", "markdown", "text", "json"):
        code = main(["simulate", *line, "-o", form])
        shown, err = capsys.readouterr()
        assert_inert_on_a_terminal(err)
        assert_inert_on_a_terminal(shown)
        assert "internal error" not in err
        assert code == 0, err
        expect_inert(shown, form)


def a_trace(folder: Path) -> Path:
    """Write a trace whose pods have hostile names."""
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(COLUMNS.split(","))
    for number, text in enumerate(text.replace("\0", "") for text in TEXTS):
        rows.writerow(
            [f"p{number}{' '.join(text.split())}", 500, 512, 0, 0, number, 1800 + number, ""]
        )
    path = folder / "trace.csv"
    path.write_text(out.getvalue(), encoding="utf-8", newline="")
    return path
