"""A fleet is accepted or rejected as the API server of Karpenter 1.14 does it."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.cases import FOLDER, Answer, check_complete, parameters, run_json


def accepted(result: Any) -> None:
    assert result["valid"], result["diagnostics"]


def rejected_at(path: str, *words: str) -> Answer:
    """Return a check that the only error is at that field, and that it mentions the words."""

    def check(result: Any) -> None:
        assert not result["valid"]
        (error,) = [d for d in result["diagnostics"] if d["severity"] == "error"]
        assert error["path"] == path
        assert all(word in error["message"] for word in words), error["message"]

    return check


ANSWERS: Final[dict[str, Answer]] = {
    "budget-default": accepted,
    "kubelet-typo": rejected_at("spec.kubelet.systemReserved.memory", "100MiB"),
    "no-consolidate-after": rejected_at("spec.disruption.consolidateAfter"),
}
OPEN: Final[frozenset[str]] = frozenset()


def test_every_case_is_answered() -> None:
    check_complete("validation", ANSWERS)


@pytest.mark.parametrize("case", parameters("validation", ANSWERS, OPEN))
def test_a_fleet_is_validated_as_the_api_server_does_it(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, result, _ = run_json(capsys, "validate", str(FOLDER / "validation" / case))
    ANSWERS[case](result)
