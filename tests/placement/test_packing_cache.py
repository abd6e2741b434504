"""What packing keeps of a catalog: computed once, bounded, and separate for each catalog."""

from __future__ import annotations

from reconciler.placement.packing.market import AnswerCache


def test_an_equal_question_is_answered_once() -> None:
    known: AnswerCache[int] = AnswerCache()
    requested: list[str] = []
    for question in ("a", "b", "a"):
        known.get_or_compute(question, lambda: requested.append("computed") or len(requested))
    assert len(requested) == 2
    assert known.get_or_compute("a", lambda: 9) == 1


def test_answers_are_forgotten_before_they_are_too_many() -> None:
    known: AnswerCache[int] = AnswerCache(size_max=3)
    for number in range(10):
        known.get_or_compute(number, lambda: number)  # noqa: B023 - called at once
    assert len(known) <= 3
