"""The layers of settings, their order, and findings about invalid ones."""

import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.desired.settings.keys import environment_name
from reconciler.desired.settings.layers import Layer, resolve
from reconciler.model.duration import Duration
from reconciler.model.errors import UsageError
from reconciler.model.grouping import Grouping
from reconciler.model.settings import (
    ExpirationPolicy,
    NodeLimit,
    Packing,
    PlacementGroup,
    PoolOption,
    PoolSettings,
    PreferencePolicy,
    Settings,
)

SCHEMA = Path(__file__).parents[2] / "schemas" / "reconciler.v1.json"


def test_without_settings_the_defaults_apply() -> None:
    resolved = resolve({}, {})
    assert resolved.settings == Settings()
    assert {origin.layer for origin in resolved.origins.values()} == {Layer.DEFAULT}


def test_each_layer_overrides_the_one_before() -> None:
    config = {"apiVersion": "reconciler/v1", "kind": "Configuration", "preferencePolicy": "Ignore"}
    config |= {"clusterName": "file", "packing": "cheapest", "aws": {"region": "eu-west-1"}}
    environ = {"RECONCILER_CLUSTER_NAME": "environment", "AWS_DEFAULT_REGION": "eu-west-2"}
    environ |= {"AWS_REGION": "eu-west-3", "RECONCILER_PACKING": ""}
    resolved = resolve(config, environ, ["clusterName=one", "clusterName=two"])
    assert resolved.settings == replace(
        Settings(),
        preference_policy=PreferencePolicy.IGNORE,
        packing=Packing.CHEAPEST,
        region="eu-west-3",
        cluster_name="two",
    )
    assert {
        key: (origin.layer, origin.where)
        for key, origin in resolved.origins.items()
        if origin.layer is not Layer.DEFAULT
    } == {
        "preferencePolicy": (Layer.FILE, "reconciler.yaml"),
        "packing": (Layer.FILE, "reconciler.yaml"),
        "aws.region": (Layer.ENVIRONMENT, "AWS_REGION"),
        "clusterName": (Layer.FLAG, "--set"),
    }


def test_our_variable_overrides_the_common_one_of_the_tool() -> None:
    environ = {"RECONCILER_AWS__REGION": "eu-west-1", "AWS_REGION": "us-east-2"}
    resolved = resolve({}, environ)
    assert resolved.settings.region == "eu-west-1"
    assert resolved.origins["aws.region"].where == "RECONCILER_AWS__REGION"


def test_names_of_gates_subnets_groups_and_pools_come_from_the_user() -> None:
    flags = [
        "featureGates.SpotToSpotConsolidation=true",
        "subnetFreeAddresses.subnet-1=10",
        "subnetFreeAddresses=subnet-2=20,subnet-3=0",
        "placementGroup.id=pg-1",
        "placementGroup.partitionCount=7",
        "nodePools.team.a.packing=cheapest",
        "nodePools.team.a.perNodeCost=0.01",
    ]
    environ = {"RECONCILER_FEATURE_GATES": "NodeOverlay=True, StaticCapacity=true"}
    settings = resolve({"featureGates": {"ReservedCapacity": False}}, environ, flags).settings
    assert [gate for gate, on in settings.feature_gates.items() if on] == [
        "Drift",
        "SpotToSpotConsolidation",
        "NodeOverlay",
        "StaticCapacity",
    ]
    assert settings.subnet_free_addresses == {"subnet-1": 10, "subnet-2": 20, "subnet-3": 0}
    assert settings.placement_group == PlacementGroup(id="pg-1", partition_count=7)
    assert settings.node_pools == {"team.a": {"packing": Packing.CHEAPEST, "per_node_cost": 0.01}}


def test_disruption_settings_come_from_the_file_or_as_json() -> None:
    frozen = {"owner": "platform", "until": "2026-03-01T06:00:00Z", "nodePools": ["web"]}
    nightly = {"schedule": "0 22 * * *", "duration": "8h", "timeZone": "Europe/Berlin"}
    config = {"disruption": {"suspend": [frozen], "budgets": [{"nodes": "3"}]}}
    environ = {"RECONCILER_DISRUPTION__WINDOWS": json.dumps([nightly])}
    resolved = resolve(config, environ, ["nodePools.web.minimumAge=30m", "minimumSavings=0.05"])
    made = resolved.settings
    assert [(s.owner, s.node_pools, s.until) for s in made.suspensions] == [
        ("platform", ("web",), datetime(2026, 3, 1, 6, tzinfo=UTC))
    ]
    assert [(b.nodes, b.reasons) for b in made.fleet_budgets] == [("3", None)]
    assert [(w.schedule, w.time_zone) for w in made.windows] == [("0 22 * * *", "Europe/Berlin")]
    assert made.pool("web").minimum_age == timedelta(minutes=30)
    assert made.pool("api").minimum_age == timedelta(0)
    assert made.pool("web").minimum_savings == 0.05
    assert resolved.values["disruption.windows"] == [nightly]
    assert json.loads(json.dumps(resolved.values["disruption.suspend"]))[0]["owner"] == "platform"


def test_a_node_pool_inherits_options_of_the_fleet() -> None:
    fleet = ["waveSoak=10m", "waveSize=10%", "maximumPerDay=5", "expirationPolicy=Graceful"]
    own = ["nodePools.web.waveSoak=90m", "nodePools.web.maximumPerDay="]
    settings = resolve({}, {}, [*fleet, *own]).settings
    web, api = settings.pool("web"), settings.pool("api")
    assert (web.wave_soak, api.wave_soak) == (timedelta(minutes=90), timedelta(minutes=10))
    assert web.expiration_policy is api.expiration_policy is ExpirationPolicy.GRACEFUL
    assert (web.wave_size.resolve(25), api.wave_size.resolve(25)) == (3, 3)
    assert (bool(web.maximum_per_day), api.maximum_per_day) == (False, NodeLimit(5))
    assert settings.key_of("web", PoolOption.WAVE_SOAK) == "nodePools.web.waveSoak"
    assert settings.key_of("api", PoolOption.WAVE_SOAK) == "waveSoak"
    assert replace(settings, wave_deadline=Duration("2h")).pool("web").wave_deadline == timedelta(
        hours=2
    )


def test_every_option_of_a_node_pool_has_a_key() -> None:
    names = [field.name for field in fields(PoolSettings)]
    assert [option.attribute for option in PoolOption] == names


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("minimumAge=90m", "90m"),
        ("nodePools.web.waveSoak=1h30m", "1h30m"),
        ("batchIdleDuration=1500ms", "1500ms"),
        ("kubernetes.staleAfter=45s", "45s"),
        ("history.keep=30d", "30d"),
        ("history.keep=Never", "Never"),
        ("waveSize=10%", "10%"),
        ("disruption.maximumPerDay=5", "5"),
        ("ipFamily=IPv6", "IPv6"),
        ("removalPolicy=Allow", "Allow"),
    ],
)
def test_a_value_is_shown_as_written(setting: str, shown: str) -> None:
    value = resolve({}, {}, [setting]).values[setting.partition("=")[0]]
    assert (type(value), value) == (str, shown)


def test_costs_are_grouped_in_metrics_by_a_list_or_a_text() -> None:
    wanted = ("workload", "label=example.com/team")
    found = tuple(map(Grouping.from_text, wanted))
    assert resolve({"metrics": {"costsBy": list(wanted)}}, {}).settings.metrics_costs_by == found
    flag = f"metrics.costsBy={','.join(wanted)}"
    assert resolve({}, {}, [flag]).settings.metrics_costs_by == found
    assert resolve({}, {}, [flag]).values["metrics.costsBy"] == list(wanted)
    assert resolve({}, {}).settings.metrics_costs_by == ()


def test_defaults_are_shown_as_a_user_writes_them() -> None:
    values = resolve({}, {}).values
    keys = ("expirationCeiling", "history.keep", "minimumAge", "waveSize", "ipFamily", "packing")
    assert [values[key] for key in keys] == ["24h", "90d", "0s", "", "", "default"]


def test_a_fleet_is_named_by_its_folder_unless_named() -> None:
    assert resolve({}, {}, fleet="web").settings.fleet == "web"
    assert resolve({"fleet": "shop"}, {}, fleet="web").settings.fleet == "shop"
    assert resolve({}, {}, fleet="web").origins["fleet"].layer is Layer.DEFAULT


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("state", "RECONCILER_STATE"),
        ("clusterCABundle", "RECONCILER_CLUSTER_CA_BUNDLE"),
        ("clusterDNS", "RECONCILER_CLUSTER_DNS"),
        ("featureGates.NodeClassCEL", "RECONCILER_FEATURE_GATES__NODE_CLASS_CEL"),
        ("aws.endpointUrl", "RECONCILER_AWS__ENDPOINT_URL"),
        ("reservedEnis", "RECONCILER_RESERVED_ENIS"),
    ],
)
def test_variables_are_spelled_by_one_rule(key: str, name: str) -> None:
    assert environment_name(key) == name
    value = "true" if "Gates" in key else "https://1" if "Url" in key else "1"
    assert resolve({}, {name: value}).origins[key].where == name


def test_variables_set_by_kubernetes_are_ignored() -> None:
    environ = {
        "RECONCILER_SERVICE_HOST": "10.0.0.1",
        "RECONCILER_PORT": "tcp://10.0.0.1:80",
        "RECONCILER_WEB_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert resolve({}, environ).settings == Settings()


@pytest.mark.parametrize(
    ("config", "environ", "sets", "message"),
    [
        ({"packin": "cheapest"}, {}, [], "reconciler.yaml: packin: unknown setting (did you mean"),
        ({}, {"RECONCILER_PAKING": "x"}, [], "unknown variable (did you mean RECONCILER_PACKING?)"),
        ({}, {}, ["featuregates.nodeOverlay=true"], "did you mean featureGates.NodeOverlay?"),
        ({}, {}, ["zebra=1"], "--set zebra=1: zebra: unknown setting; `reconciler config`"),
        ({}, {}, ["nodePools.web.pack=cheapest"], "did you mean nodePools.web.packing?"),
        ({}, {}, ["packing=fast"], '--set packing=fast: packing: "fast" is not allowed (one of'),
        ({}, {"RECONCILER_RESERVED_ENIS": "-1"}, [], 'ENIS: reservedEnis: "-1" must be an integer'),
        ({"reservedEnis": True}, {}, [], "reservedEnis: true must be an integer"),
        ({"batchMaxDuration": 10}, {}, [], "must be a string, not 10"),
        ({}, {}, ["batchIdleDuration=0s"], "must be longer than 0s"),
        ({}, {}, ["batchIdleDuration=soon"], 'invalid duration "soon"'),
        ({}, {}, ["featureGates.NodeOverlay=maybe"], '"maybe" must be true or false'),
        ({}, {}, ["vmMemoryOverheadPercent=7.5"], '"7.5" must be a number from 0 to 1'),
        ({}, {}, ["perNodeCost=nan"], '"nan" must be a number'),
        ({}, {}, ["aws.region=Frankfurt"], '"Frankfurt" is not a region'),
        ({}, {}, ["fleet=a b"], '"a b" is not a valid name'),
        ({}, {}, ["packing"], '--set "packing" is not key=value'),
        ({}, {}, ["=1"], "is not key=value"),
        ({}, {}, ["featureGates=NodeOverlay"], '"NodeOverlay" is not name=value'),
        ({"subnetFreeAddresses": {"": 1}}, {}, [], "unknown setting"),
        ({"packing": {"default": True}}, {}, [], "packing.default: unknown setting"),
        ({}, {}, ["minimumSavingsPercent=101"], '"101" must be a percentage from 0 to 100'),
        ({}, {}, ["minimumAge=-1m"], '"-1m" must not be negative'),
        ({"history": {"keep": "23h"}}, {}, [], 'history.keep: "23h" must be at least 24h'),
        ({}, {}, ["metrics.costsBy=team"], 'metrics.costsBy: [0]: "team" is not a grouping'),
        ({"metrics": {"costsBy": ["label="]}}, {}, [], '[0]: "label=" is not a grouping'),
        ({"metrics": {"costsBy": ["workload", True]}}, {}, [], "[1]: true is not a grouping"),
        ({}, {}, ["metrics.costsBy=workload,workload"], '[1]: duplicate grouping "workload"'),
        (
            {"metrics": {"costsBy": [f"label={n}" for n in "abcdef"]}},
            {},
            [],
            "must be a list of at most 5 groupings",
        ),
        ({}, {}, ["history.keep=1w"], 'history.keep: invalid duration "1w"'),
        ({"disruption": {"suspend": [{}]}}, {}, [], "owner: required field is missing"),
        ({"disruption": {"suspend": {"owner": "me"}}}, {}, [], "suspend.owner: unknown setting"),
        ({}, {}, ["disruption.suspend=me"], 'must be a list in JSON, not "me"'),
        (
            {"disruption": {"suspend": [{"owner": "me", "until": "2026-03-01"}]}},
            {},
            [],
            "until: the time needs a UTC offset",
        ),
        (
            {"disruption": {"suspend": [{"owner": "me", "reasons": ["Drift"]}]}},
            {},
            [],
            '"Drift" is not allowed (one of Drifted, Empty, Underutilized, Unhealthy)',
        ),
        ({"disruption": {"budgets": [{"nodes": "101%"}]}}, {}, [], "is not a number or percentage"),
        (
            {"disruption": {"budgets": [{"schedule": "@daily"}]}},
            {},
            [],
            "schedule and duration must be set together",
        ),
        (
            {"disruption": {"windows": [{"schedule": "0 25 * * *", "duration": "1h"}]}},
            {},
            [],
            "disruption.windows: end of range (25) above maximum (23)",
        ),
        ({"disruption": {"windows": [{"when": "now"}]}}, {}, [], "[0].when: unknown key"),
        (
            {},
            {},
            ["sate=postgresql://me:secret@host/db"],
            "sate=postgresql://me:***@host/db: sate",
        ),
    ],
)
def test_an_invalid_setting_is_named_with_its_origin(
    config: dict[str, Any], environ: dict[str, str], sets: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(config, environ, sets)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_schema_of_the_file_has_the_same_keys() -> None:
    def keys(schema: dict[str, Any], prefix: str) -> set[str]:
        found: set[str] = set()
        for name, part in schema.get("properties", {}).items():
            nested = part.get("properties") if name != "kubeScheduler" else None
            found |= keys(part, f"{prefix}{name}.") if nested else {f"{prefix}{name}"}
        return found

    named_by_authors = {"apiVersion", "kind", "subnetFreeAddresses", "nodePools", "policies"}
    named_by_authors |= {"workloadKinds", "sources"}
    in_schema = keys(json.loads(SCHEMA.read_text()), "") - named_by_authors
    group = ["placementGroup.id=a", "placementGroup.name=a", "placementGroup.strategy=spread"]
    ours = resolve({}, {}, [*group, "placementGroup.partitionCount=1"]).values
    assert set(ours) == in_schema


@given(st.dictionaries(st.text(max_size=12), st.one_of(st.integers(), st.text(max_size=5))))
def test_any_file_gives_settings_or_a_usage_error(config: dict[str, Any]) -> None:
    try:
        resolved = resolve(config, {})
    except UsageError:
        return
    assert set(resolved.values) == set(resolved.origins)
