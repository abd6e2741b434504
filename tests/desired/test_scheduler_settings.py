"""A KubeSchedulerConfiguration in reconciler.yaml has the meaning that kube-scheduler gives it."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.desired.settings.layers import resolve
from reconciler.model.errors import UsageError
from reconciler.model.kubernetes.pod import TopologySpreadConstraint
from reconciler.model.kubernetes.profile import (
    DEFAULT_PROFILE,
    DEFAULT_WEIGHTS,
    Plugin,
    Profile,
    ScoringStrategy,
    Strategy,
)
from reconciler.model.settings import Settings

ZONE = "topology.kubernetes.io/zone"


def settings_with(**fields: Any) -> Settings:
    return resolve({"kubeScheduler": fields}, {}).settings


def profile_with(**fields: Any) -> Profile:
    (profile,) = settings_with(profiles=[fields]).kube_scheduler.profiles.values()
    return profile


def configured(plugin: str, **args: Any) -> Profile:
    return profile_with(pluginConfig=[{"name": plugin, "args": args}])


def weights(**plugins: Any) -> dict[str, int]:
    return dict(profile_with(plugins=plugins).weights)


def names(*plugins: str) -> list[dict[str, str]]:
    return [{"name": name} for name in plugins]


def test_what_a_profile_does_not_mention_has_the_default_of_kube_scheduler() -> None:
    assert settings_with().kube_scheduler.profiles == {"default-scheduler": DEFAULT_PROFILE}
    assert profile_with() == profile_with(schedulerName="mine") == DEFAULT_PROFILE
    assert resolve({}, {}).settings.kube_scheduler.profiles == {}


DEFAULTS = dict(DEFAULT_WEIGHTS)


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        pytest.param(
            {"score": {"enabled": [{"name": "NodeResourcesFit", "weight": 5}]}},
            {**DEFAULTS, Plugin.NODE_RESOURCES_FIT: 5},
            id="another weight",
        ),
        pytest.param(
            {"multiPoint": {"enabled": [{"name": "NodeResourcesFit", "weight": 5}]}},
            {**DEFAULTS, Plugin.NODE_RESOURCES_FIT: 5},
            id="another weight everywhere",
        ),
        pytest.param(
            {"score": {"enabled": names("TaintToleration")}},
            {**DEFAULTS, Plugin.TAINT_TOLERATION: 1},
            id="no weight is one",
        ),
        pytest.param(
            {"score": {"disabled": names("*"), "enabled": names("NodeResourcesFit")}},
            {Plugin.NODE_RESOURCES_FIT: 1},
            id="one plugin only",
        ),
        pytest.param(
            {"multiPoint": {"disabled": names("PodTopologySpread")}},
            {p: w for p, w in DEFAULTS.items() if p != Plugin.POD_TOPOLOGY_SPREAD},
            id="disabled everywhere",
        ),
        pytest.param(
            {
                "multiPoint": {"enabled": [{"name": "NodeAffinity", "weight": 9}]},
                "score": {"enabled": [{"name": "NodeAffinity", "weight": 4}]},
            },
            {**DEFAULTS, Plugin.NODE_AFFINITY: 4},
            id="the extension point takes precedence",
        ),
    ],
)
def test_weights_follow_the_plugins_that_are_enabled(
    plugins: dict[str, Any], expected: dict[str, int]
) -> None:
    assert weights(**plugins) == expected


def test_filters_and_preemption_can_be_disabled() -> None:
    plugins = {
        "filter": {"disabled": names("NodePorts")},
        "postFilter": {"disabled": names("*")},
    }
    disabled = profile_with(plugins=plugins).disabled
    assert disabled == {Plugin.NODE_PORTS, Plugin.DEFAULT_PREEMPTION}
    everywhere = profile_with(plugins={"multiPoint": {"disabled": names("DefaultPreemption")}})
    assert everywhere.disabled == {Plugin.DEFAULT_PREEMPTION}
    scoring = profile_with(plugins={"score": {"disabled": names("NodeResourcesFit")}})
    assert not scoring.disabled, "its filter stays"


def test_the_strategy_of_node_resources_fit_is_read() -> None:
    most = configured("NodeResourcesFit", scoringStrategy={"type": "MostAllocated"})
    assert most.scoring == ScoringStrategy(Strategy.MOST_ALLOCATED)
    strategy = {
        "type": "RequestedToCapacityRatio",
        "resources": [{"name": "cpu", "weight": 3}, {"name": "gpu.example/x"}],
        "requestedToCapacityRatio": {
            "shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]
        },
    }
    assert configured("NodeResourcesFit", scoringStrategy=strategy).scoring == ScoringStrategy(
        Strategy.REQUESTED_TO_CAPACITY_RATIO,
        (("cpu", 3), ("gpu.example/x", 1)),
        ((0, 0), (100, 10)),
    )
    ignoring = configured("NodeResourcesFit", ignoredResourceGroups=["example.com"])
    assert ignoring.ignored_resource_groups == {"example.com"}


RULE = {"topologyKey": ZONE, "maxSkew": 2, "whenUnsatisfiable": "ScheduleAnyway"}


def test_default_constraints_apply_to_simulations_and_to_the_planner() -> None:
    args = {"defaultingType": "List", "defaultConstraints": [RULE]}
    config = {"profiles": [{"pluginConfig": [{"name": "PodTopologySpread", "args": args}]}]}
    found = settings_with(**config)
    (profile,) = found.kube_scheduler.profiles.values()
    assert profile.spread == (TopologySpreadConstraint(ZONE, 2, "ScheduleAnyway"),)
    assert found.default_constraints == (TopologySpreadConstraint(ZONE, 2, "ScheduleAnyway"),)
    own = {"podTopologySpread": {"defaultConstraints": [{**RULE, "maxSkew": 7}]}}
    both = resolve({"kubeScheduler": config, **own}, {}).settings
    assert both.default_constraints[0].max_skew == 7, "what is written takes precedence"
    none = configured("PodTopologySpread", defaultingType="List")
    assert none.spread == (), "an empty list is not the system's default"


def test_the_simulated_scheduler_has_the_default_constraints_of_the_planner() -> None:
    own = {"podTopologySpread": {"defaultConstraints": [RULE]}}
    rule = TopologySpreadConstraint(ZONE, 2, "ScheduleAnyway")
    assert resolve(own, {}).settings.scheduler_profiles["default-scheduler"].spread == (rule,)
    pinned = {"plugins": {"score": {"disabled": names("*")}}}
    both = resolve({**own, "kubeScheduler": {"profiles": [pinned]}}, {}).settings
    (profile,) = both.scheduler_profiles.values()
    assert (profile.spread, profile.weights) == ((rule,), {}), "the rest of the profile stays"
    args = {"defaultingType": "List", "defaultConstraints": [{**RULE, "maxSkew": 7}]}
    listed = {"pluginConfig": [{"name": "PodTopologySpread", "args": args}]}
    both = resolve({**own, "kubeScheduler": {"profiles": [listed]}}, {}).settings
    (profile,) = both.scheduler_profiles.values()
    assert profile.spread[0].max_skew == 7, "what the profile states takes precedence"


def test_other_arguments_are_read() -> None:
    affinity = configured(
        "InterPodAffinity", hardPodAffinityWeight=0, ignorePreferredTermsOfExistingPods=True
    )
    assert affinity.hard_pod_affinity_weight == 0
    assert affinity.ignores_preferred_terms_of_existing_pods
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}
    added = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    found = configured("NodeAffinity", addedAffinity=added).added_affinity
    assert found is not None
    assert found.required is not None
    shares = settings_with(
        percentageOfNodesToScore=20,
        profiles=[{}, {"schedulerName": "all", "percentageOfNodesToScore": 100}],
    ).kube_scheduler.profiles
    assert [p.percentage_of_nodes_to_score for p in shares.values()] == [20, 100]


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        pytest.param(
            {"plugins": {"score": {"enabled": names("Coscheduling")}}},
            'profiles[0].plugins.score.enabled[0].name: "Coscheduling" is not a plugin',
            id="unknown plugin",
        ),
        pytest.param(
            {
                "pluginConfig": [
                    {"name": "PodTopologySpread", "args": {"defaultConstraints": [RULE]}}
                ]
            },
            'profiles[0].pluginConfig[0].args.defaultingType: must be "List"',
            id="constraints beside those of the system",
        ),
        pytest.param(
            {
                "pluginConfig": [
                    {
                        "name": "NodeResourcesFit",
                        "args": {"scoringStrategy": {"type": "RequestedToCapacityRatio"}},
                    }
                ]
            },
            "requestedToCapacityRatio.shape: required for the type",
            id="a ratio without a shape",
        ),
        pytest.param(
            {
                "pluginConfig": [
                    {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "x"}}}
                ]
            },
            '"x" is not allowed (one of LeastAllocated,',
            id="unknown strategy",
        ),
        pytest.param(
            {
                "pluginConfig": [
                    {"name": "InterPodAffinity", "args": {"hardPodAffinityWeight": 101}}
                ]
            },
            "101 must be an integer from 0 to 100",
            id="weight out of range",
        ),
        pytest.param(
            {
                "pluginConfig": [
                    {"name": "InterPodAffinity", "args": {"hardPodAffinityWeight": True}}
                ]
            },
            "must be an integer from 0 to 100",
            id="a boolean",
        ),
        pytest.param(
            {
                "pluginConfig": [
                    {
                        "name": "NodeAffinity",
                        "args": {
                            "addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": 1}
                        },
                    }
                ]
            },
            "profiles[0].pluginConfig[0].args.addedAffinity: ",
            id="an affinity of another form",
        ),
    ],
)
def test_what_cannot_be_simulated_is_rejected_with_its_place(
    profile: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        profile_with(**profile)
    assert message in str(caught.value)


def test_extenders_are_rejected() -> None:
    with pytest.raises(UsageError, match=r"extenders\[0\]: extenders cannot be simulated"):
        settings_with(extenders=[{"urlPrefix": "http://x"}])


def test_the_configuration_is_shown_as_written() -> None:
    config = {"apiVersion": "kubescheduler.config.k8s.io/v1", "profiles": [{}]}
    assert resolve({"kubeScheduler": config}, {}).values["kubeScheduler"] == config
    assert resolve({}, {}).values["kubeScheduler"] == {}
