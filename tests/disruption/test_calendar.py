from datetime import timedelta

from reconciler.disruption.calendar import next_decision_change
from reconciler.model.settings import Settings
from tests.disruption.builders import NOW, a_cluster, a_node, a_pod, a_pool, stamp


def _next(*objects: object, **disruption: object) -> object:
    return next_decision_change(a_cluster(*objects), [a_pool(**disruption)], Settings(), NOW)


def test_nothing_changes_in_a_fleet_without_clocks() -> None:
    assert _next(a_node("n1")) is None


def test_a_node_becomes_quiet() -> None:
    node = a_node("n1", quiet=timedelta(minutes=4))

    assert _next(node, consolidateAfter="10m") == NOW + timedelta(minutes=6)


def test_a_window_closes() -> None:
    window = {"nodes": "0", "schedule": "0 9 * * mon-fri", "duration": "8h"}

    assert _next(budgets=[window]) == NOW.replace(hour=17)


def test_the_earliest_change_is_returned() -> None:
    node = a_node("n1", quiet=timedelta(hours=1), claim={"expireAfter": "90m"})
    pod = a_pod(
        "p",
        "n1",
        metadata={"annotations": {"karpenter.sh/do-not-disrupt": "10m"}},
        status={"startTime": stamp(NOW - timedelta(minutes=7))},
    )

    assert _next(node) == NOW + timedelta(minutes=30)
    assert _next(node, pod) == NOW + timedelta(minutes=3)
