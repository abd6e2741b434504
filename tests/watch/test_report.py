"""The report has the share of right predictions, the money, and each one that was wrong."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconciler.model.errors import UnreadableError
from reconciler.model.karpenter.prediction import (
    KarpenterAction,
    KarpenterActionKind,
    NodeFacts,
    Prediction,
    PredictionVerdict,
    Score,
)
from reconciler.watch.episodes.file import decode_episode
from reconciler.watch.page import render_html
from reconciler.watch.report import render_report, report_of
from reconciler.watch.scoring import score_action
from tests.watch.claims import START, after, command, node


def launched(at: float, expected: NodeFacts, actual: NodeFacts) -> Score:
    action = KarpenterAction(after(at), KarpenterActionKind.LAUNCH, (actual,))
    return score_action(action, Prediction(START, (expected,), (), 3))


SCORES = [
    launched(1, node(), node()),
    launched(2, node(), node(zone="b")),
    launched(3, node(), node("m5.xlarge")),
    launched(4, node("x", price=None), node("x", price=None)),
    score_action(
        KarpenterAction(after(5), KarpenterActionKind.COMMAND, (), command("Empty", "n1")),
        Prediction(START, (), (command("Empty", "n1"),), 4),
    ),
]


def test_the_report_as_text() -> None:
    assert render_report(report_of(SCORES, START)) == (
        "What Karpenter did since 2026-03-02 09:00 UTC, and what was predicted:\n"
        "\n"
        "  4 launches: 75.0% exact or tied (2 exact, 1 tie, 0 equivalent, 1 wrong)\n"
        "    nodes for $0.3840/hour, predicted $0.2880/hour; 1 without a price\n"
        "  1 command: 100.0% exact or tied (1 exact, 0 tie, 0 equivalent, 0 wrong)\n"
        "    saved $0.0960/hour, predicted $0.0960/hour\n"
        "\n"
        "1 wrong prediction:\n"
        "  2026-03-02 09:00:03 UTC  wrong: launched 1 × m5.xlarge ($0.1920/hour)\n"
        "    instance type m5.large predicted, m5.xlarge launched\n"
    )


def test_the_page_has_the_shares_the_money_and_each_wrong_prediction_with_its_cause() -> None:
    scores = [*SCORES, replace(SCORES[2], cause="<b>&", episode="misses/a b.json.gz")]
    text = render_html(report_of(scores, START))
    assert "Since 2026-03-02 09:00 UTC" in text
    assert "5 launches: 60.0% exact or tied" in text
    assert text.count("launched 1\xa0×\xa0m5.xlarge ($0.1920/hour)") == 2
    assert "instance type m5.large predicted, m5.xlarge launched" in text
    assert "<code>reconciler watch replay misses/a b.json.gz</code>" in text
    assert "&lt;b&gt;&amp;" in text
    assert "<b>&" not in text
    assert "Content-Security-Policy" in text


def test_the_page_of_a_report_on_nothing_has_no_tables() -> None:
    text = render_html(report_of([], START))
    assert "Karpenter has done nothing since 2026-03-02 09:00 UTC that was predicted." in text
    assert "<table" not in text


def test_shares_add_up_to_all_actions() -> None:
    for kind in report_of(SCORES).kinds:
        assert kind.share(*PredictionVerdict) == 1.0


def test_a_report_on_nothing_says_so() -> None:
    text = render_report(report_of([], START))
    assert text == "Karpenter has done nothing since 2026-03-02 09:00 UTC that was predicted.\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"now": 1}',
        b"\x1f\x8bcut",
        b'{"now":"x","pools":[],"log":[],"created":[],"before":[],"snapshot":{"items":[]}}',
    ],
)
def test_a_file_that_is_no_episode_is_an_error_with_its_name(content: bytes) -> None:
    with pytest.raises(UnreadableError) as caught:
        decode_episode(content, "miss.json.gz")
    assert caught.value.where == "miss.json.gz"
