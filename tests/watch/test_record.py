"""Predictions and their scores are in the recorded state, also after the process was killed."""

from __future__ import annotations

from pathlib import Path

from reconciler.model.karpenter.prediction import KarpenterAction, KarpenterActionKind, Prediction
from reconciler.watch.scoring import score_action
from tests.states import open_state
from tests.watch.claims import START, after, command, node


def test_predictions_are_numbered_and_read_back(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state:
        first = state.predictions.record(Prediction(START, (node(),)))
        second = state.predictions.record(Prediction(after(5), (), (command("Empty", "n"),)))
    assert (first.sequence, second.sequence) == (1, 2)
    with open_state(str(tmp_path), "web") as state:
        assert state.predictions.predictions(START) == [first, second]
        assert state.predictions.predictions(after(1)) == [second]


def test_scores_are_read_back_in_order_and_old_ones_are_forgotten(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state:
        made = state.predictions.record(Prediction(START, (node(),), (command("Empty", "n"),)))
        scores = [
            score_action(KarpenterAction(after(1), KarpenterActionKind.LAUNCH, (node(),)), made),
            score_action(
                KarpenterAction(after(9), KarpenterActionKind.COMMAND, (), command("Empty", "n")),
                made,
            ),
        ]
        state.predictions.score(scores)
        assert state.predictions.scores(START) == scores
        state.predictions.forget(after(5))
        assert state.predictions.scores(START) == scores[1:]
        assert state.predictions.predictions(START) == []


def test_fleets_of_one_state_have_their_own_record(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state:
        state.predictions.record(Prediction(START, (node(),)))
    with open_state(str(tmp_path), "db") as state:
        assert state.predictions.predictions(START) == []
        assert state.predictions.record(Prediction(START)).sequence == 1
