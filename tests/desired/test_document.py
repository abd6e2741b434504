"""YAML as Kubernetes reads it, with places; and any bytes at all, within bounds (law 8)."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ruamel.yaml
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml.error import YAMLError

from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.source.document import Document, FileLimits, parse_documents
from reconciler.source.yamlevents import yaml_parser
from tests.examples import examples

FEW = FileLimits(nodes_max=500, expanded_max=500, aliases_max=50, depth_max=20, documents_max=20)


def only(text: str) -> Document:
    documents, findings = parse_documents("f.yaml", text.encode())
    assert findings == []
    (document,) = documents
    return document


def codes(text: str | bytes, limits: FileLimits = FEW) -> list[str]:
    content = text if isinstance(text, bytes) else text.encode()
    return [d.code for d in parse_documents("f.yaml", content, limits)[1]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1_000", 1000),
        ("017", 15),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b101", 5),
        ("-5", -5),
        ("+5", 5),
        ("08", 8),
        ("1.0", 1),
        ("1.5", 1.5),
        ("1e3", 1000),
        (".5", 0.5),
        ("1e-1", 0.1),
        ("18446744073709551615", 2**64 - 1),
        ("9" * 400, "9" * 400),
        ("-9223372036854775808", -(2**63)),
        ("yes", True),
        ("on", True),
        ("y", True),
        ("OFF", False),
        ("n", False),
        ("True", True),
        ("tRue", "tRue"),
        ("~", None),
        ("null", None),
        ("", None),
        ("12:30:45", "12:30:45"),
        ("2024-01-02", "2024-01-02"),
        ("1.2.3", "1.2.3"),
        ("10%", "10%"),
        ("100m", "100m"),
        ("'1'", "1"),
        ('"on"', "on"),
        ("!!str 1", "1"),
        ("! 1", "1"),
        ("!!int '7'", 7),
        ("!!bool on", True),
        ("!!float 3", 3),
        ("!!null ''", None),
        ("0_8", 8),
        ("1__0", 10),
    ],
)
def test_a_scalar_has_the_type_that_kubernetes_reads(text: str, value: Any) -> None:
    read = only(f"a: {text}\n").data["a"]

    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("key", "text"), [("1", "1"), ("on", "true"), ("1.5", "1.5"), ("0x10", "16")]
)
def test_a_key_becomes_text(key: str, text: str) -> None:
    assert list(only(f"{key}: a").data) == [text]


def test_explicit_keys_override_merge_keys() -> None:
    text = "a: &a {x: 1, k: 1}\nb: &b {k: 2, z: 2}\nc:\n  k: 3\n  <<: [*a, *b]\n"

    assert only(text).data["c"] == {"k": 3, "x": 1, "z": 2}


def test_every_key_and_value_has_its_position() -> None:
    document = only("# comment\na:\n  - b: 1\n    c: {d: é, e: x}\n")

    assert str(document.place(("a", 0, "b"))) == "f.yaml:3:8"
    assert str(document.place(("a", 0, "b"), of_key=True)) == "f.yaml:3:5"
    assert str(document.place(("a", 0, "c", "e"))) == "f.yaml:4:18"
    assert str(document.place(("a", 0, "c", "missing"))) == "f.yaml:4:5"
    assert str(document.place(("a", 5))) == "f.yaml:2:1"


def test_json_is_read_with_positions_too() -> None:
    document = only(json.dumps({"a": [1, "x\u00e9\n", None, True, {"b": -1.5e2}]}, indent=2))

    assert document.data == {"a": [1, "x\u00e9\n", None, True, {"b": -150}]}
    assert str(document.place(("a", 1))) == "f.yaml:4:5"


@pytest.mark.parametrize("text", ["\U0001f600", "\\ud83d\\ude00", "a\\\U0001f600\U0010ffff"])
def test_json_escapes_beyond_16_bits_are_read(text: str) -> None:
    assert only(json.dumps({"a": text})).data == {"a": text}


def test_documents_before_a_syntax_error_are_read() -> None:
    documents, findings = parse_documents("f.yaml", b"a: 1\n---\n---\nb: 2\n---\nc: [")

    assert [d.data for d in documents] == [{"a": 1}, {"b": 2}]
    assert [(d.code, str(d.place)) for d in findings] == [("syntax", "f.yaml:6:5")]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"a: \0", "binary-file"),
        (b"a: \xff", "not-utf8"),
        ("a: b".encode("utf-16"), "not-utf8"),
        (b"a: \x07", "syntax"),
        (b"[" * 100_000, "too-deep"),
        (b"- " * 100_000, "too-deep"),
        (b"{a: " * 100_000, "too-deep"),
        (b"- a\n" * 1000, "too-large"),
        (b"---\na\n" * 100, "too-large"),
        (b"a" * (4 * 2**20 + 1), "too-large"),
        (b"&a [*a]", "recursive-alias"),
        (b"a: *b", "unknown-anchor"),
        (b"a: &a [1]\nb: [" + b"*a, " * 60 + b"]", "alias-bomb"),
        (b"- &a {x: 1}\n- {<<: 5}", "bad-merge"),
        (b"a: !!binary aGk=", "unsupported-tag"),
        (b"a: !!int x", "bad-tag"),
        (b"{a: 1, a: 2}", "duplicate-key"),
    ],
)
def test_unreadable_input_is_a_finding(content: bytes, code: str) -> None:
    assert codes(content) == [code]


def test_an_alias_bomb_is_rejected_before_expansion() -> None:
    levels = [
        f"{chr(97 + i)}: &{chr(97 + i)} [{','.join(['*' + chr(96 + i)] * 9)}]" for i in range(1, 9)
    ]
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(levels)
    start = time.process_time()

    found = codes(bomb, FileLimits())

    assert found == ["alias-bomb"]
    assert time.process_time() - start < 1


def test_both_positions_of_a_duplicate_key_are_reported() -> None:
    _, (finding,) = parse_documents("f.yaml", b"a: 1\nb: 2\na: 3\n")

    assert (finding.place.line, finding.place.column) == (3, 1)  # type: ignore[union-attr]
    assert "line 1, column 1" in finding.message


def test_objects_without_a_separator_are_one_finding_each() -> None:
    one = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n"
    _, found = parse_documents("pool.yaml", (one * 3).encode(), FEW)
    message = "another object begins here, without a line --- before it"
    assert [(f.place and f.place.line, f.message) for f in found] == [(4, message), (7, message)]
    _, found = parse_documents("pool.yaml", f"{one}spec: {{}}\nmetadata: {{}}\n".encode(), FEW)
    assert ["first defined at line 3, column 1" in f.message for f in found] == [True]


def inside(text: str, line: int, column: int) -> bool:
    lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", text)
    return 1 <= line <= len(lines) and 1 <= column <= max(map(len, lines)) + 2


def check_law_8(content: bytes) -> None:
    fleet, diagnostics = read_fleet([SourceFile("f.yaml", content)])

    assert fleet.node_pools == () or not any(d.code == "empty-fleet" for d in diagnostics)
    text = content.decode("utf-8", errors="replace")
    for diagnostic in diagnostics:
        assert diagnostic.message
        if diagnostic.place is not None:
            assert inside(text, diagnostic.place.line, diagnostic.place.column), diagnostic


@settings(max_examples=examples(600), deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=300))
@example(b"\xef\xbb\xbf")
@example(b"\xef\xbb\xbf\xff")
@example(b"a: [\n\n\n")
def test_any_bytes_give_a_fleet_or_findings_within_the_text(content: bytes) -> None:
    check_law_8(content)


@settings(max_examples=examples(600), deadline=None, derandomize=True, database=None)
@given(st.text(alphabet=":-[]{}&*!|>'\"%@#?,~<\n\t aé1\u2028\x85\r", max_size=60))
def test_any_yaml_punctuation_gives_a_fleet_or_findings_within_the_text(text: str) -> None:
    check_law_8(text.encode())


SAMPLE = (Path(__file__).parent / "fleet.yaml").read_bytes()


@settings(max_examples=examples(600), deadline=None, derandomize=True, database=None)
@given(st.data())
def test_a_damaged_fleet_gives_findings_within_the_text(data: st.DataObject) -> None:
    content = bytearray(SAMPLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        length = data.draw(st.integers(0, 8))
        new = data.draw(
            st.sampled_from([b"", b"[", b"}", b": ", b"\n", b"&a ", b"*a", b"5", b"~", b"- "])
        )
        content[at : at + length] = new
    check_law_8(bytes(content))


FLOW = [
    "a: [nginx:1.25, --url=http://x:80/?a=b&c=d, what?, fe80::1]",
    "{a: !!str b:c, 'd': e:f, \"g\":h, i?: j}",
    "a: {b: 'c:d?', e: \"\\u00e9:f\"} # why? a:b",
    "- !<tag:yaml.org,2002:str> a:b\n- [c:d\n  e?f]\n",
    "? a:b\n: [c:d]\n",
    "a: |\n  b:c?\n  %YAML 1.2\n",
    "%YAML 1.2\n---\na: [b:c]\n",
    "\ue000: [\ue001:b]",
    "[a:b, c: d:e, f:]",
    "{a:1}",
]


NEEDS_LIBYAML = pytest.mark.skipif(
    not (yaml.__with_libyaml__ and ruamel.yaml.__with_libyaml__),
    reason="a package of YAML has no C parser for this Python",
)


@NEEDS_LIBYAML
@pytest.mark.parametrize("text", FLOW)
def test_colons_and_question_marks_within_words_are_read_as_kubernetes_does(text: str) -> None:
    """The C parser by itself refuses or misreads them; PyYAML has the libyaml that does not."""
    assert events_of(yaml_parser(text)) == events_of(yaml.cyaml.CParser(text))


@NEEDS_LIBYAML
@settings(max_examples=examples(600), deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from([*"[]{},:?!&*'\"- \n#%|", "a", "b:c", "d?", ": ", "---\n"])))
def test_any_text_is_read_as_the_newer_libyaml_reads_it(marks: list[str]) -> None:
    text = "".join(marks)
    wanted = events_of(yaml.cyaml.CParser(text))

    assert events_of(yaml_parser(text)) == wanted or wanted is None


def events_of(parser: Any) -> list[Any] | None:
    """Return what each event says, and where; None for what is not YAML."""
    found = []
    try:
        while type(event := parser.get_event()).__name__ != "StreamEndEvent":
            attributes = [
                getattr(event, name, None) for name in ("value", "tag", "anchor", "implicit")
            ]
            mark = event.start_mark
            found.append((type(event).__name__, attributes, mark.line, mark.column))
    except (yaml.YAMLError, YAMLError):
        return None
    return found


def test_without_the_c_parser_the_same_is_read_within_the_same_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examples = Path(__file__).parents[2] / "examples"
    texts = [f.read_bytes() for f in sorted(examples.rglob("*.yaml"))[:8]]
    before = [parse_documents("f.yaml", text) for text in texts]
    monkeypatch.setitem(sys.modules, "ruamel.yaml.cyaml", None)

    assert [parse_documents("f.yaml", text) for text in texts] == before
    assert type(yaml_parser("a: 1")).__module__ == "ruamel.yaml.parser"
    assert codes(b"[" * 10_000) == codes(b"- " * 10_000) == ["too-deep"]
    assert codes(b"- a\n" * 1000) == ["too-large"]
    assert codes(b"a: &a [1]\nb: [" + b"*a, " * 60 + b"]") == ["alias-bomb"]
    assert codes(b"a: {b") == ["syntax"]
