"""The recorded answers of Karpenter's API and controllers on budgets and overlays."""

from typing import Any

import pytest

from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.model.diagnostics import Severity
from tests.desired.examples import a_class, a_file, a_pool, a_pool_requiring, an_overlay
from tests.tables import cases


def error_paths(*files: SourceFile) -> list[str]:
    _, diagnostics = read_fleet(files)
    return [d.path for d in diagnostics if d.severity is Severity.ERROR]


BUDGETS = [case for case in cases("budgets") if case.values[0]["kind"] == "admission"]
FIELDS = [case for case in cases("budgets") if case.values[0]["kind"] == "admission_field"]


@pytest.mark.parametrize("case", BUDGETS)
def test_a_budget_is_validated_as_in_karpenter(case: Any) -> None:
    pool = a_pool(disruption={"consolidateAfter": "0s", "budgets": case["input"]["budgets"]})

    found = error_paths(a_file(pool, a_class()))

    assert (not found) is case["expect"]["valid"]
    assert all(path.startswith("spec.disruption.budgets") for path in found)


@pytest.mark.parametrize("case", FIELDS)
def test_a_field_is_validated_as_in_karpenter(case: Any) -> None:
    field, value = case["input"]["field"], case["input"]["value"]
    if field in ("consolidateAfter", "consolidationPolicy"):
        pool = a_pool(disruption={"consolidateAfter": "0s", field: value})
        path = f"spec.disruption.{field}"
    else:
        pool = a_pool_requiring(**{field: value})
        path = f"spec.template.spec.{field}"

    found = error_paths(a_file(pool, a_class()))

    assert found == ([] if case["expect"]["valid"] else [path])


@pytest.mark.parametrize("case", cases("overlay_validation"))
def test_an_overlay_is_rejected_if_the_api_or_the_controller_rejects_it(case: Any) -> None:
    expect = case["expect"]
    overlay = an_overlay()
    overlay["spec"] = case["input"]["overlay"]

    found = error_paths(a_file(a_pool(), a_class(), overlay))

    assert (not found) is (expect["admission"] == expect["runtime"] == "valid")
    for field in (*expect.get("admission_fields", ()), *expect.get("runtime_fields", ())):
        assert any(path.startswith(field) for path in found), (field, found)
