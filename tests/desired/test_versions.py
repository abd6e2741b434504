"""The release of Karpenter that a fleet follows: what it requires, and what it does not know."""

from __future__ import annotations

import pytest

from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.model.settings import KarpenterVersion
from tests.desired.examples import Data, a_class, a_file, a_pool

WITHOUT_DELAY = a_pool(disruption={"consolidationPolicy": "WhenEmpty"})
REPAIR = a_pool(
    disruption={
        "consolidateAfter": "0s",
        "budgets": [{"nodes": "1", "reasons": ["Drifted", "Unhealthy"]}],
    }
)
ENCLAVES = a_class(enclaveOptions={"enabled": True})


def a_config(version: str) -> SourceFile:
    return SourceFile("reconciler.yaml", f'karpenter: "{version}"\n'.encode())


def found(*files: SourceFile, karpenter: KarpenterVersion | None = None) -> list[tuple[str, str]]:
    _, diagnostics = read_fleet(files, karpenter=karpenter)
    return [(d.code, d.path) for d in diagnostics]


@pytest.mark.parametrize("config", [[], [a_config("1.14")]])
def test_without_a_delay_of_consolidation_1_14_rejects_a_pool(config: list[SourceFile]) -> None:
    assert found(*config, a_file(WITHOUT_DELAY, a_class())) == [
        ("missing-field", "spec.disruption.consolidateAfter")
    ]


def test_objects_of_a_scenario_with_its_own_catalog_may_lack_the_delay() -> None:
    fleet, diagnostics = read_fleet([a_file(WITHOUT_DELAY, a_class())], any_class=True)

    assert [(str(d.severity), d.code) for d in diagnostics] == [("warning", "missing-field")]
    assert len(fleet.node_pools) == 1


def test_1_15_has_a_default_for_the_delay_of_consolidation() -> None:
    fleet, diagnostics = read_fleet([a_config("1.15"), a_file(WITHOUT_DELAY, a_class())])

    assert diagnostics == ()
    assert [pool.name for pool in fleet.node_pools] == ["general"]


def test_a_pool_without_a_disruption_block_is_valid_in_every_release() -> None:
    pool = a_pool()
    del pool["spec"]["disruption"]

    assert found(a_file(pool, a_class())) == []


@pytest.mark.parametrize(
    ("objects", "path"),
    [
        ((REPAIR, a_class()), "spec.disruption.budgets[0].reasons[1]"),
        ((a_pool(), ENCLAVES), "spec.enclaveOptions"),
    ],
)
def test_a_field_of_1_15_is_accepted_with_a_warning_in_a_fleet_of_1_14(
    objects: tuple[Data, ...], path: str
) -> None:
    fleet, diagnostics = read_fleet([a_file(*objects)])

    assert [(str(d.severity), d.code, d.path) for d in diagnostics] == [
        ("warning", "newer-karpenter", path)
    ]
    assert len(fleet.node_pools) == len(fleet.node_classes) == 1


@pytest.mark.parametrize(
    ("settings", "has_effect"),
    [
        ("", False),
        ("featureGates: {NodeRepair: false}", False),
        ("featureGates: {NodeRepair: true}", True),
        ("featureGates: {NodeRepair: true}\nlegacyNodeRepair: true", False),
    ],
)
def test_a_budget_of_repairs_has_an_effect_with_the_repair_of_1_15(
    settings: str, has_effect: bool
) -> None:
    config = SourceFile("reconciler.yaml", f'karpenter: "1.15"\n{settings}\n'.encode())

    assert found(config, a_file(REPAIR, a_class())) == (
        [] if has_effect else [("without-effect", "spec.disruption.budgets[0].reasons[1]")]
    )


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("featureGates: {TerminateFirstDrift: true}", "featureGates.TerminateFirstDrift"),
        ("featureGates: {TerminateFirstRepair: true}", "featureGates.TerminateFirstRepair"),
        ("legacyNodeRepair: true", "legacyNodeRepair"),
    ],
)
def test_a_setting_of_1_15_warns_in_a_fleet_of_1_14(setting: str, path: str) -> None:
    older = SourceFile("reconciler.yaml", f"{setting}\n".encode())
    newer = SourceFile("reconciler.yaml", f'karpenter: "1.15"\n{setting}\n'.encode())
    fleet = a_file(a_pool(), a_class())

    _, diagnostics = read_fleet([older, fleet])

    assert [(str(d.severity), d.code, d.path) for d in diagnostics] == [
        ("warning", "newer-karpenter", path)
    ]
    assert {code for code, _ in found(newer, fleet)} <= {"without-effect"}
    assert (
        found(SourceFile("reconciler.yaml", setting.replace("true", "false").encode()), fleet) == []
    )


def test_enclaves_need_no_comment_in_a_fleet_of_1_15() -> None:
    assert found(a_config("1.15"), a_file(a_pool(), ENCLAVES)) == []


def test_the_user_overrides_the_release_of_the_files() -> None:
    file = a_file(WITHOUT_DELAY, a_class())

    assert found(a_config("1.14"), file, karpenter=KarpenterVersion.V1_15) == []


def test_the_configuration_is_read_before_files_that_precede_it_by_name() -> None:
    file = a_file(WITHOUT_DELAY, a_class(), path="a.json")

    assert found(file, a_config("1.15")) == []


@pytest.mark.parametrize("version", ["1.13", "v1.15", "1.15.0"])
def test_an_unknown_release_is_an_error(version: str) -> None:
    _, diagnostics = read_fleet([a_config(version), a_file(a_pool(), a_class())])

    assert [d.path for d in diagnostics] == ["karpenter"]


@pytest.mark.parametrize("gate", ["TerminateFirstRepair", "RebootForRepair"])
@pytest.mark.parametrize(
    ("settings", "has_effect"),
    [
        ("featureGates: {NodeRepair: true, GATE: true}", True),
        ("featureGates: {GATE: true}", False),
        ("legacyNodeRepair: true\nfeatureGates: {NodeRepair: true, GATE: true}", False),
    ],
)
def test_a_gate_of_a_repair_that_does_not_take_place_warns(
    settings: str, has_effect: bool, gate: str
) -> None:
    text = f'karpenter: "1.15"\n{settings.replace("GATE", gate)}\n'

    _, diagnostics = read_fleet(
        [SourceFile("reconciler.yaml", text.encode()), a_file(a_pool(), a_class())]
    )

    expected = [] if has_effect else [("without-effect", f"featureGates.{gate}")]
    assert [(d.code, d.path) for d in diagnostics] == expected
