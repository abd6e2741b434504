"""Findings, completion, hover and fixes of files that are open in an editor."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.adapters.git.folder import read_folder
from reconciler.assembly.inputs.checking import check_context, check_files
from reconciler.catalog.catalog import bundled_catalog
from reconciler.catalog.names import LABEL_VALUES
from reconciler.desired.fleet import read_fleet
from reconciler.desired.objects import node_classes, node_pools
from reconciler.desired.settings.layers import resolve
from reconciler.lsp.offers import fleet_catalog, select_types
from reconciler.lsp.positions import TextLines
from reconciler.plan.make.costs import offers_of
from reconciler.plan.make.pools import LaunchFacts, pool_types
from tests.examples import examples
from tests.lsp.editing import (
    CLASS,
    POOL,
    START,
    completions,
    fleet,
    hover,
    path_of,
    session_of,
    words,
)

ROOT = Path(__file__).resolve().parents[2]
FLEETS = sorted(p.parent for p in (ROOT / "examples").glob("*/reconciler.yaml"))


# -- findings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", FLEETS, ids=lambda path: path.name)
def test_an_editor_shows_the_findings_of_validate(folder: Path) -> None:
    files, unread = read_folder(folder)
    _, expected = check_files(check_context(()), files, unread)
    session = session_of(folder)
    shown = session.check(str(folder / "reconciler.yaml"))
    found = [one.finding for findings in shown.values() for one in findings]
    assert found == [d for d in expected if d.place is not None]


def test_the_findings_of_an_unsaved_text_replace_those_of_the_file(tmp_path: Path) -> None:
    fleet(tmp_path, pool=POOL)
    session = session_of(tmp_path)
    path = path_of(tmp_path)
    assert session.check(path) == {}

    session.texts[path] = POOL.replace("operator: In", "operator: Inn", 1)
    (located,) = session.check(path)[path]
    assert located.finding.code == "not-allowed"
    assert str(located.finding.place) == "pool.yaml:10:21"
    assert located.span == ((9, 20), (9, 23))

    session.texts[path] = POOL
    assert session.check(path) == {path: []}


def test_a_change_in_one_file_changes_the_findings_of_another(tmp_path: Path) -> None:
    fleet(tmp_path, pool=POOL)
    session = session_of(tmp_path, **{"class": CLASS.replace("name: default", "name: other")})
    found = session.check(path_of(tmp_path, "class"))
    assert [one.finding.code for one in found[path_of(tmp_path)]] == ["missing-nodeclass"]


def test_a_new_file_is_part_of_the_fleet_before_it_is_saved(tmp_path: Path) -> None:
    fleet(tmp_path)
    assert session_of(tmp_path, pool=POOL).check(path_of(tmp_path)) == {}


def test_policies_and_settings_are_checked(tmp_path: Path) -> None:
    fleet(tmp_path, pool=POOL)
    text = "packing: cheapst\npolicies:\n  - {name: a, expression: 'plan.cst < 1'}\n"
    path = path_of(tmp_path, "reconciler")
    found = session_of(tmp_path, reconciler=text).check(path)[path]
    assert "not-allowed" in [one.finding.code for one in found]


def test_a_patch_of_kustomize_may_be_a_part_of_an_object(tmp_path: Path) -> None:
    patch = (
        "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: web}\nspec: {wieght: 1}\n"
    )
    fleet(tmp_path / "overlay", kustomization="patches: [{path: patch.yaml}]\n", patch=patch)
    path = path_of(tmp_path / "overlay", "patch")
    found = session_of(tmp_path / "overlay").check(path)
    assert [one.finding.code for one in found[path]] == ["unknown-field"]


def test_yaml_of_other_tools_has_no_findings_where_no_settings_are(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("services: {}\n")
    (tmp_path / "pool.yaml").write_text(POOL.replace("In\n", "Inn\n", 1))
    found = session_of(tmp_path).check(path_of(tmp_path, "compose"))
    assert list(found) == [path_of(tmp_path)]


def test_each_fleet_of_a_workspace_is_checked_by_itself(tmp_path: Path) -> None:
    fleet(tmp_path / "a", pool=POOL)
    fleet(tmp_path / "b", pool=POOL)
    session = session_of(tmp_path)
    assert session.check(path_of(tmp_path / "a")) == {}
    assert session.check(path_of(tmp_path / "b")) == {}


# -- completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("      |", ["requirements"]),
        ("      requirements:\n        - |", ["key", "operator"]),
        ("      requirements:\n        - key: a\n          op|", ["operator", "values"]),
        ("      requirements:\n        - {key: a, |}", ["operator", "values"]),
        ("      requirements:\n        - key: a\n          operator: |", ["In", "NotIn"]),
        ("      requirements:\n        - {key: a, operator: |}\n  weight: 1\n", ["In", "NotIn"]),
        ("      |: []\n  weight: 1\n", ["requirements"]),
        ("  disruption:\n    consol|\n  weight: 1\n", ["consolidateAfter"]),
        ("  disruption:\n    consolidationPolicy: |", ["WhenEmpty", "WhenEmptyOrUnderutilized"]),
    ],
)
def test_keys_and_values_come_from_the_schema(tmp_path: Path, typed: str, first: list[str]) -> None:
    fleet(tmp_path)
    assert words(tmp_path, START + typed)[: len(first)] == first


def requirement(key: str, values: str) -> str:
    lines = f"        - key: {key}\n          operator: In\n          values: {values}\n"
    return f"{START}      requirements:\n{lines}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("karpenter.k8s.aws/instance-category", "c"),
        ("karpenter.k8s.aws/instance-family", "c6g"),
        ("karpenter.k8s.aws/instance-size", "large"),
        ("node.kubernetes.io/instance-type", "c6g.large"),
        ("topology.kubernetes.io/zone", "us-east-1a"),
        ("kubernetes.io/arch", "arm64"),
        ("karpenter.sh/capacity-type", "spot"),
        ("karpenter.k8s.aws/instance-cpu", "16"),
    ],
)
@pytest.mark.parametrize("values", ["[|]", "[|", '["|', "\n            - |"])
def test_the_values_of_a_requirement_are_those_of_its_label(
    tmp_path: Path, key: str, value: str, values: str
) -> None:
    fleet(tmp_path)
    assert value in words(tmp_path, requirement(key, values))


def test_zones_are_those_of_the_region_and_a_value_is_offered_once(tmp_path: Path) -> None:
    fleet(tmp_path, reconciler="aws: {region: eu-central-1}\n")
    found = words(tmp_path, requirement("topology.kubernetes.io/zone", "[eu-central-1a, |]"))
    assert found == ["eu-central-1b", "eu-central-1c"]


def test_the_keys_of_requirements_are_the_well_known_labels(tmp_path: Path) -> None:
    fleet(tmp_path)
    found = words(tmp_path, f"{START}      requirements:\n        - key: |\n")
    assert {"karpenter.k8s.aws/instance-category", "kubernetes.io/arch"} <= set(found)
    assert "karpenter.sh/nodepool" not in found


def test_the_names_of_node_classes_are_those_of_the_folder(tmp_path: Path) -> None:
    fleet(tmp_path, gpu=CLASS.replace("name: default", "name: gpu"))
    marked = START.replace("name: default}", "name: |}")
    assert words(tmp_path, marked) == ["default", "gpu"]


def test_settings_have_keys_values_regions_and_names_of_pools(tmp_path: Path) -> None:
    fleet(tmp_path, pool=POOL)
    assert "packing" in words(tmp_path, "|", "reconciler")
    assert words(tmp_path, "packing: |", "reconciler") == ["default", "cheapest"]
    assert "eu-west-1" in words(tmp_path, "aws:\n  region: |", "reconciler")
    assert words(tmp_path, "nodePools:\n  |", "reconciler") == ["web"]
    assert "expression" in words(tmp_path, "policies:\n  - name: a\n    |", "reconciler")


def test_a_word_that_yaml_reads_as_a_number_is_quoted(tmp_path: Path) -> None:
    fleet(tmp_path)
    marked = requirement("karpenter.k8s.aws/instance-cpu", "[|]")
    found = completions(tmp_path, marked)
    assert found is not None
    assert '"16"' in [one.text for one in found.proposals]
    assert not found.is_quoted
    quoted = completions(tmp_path, marked.replace("[|]", '["|"]'))
    assert quoted is not None
    assert quoted.is_quoted


def test_an_object_is_begun_with_its_kind(tmp_path: Path) -> None:
    fleet(tmp_path)
    assert words(tmp_path, "|")[:2] == ["apiVersion", "kind"]
    assert "NodePool" in words(tmp_path, "kind: |")
    assert "karpenter.sh/v1" in words(tmp_path, f"{CLASS}---\napiVersion: |")


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_cursor_anywhere_in_any_text_has_an_answer(data: st.DataObject) -> None:
    """A text that is cut anywhere, with anything after it, gives words or nothing."""
    text = POOL[: data.draw(st.integers(0, len(POOL)))]
    text += data.draw(st.text("\n\t -:[]{}\"'|>&*#!%@`a\u2028😀", max_size=12))
    path = "/fleet/pool.yaml"
    session = session_of(Path("/nonexistent"))
    session.workspaces = ("/fleet",)
    session.texts[path] = text
    lines = TextLines(text)
    line, column = lines.position(data.draw(st.integers(0, len(text))), "utf-16")
    session._checked["/fleet"] = EMPTY
    session.complete(path, line, column)
    session.hover(path, line, column)


EMPTY = session_of(ROOT / "examples" / "web")._check_fleet(str(ROOT / "examples" / "web"))


# -- hover ----------------------------------------------------------------------------------------


def test_a_requirement_shows_how_many_types_it_leaves_and_the_cheapest(tmp_path: Path) -> None:
    fleet(tmp_path)
    text = hover(tmp_path, POOL.replace("key: karpenter.k8s", "key: kar|penter.k8s", 1))
    alone, together = text.splitlines()[0], text.splitlines()[2]
    assert alone.startswith("This requirement alone: ")
    assert together.startswith("All requirements of this NodePool: ")
    assert " of 1,371 types, cheapest " in together
    assert together.endswith("/month")
    assert "The label's key." in text


def test_a_nodepool_shows_the_types_that_all_its_requirements_leave(tmp_path: Path) -> None:
    fleet(tmp_path)
    line = hover(tmp_path, POOL.replace("kind: NodePool", "kind: Node|Pool")).splitlines()[0]
    assert line.split("/month")[0].count("types, cheapest c") == 1
    assert hover(tmp_path, POOL.replace("requirements:", "require|ments:")).startswith(line)


@pytest.mark.parametrize("folder", [ROOT / "examples" / "web"], ids=lambda path: path.name)
def test_the_types_are_those_that_a_plan_may_launch(folder: Path) -> None:
    files, _ = read_folder(folder)
    desired, _ = read_fleet(files)
    effective = resolve(desired.config, {}).settings
    classes = {one.name: one for one in node_classes(desired)}
    pools = node_pools(desired)
    catalog = bundled_catalog(effective.region)
    every = pool_types(LaunchFacts(pools, classes, (), catalog, effective, any_class=True)).every
    expected = offers_of(every)
    for pool in pools:
        name = pool.spec.template.spec.node_class_ref.name
        own = fleet_catalog(desired, (), name)
        assert own is not None
        assert select_types(own, pool.requirements()).left == expected[pool.name].types


def test_a_key_shows_its_meaning_and_a_finding_that_of_its_code(tmp_path: Path) -> None:
    fleet(tmp_path)
    text = hover(tmp_path, f"{POOL}  wei|ght: 1\n")
    assert "NodePool" in text
    text = hover(tmp_path, f"{POOL}  wie|ght: 1\n")
    assert "`unknown-field`: " in text


def test_a_setting_shows_its_default(tmp_path: Path) -> None:
    fleet(tmp_path)
    assert "One of `default`, `cheapest`" in hover(tmp_path, "pack|ing: cheapest\n", "reconciler")


# -- fixes ----------------------------------------------------------------------------------------


def test_older_spellings_are_rewritten_in_their_lines_only(tmp_path: Path) -> None:
    old = f"{POOL}  disruption: {{consolidationPolicy: WhenUnderutilized}} # why\n"
    fleet(tmp_path)
    session = session_of(tmp_path, pool=old)
    (change,) = session.fix(path_of(tmp_path))
    assert change.text == "  disruption: {consolidationPolicy: WhenEmptyOrUnderutilized} # why"
    assert change.span[0] == (old.count("\n") - 1, 0)
    session.texts[path_of(tmp_path)] = POOL
    assert session.fix(path_of(tmp_path)) == []


# -- positions, size, addresses -------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(st.text("a\n\r\u2028\x85😀é", max_size=30), st.sampled_from(["utf-8", "utf-16", "utf-32"]))
def test_an_offset_survives_the_way_to_the_editor_and_back(text: str, encoding: str) -> None:
    lines = TextLines(text)
    for offset in range(len(text) + 1):
        if text[offset - 1 : offset + 1] == "\r\n":
            continue  # between the two is no position
        line, column = lines.position(offset, encoding)
        assert lines.offset_of_position(line, column, encoding) == offset


def test_columns_are_counted_in_the_units_of_the_editor(tmp_path: Path) -> None:
    fleet(tmp_path, pool=POOL)
    text = POOL.replace("{name: web}", "{annotations: {a: 😀}, nme: web}")
    session = session_of(tmp_path, pool=text)
    path = path_of(tmp_path)
    spans = [one.span for one in session.check(path)[path] if one.finding.code == "unknown-field"]
    assert spans == [((2, 33), (2, 36))]


def test_a_change_in_a_fleet_of_thirty_files_takes_less_than_a_tenth_of_a_second(
    tmp_path: Path,
) -> None:
    pools = {f"p{n}": POOL.replace("name: web", f"name: web-{n}") for n in range(30)}
    fleet(tmp_path, **pools)
    session = session_of(tmp_path)
    path = path_of(tmp_path, "p1")
    session.check(path)
    times = []
    for number in range(5):
        session.texts[path] = f"{pools['p1']}# {number}\n"
        start = time.process_time()
        session.check(path)
        times.append(time.process_time() - start)
    assert min(times) < 0.1


def test_the_schemas_have_stable_addresses_and_the_catalog_names_them() -> None:
    catalog = json.loads((ROOT / "schemas" / "catalog" / "schemastore.json").read_bytes())
    for entry in catalog["schemas"]:
        name = entry["url"].rpartition("/")[2]
        schema = json.loads((ROOT / "schemas" / name).read_bytes())
        assert schema["$id"] == entry["url"]


def test_the_words_of_labels_are_known_without_the_catalog() -> None:
    assert {"kubernetes.io/arch", "karpenter.k8s.aws/instance-category"} <= LABEL_VALUES.keys()
