"""JSON that its reader does not expect: in files of the command line, and in the recorded state."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

import msgspec
import pytest

from reconciler.cli.main import main
from reconciler.model.decode import decode_json
from tests.cli.recorded_fleet import record
from tests.cli.test_plan import CLASS, POOL
from tests.hostile.threats import Threat, attack

DEEP: Final = b"[" * 100_000 + b"]" * 100_000
HUGE: Final = b"9" * 5_000


def an_object(value: bytes) -> bytes:
    return b'{"kind": "List", "version": %s, "items": [{"kind": "Pod", "spec": %s}]}' % (
        value,
        value,
    )


CONTENTS: Final = {
    "not UTF-8": an_object(b'"\xff"'),
    "a key that is not UTF-8": an_object(b'{"\xff": 1}'),
    "a lone surrogate": an_object(b'"\\ud800"'),
    "NUL": an_object(b'"a\\u0000b"'),
    "deep": DEEP,
    "deep inside": an_object(DEEP),
    "a huge integer": an_object(HUGE),
    "a huge exponent": an_object(b"1e999999"),
    "twice the same key": b'{"kind": "List", "items": [], "items": 1}',
    "NaN": an_object(b"NaN"),
    "Infinity": an_object(b"-Infinity"),
    "a byte order mark": b"\xef\xbb\xbf" + an_object(b"1"),
    "a number": b"1",
    "null": b"null",
}

COMMANDS: Final = {
    "a snapshot": ["plan", "fleet", "--snapshot", "FILE"],
    "a catalog": ["plan", "fleet", "--catalog", "FILE"],
    "a saved plan": ["apply", "FILE", "fleet", "--auto-approve"],
    "a trace": ["simulate", "fleet", "--trace", "FILE"],
    "a capture": ["trace", "import", "FILE", "--out", "trace.jsonl"],
    "an episode": ["watch", "replay", "FILE"],
    "a fault scenario": ["simulate", "fleet", "--faults", "FILE"],
    "an export": ["state", "import", "FILE", "fleet", "--state", "new"],
    "terraform show -json": ["plan", "fleet", "-f", "FILE"],
}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a fleet and a state, the current one."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "fleet"
    folder.mkdir()
    (folder / "pool.yaml").write_text(POOL)
    (folder / "class.yaml").write_text(CLASS)
    (folder / "reconciler.yaml").write_text("cluster: none\n")
    return tmp_path


def expect_no_defect(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) in (0, 1, 2, 3)
    shown = capsys.readouterr()
    assert "internal error" not in shown.err + shown.out
    assert "Traceback" not in shown.err


@attack(Threat.EXHAUSTION, "a file of JSON that its reader does not expect")
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_no_json_is_an_internal_error(
    content: bytes, words: list[str], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``decode_json``, which has one kind of error."""
    (work / "in.json").write_bytes(content)
    expect_no_defect(["in.json" if word == "FILE" else word for word in words], capsys)


@attack(Threat.EXHAUSTION, "a body in the recorded state that no release has written")
@pytest.mark.parametrize("words", [["status"], ["history"], ["get", "plans"], ["get", "nodeclaims"],
    ["get", "commands"], ["plan"], ["state", "check"], ["state", "export", "out.jsonl"]],
    ids=lambda words: " ".join(words[:2]))  # fmt: skip
@pytest.mark.parametrize("name", ["not UTF-8", "deep", "a huge integer", "a lone surrogate", "NaN"])
def test_no_body_of_the_state_is_an_internal_error(
    name: str, words: list[str], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards: ``decode_json``, and ``translate_errors``."""
    record(work / "kept")
    with sqlite3.connect(work / "kept" / "state.db") as state:
        state.execute("PRAGMA ignore_check_constraints = ON")
        tables = [row[0] for row in state.execute("SELECT name FROM sqlite_schema")]
        for table in tables:
            query = f"SELECT name, type FROM pragma_table_info('{table}')"
            form = dict(state.execute(query)).get("body")
            if form is not None:
                state.execute(f"UPDATE {table} SET body = CAST(? AS {form})", (CONTENTS[name],))
    state.close()
    expect_no_defect([*words, "fleet", "--state", "kept"], capsys)


@attack(Threat.EXHAUSTION, "JSON for a reader that knows one kind of error")
@pytest.mark.parametrize("content", [DEEP, b'"\xff"', b'{"\xff": 1}', b'"\\ud800"', HUGE, b"NaN"])
@pytest.mark.parametrize("kind", [object, dict[str, object], list[object], str])
def test_the_decoder_has_one_kind_of_error(kind: type[object], content: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_json(content, kind)
