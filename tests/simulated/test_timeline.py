"""What a simulation says of a merge, in one sentence."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from reconciler.simulate.report import Merge, Replaced
from reconciler.simulate.timeline import merge_sentence

AT = datetime(2026, 3, 2, 12, tzinfo=UTC)


def merge(replaced: int, kept: int, after: float) -> Merge:
    nodes = tuple(
        Replaced(
            node_claim=f"web-{n}", node_pool="web", node="", reason="Drifted", command="",
            started_at=AT, gone_at=AT, replacements=(),
        )
        for n in range(replaced)
    )  # fmt: skip
    return Merge(
        base="aaa", head="bbb", base_converged=True, before=1.0, after=after, extra=0.5, kept=kept,
        replaced=nodes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "nodes", "cost"),
    [
        (merge(1, 0, 1.25), "1 of 1 node is replaced.", "$182/month more ($0.25/hour)"),
        (merge(2, 1, 0.75), "2 of 3 nodes are replaced.", "$182/month less ($0.25/hour)"),
        (merge(0, 3, 1.0), "no node is replaced.", "the same"),
    ],
)
def test_a_merge_is_one_count_and_two_amounts(found: Merge, nodes: str, cost: str) -> None:
    assert merge_sentence(found, UNSET) == (
        f"{nodes} After the rollout, the fleet costs {cost}. The rollout itself costs $0.50."
    )


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (0.5, "The rollout itself costs $0.50."),
        (-0.5, "The rollout itself saves $0.50."),
        (-0.00001, "The rollout itself costs nothing."),
    ],
)
def test_the_cost_of_a_rollout_has_a_verb_in_place_of_a_sign(extra: float, sentence: str) -> None:
    assert merge_sentence(replace(merge(0, 3, 1.0), extra=extra), UNSET).endswith(sentence)
