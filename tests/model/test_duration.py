"""A duration of the settings: a timedelta that remembers how it was written."""

import copy
import pickle
from datetime import timedelta

import pytest

from reconciler.model.duration import Duration


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("90m", timedelta(hours=1, minutes=30)),
        ("30d", timedelta(days=30)),
        ("1d12h", timedelta(hours=36)),
        ("1500ms", timedelta(seconds=1.5)),
        ("-2m", timedelta(minutes=-2)),
    ],
)
def test_a_duration_equals_its_span_and_shows_its_text(text: str, length: timedelta) -> None:
    duration = Duration(text)
    assert duration == length
    assert str(duration) == f"{duration}" == text


def test_the_result_of_a_calculation_is_a_plain_timedelta() -> None:
    assert type(Duration("1h") + Duration("30m")) is timedelta
    assert str(2 * Duration("1h")) == "2:00:00"


def test_a_copy_shows_the_same_text() -> None:
    duration = Duration("90m")
    for made in (copy.deepcopy(duration), pickle.loads(pickle.dumps(duration))):
        assert (made, str(made)) == (duration, "90m")


def test_an_invalid_duration_is_rejected() -> None:
    with pytest.raises(ValueError, match='invalid duration "soon"'):
        Duration("soon")
