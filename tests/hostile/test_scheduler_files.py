"""A KubeSchedulerConfiguration of a stranger: any value is a finding or is read."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from reconciler.desired.settings.layers import resolve
from reconciler.model.errors import UsageError
from tests.hostile.threats import Threat, attack

TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
FILE: dict[str, Any] = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "percentageOfNodesToScore": 20,
    "extenders": [],
    "profiles": [
        {
            "schedulerName": "batch",
            "percentageOfNodesToScore": 100,
            "plugins": {
                "multiPoint": {"enabled": [{"name": "ImageLocality", "weight": 2}]},
                "score": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeAffinity"}]},
                "filter": {"disabled": [{"name": "TaintToleration"}]},
            },
            "pluginConfig": [
                {
                    "name": "PodTopologySpread",
                    "args": {
                        "defaultingType": "List",
                        "defaultConstraints": [
                            {
                                "maxSkew": 1,
                                "topologyKey": "zone",
                                "whenUnsatisfiable": "ScheduleAnyway",
                            }
                        ],
                    },
                },
                {
                    "name": "NodeResourcesFit",
                    "args": {
                        "scoringStrategy": {
                            "type": "RequestedToCapacityRatio",
                            "resources": [{"name": "cpu", "weight": 1}],
                            "requestedToCapacityRatio": {
                                "shape": [
                                    {"utilization": 0, "score": 0},
                                    {"utilization": 100, "score": 10},
                                ]
                            },
                        }
                    },
                },
                {"name": "InterPodAffinity", "args": {"hardPodAffinityWeight": 5}},
                {
                    "name": "NodeAffinity",
                    "args": {
                        "addedAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {
                                "nodeSelectorTerms": [TERM]
                            }
                        }
                    },
                },
            ],
        }
    ],
}
ODD: dict[str, Any] = {
    "nothing": None, "true": True, "a text": "\x1b[31m::error::x", "a list": [[]], "a number": 7,
    "a mapping": {"a": {"b": []}}, "a negative number": -1, "a fraction": 0.5,
    "more than 64 bits": 10**30, "more digits than Python prints": 10**5000,
    "not a number": float("nan"), "infinite": float("inf"), "a long text": "x" * 100_000,
    "a key that is a number": {1: 2}, "many": [{"name": "*"}] * 1_000,
}  # fmt: skip


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value, however deep."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, (*path, number))


def changed(path: tuple[Any, ...], odd: object) -> object:
    if not path:
        return odd
    data = copy.deepcopy(FILE)
    at: Any = data
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = odd
    return data


@attack(Threat.EXHAUSTION, "an odd value anywhere in a KubeSchedulerConfiguration")
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_odd_scheduler_configuration_is_read_or_refused_in_one_line(odd: object) -> None:
    """Guard: ``_Part``, whose methods check the type and range of each value."""
    messages = [message for path in places(FILE) if (message := refusal(changed(path, odd)))]
    assert len(messages) > 5
    assert max(map(len, messages)) < 1_000
    assert "\x1b" not in "".join(messages)


def refusal(data: object) -> str:
    """Return the error of a configuration, an empty text if it is read."""
    try:
        resolve({"kubeScheduler": data}, {})
    except UsageError as error:
        return str(error)
    return ""


def test_the_file_of_the_attack_is_valid() -> None:
    assert "batch" in resolve({"kubeScheduler": FILE}, {}).settings.kube_scheduler.profiles
