"""A prediction is exact, a tie, equivalent, or wrong for a stated cause."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.karpenter.prediction import CommandFacts, NodeFacts, PredictionVerdict
from reconciler.watch.scoring import compare_command, compare_launches
from tests.examples import examples
from tests.watch.claims import command, node

LARGE, OTHER_ZONE, XLARGE, CHEAP = node(), node(zone="b"), node("m5.xlarge"), node("c5.large")


@pytest.mark.parametrize(
    ("expected", "actual", "verdict", "cause"),
    [
        ([LARGE, XLARGE], [XLARGE, LARGE], PredictionVerdict.EXACT, ""),
        ([LARGE], [OTHER_ZONE], PredictionVerdict.TIE, "zone a predicted, b launched"),
        (
            [node("x", price=1.000)],
            [node("y", price=1.009)],
            PredictionVerdict.EQUIVALENT,
            "instance type x predicted, y launched",
        ),
        (
            [LARGE],
            [XLARGE],
            PredictionVerdict.WRONG,
            "instance type m5.large predicted, m5.xlarge launched",
        ),
        ([LARGE], [LARGE, LARGE], PredictionVerdict.WRONG, "1 node predicted, 2 launched"),
        ([], [LARGE], PredictionVerdict.WRONG, "no launch was predicted"),
        (
            [node("x", price=None)],
            [node("y", price=None)],
            PredictionVerdict.WRONG,
            "instance type x predicted, y launched; prices are unknown",
        ),
        # the same price, but of another NodePool: not a choice at random
        (
            [node("x", price=1.0), node("x", price=0.1, pool="db")],
            [node("x", price=1.0, pool="db"), node("x", price=0.1)],
            PredictionVerdict.EQUIVALENT,
            "the same values in other combinations",
        ),
    ],
)
def test_launches(
    expected: list[NodeFacts], actual: list[NodeFacts], verdict: PredictionVerdict, cause: str
) -> None:
    found = compare_launches(expected, actual)
    if verdict is PredictionVerdict.EQUIVALENT and cause.startswith("the same"):
        assert found.verdict in (PredictionVerdict.EXACT, PredictionVerdict.EQUIVALENT)
        return
    assert (found.verdict, found.cause) == (verdict, cause)


@pytest.mark.parametrize(
    ("expected", "actual", "verdict", "cause"),
    [
        (
            command("Underutilized", "n1", "n2", replaced_by=(LARGE,)),
            command("Underutilized", "n2", "n1", replaced_by=(XLARGE,)),
            PredictionVerdict.EXACT,
            "",
        ),
        (
            command("Underutilized", "n1"),
            command("Underutilized", "n2"),
            PredictionVerdict.TIE,
            "other nodes were selected, which are alike",
        ),
        (
            command("Underutilized", "n1", kind="m5.xlarge"),
            command("Underutilized", "n2"),
            PredictionVerdict.WRONG,
            "other nodes were selected",
        ),
        (
            command("Underutilized", "n1", "n2"),
            command("Underutilized", "n1", replaced_by=(LARGE,)),
            PredictionVerdict.WRONG,
            "2 nodes removed predicted, 1 node replaced by 1 done",
        ),
        (
            command("Drifted", "n1"),
            command("Underutilized", "n1"),
            PredictionVerdict.WRONG,
            "Drifted predicted, not Underutilized",
        ),
        (command("Empty", "n1", "n2", "n3"), command("Empty", "n2"), PredictionVerdict.EXACT, ""),
        (command("Empty", "n1"), command("Empty", "n1", "n2"), PredictionVerdict.WRONG, None),
        (
            command("Drifted", "n1", replaced_by=(LARGE,)),
            command("Drifted", "n1", "n2", replaced_by=(LARGE, LARGE)),
            PredictionVerdict.EXACT,
            "",
        ),
    ],
)
def test_commands(
    expected: CommandFacts, actual: CommandFacts, verdict: PredictionVerdict, cause: str | None
) -> None:
    found = compare_command([expected], actual)
    assert found.verdict is verdict
    assert cause is None or found.cause == cause


def test_no_predicted_command_is_wrong_and_the_best_of_several_counts() -> None:
    done = command("Underutilized", "n1")
    assert compare_command([], done).cause == "no command predicted, not Underutilized"
    others = [command("Underutilized", "n3", "n4"), command("Underutilized", "n2")]
    assert compare_command(others, done).verdict is PredictionVerdict.TIE


NODES = st.builds(
    node, st.sampled_from(["m5.large", "m5.xlarge", "c5.large"]), st.sampled_from(["a", "b"])
)


@settings(max_examples=examples(60))
@given(st.lists(NODES, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_launches_does_not_count(nodes: list[NodeFacts], random: object) -> None:
    shuffled = list(nodes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert compare_launches(nodes, shuffled).verdict is PredictionVerdict.EXACT


@settings(max_examples=examples(60))
@given(st.lists(NODES, max_size=5), st.lists(NODES, max_size=5))
def test_a_verdict_does_not_depend_on_who_was_first(
    ours: list[NodeFacts], theirs: list[NodeFacts]
) -> None:
    there, back = compare_launches(ours, theirs), compare_launches(theirs, ours)
    assert there.verdict is back.verdict
