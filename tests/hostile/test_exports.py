"""Text of others in what leaves for other programs: spreadsheets and chat."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from reconciler.cli.output.sarif import render_sarif
from reconciler.inspection.costs import costs_csv, to_csv
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.grouping import Grouping
from reconciler.model.notification import NoticeKind, Webhook, WebhookFormat
from reconciler.notifications.delivery import TEXT_MAX, webhook_request
from reconciler.notifications.notices import Notice
from reconciler.observed.allocation import WorkloadCost
from reconciler.web.metrics import CallMetrics
from tests.hostile.threats import Threat, attack

FORMULAS = (
    "=1+1",
    '=HYPERLINK("https://evil.example","x")',
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-1+1",
    "-2e3",
    "--1",
    "@SUM(1)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    '"=1+1',
    'a","=1+1',
    "a\n=1+1",
    "a\r\n=1+1",
    "a\r=1+1",
    "a\x0b=1+1",
    "a\u2028=1+1",
)


def is_evaluated(cell: str) -> bool:
    """Return whether a spreadsheet takes a cell for a formula: by its first character."""
    if cell[:1] not in ("=", "+", "-", "@", "\t", "\r", "\n"):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


@attack(Threat.OUTPUT, "a name of a cluster that a spreadsheet would evaluate")
@pytest.mark.parametrize("name", FORMULAS)
def test_no_name_becomes_a_formula(name: str) -> None:
    text = to_csv([("name", name), (name, "-1.5")])
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert [len(row) for row in rows] == [2, 2]
    assert not any(is_evaluated(cell) for row in rows for cell in row)
    assert rows[0][1].removeprefix("'") == name or not name.isprintable()
    assert rows[1][1] == "-1.5"


@attack(Threat.OUTPUT, "a label of a team that a spreadsheet would evaluate, in the costs by team")
@pytest.mark.parametrize("name", FORMULAS)
def test_no_group_of_costs_becomes_a_formula(name: str) -> None:
    row = WorkloadCost(name, f"Deployment {name}", ((name, name),), 1, 10**9, 0)
    for by in (Grouping(), Grouping(by_workload=True), Grouping(name)):
        rows = list(csv.reader(io.StringIO(costs_csv(by, [row]), newline="")))
        assert len(rows) == 2
        assert not any(is_evaluated(cell) for row in rows for cell in row)


ACTIVE = (
    "<!channel>",
    "<!here|x>",
    "<@U012AB3CD>",
    "<https://evil.example|click>",
    "a\n*other: Launch failed*\nb",
    "a\r\nb",
    "\x1b[2J",
    "\u202e<!channel>",
    "x" * 100_000,
)
NOTICE = Notice(
    "shop/1", datetime(2026, 3, 3, tzinfo=UTC), NoticeKind.FAILED, "shop", "Failed", "text", "web",
    "4f2c9e1a",
)  # fmt: skip


@attack(Threat.OUTPUT, "a mention, link or second message in what a webhook sends")
@pytest.mark.parametrize("text", ACTIVE, ids=lambda text: ascii(text)[:30])
@pytest.mark.parametrize("field", ["fleet", "title", "text", "node_pool", "revision"])
def test_no_field_of_a_notice_is_active_in_a_message(field: str, text: str) -> None:
    notice = replace(NOTICE, **{field: text})  # type: ignore[arg-type]
    for template in ("", "$kind $fleet $title $text $node_pool $revision"):
        request = webhook_request(notice, Webhook("URL", template=template), "", NOTICE.at)
        shown = json.loads(request.body)["text"]
        assert len(shown) <= TEXT_MAX
        assert not set("<>\x1b\r\u202e") & set(shown)
        assert shown.count("\n") <= (template == "")
    body = webhook_request(notice, Webhook("URL", WebhookFormat.JSON), "", NOTICE.at).body
    assert json.loads(body)["kind"] == "Notice"
    assert b"\n" not in body


@attack(Threat.OUTPUT, "a value that is a link in the messages of a code-scanning service")
@pytest.mark.parametrize("text", ["[x](https://evil.example)", "[x](0)", r"[x\](y)", "a]()(b](c"])
def test_no_message_of_a_finding_contains_a_link(text: str) -> None:
    finding = Diagnostic(Severity.ERROR, "unknown-field", text, None, path=text, hint=text)
    (result,) = json.loads(render_sarif([finding]))["runs"][0]["results"]
    assert "](" not in result["message"]["text"]
    assert "evil.example" in result["message"]["text"] or "evil" not in text


@attack(Threat.OUTPUT, "a name in a label of a metric that begins a line of its own")
@pytest.mark.parametrize(
    "text", ['x"} 1\nreconciler_evil 5\n', "\\", "a\r\n# EOF", "\u2028b 1", "{"]
)
def test_no_label_of_a_metric_begins_a_line(text: str) -> None:
    registry = CollectorRegistry()
    CallMetrics(registry).record_call(text, text, text, 1)
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    samples = [sample for family in families for sample in family.samples]
    assert {
        sample.name.removeprefix("reconciler_api_call").split("_")[0] for sample in samples
    } == {"s", ""}
    assert {sample.labels["operation"] for sample in samples} == {text}
