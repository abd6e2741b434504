"""Files of a fleet whose values are longer, more or of another kind than anybody writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from reconciler.desired.rules.crd import check_rules
from reconciler.model.diagnostics import TEXT_MAX
from reconciler.source.schema import check_schema
from tests.cli.sourcefolders import CLASS, POOL, WEB
from tests.hostile.threats import Threat, attack
from tests.repositories import commit_all, init
from tests.yamltext import load as read_yaml

Capture = pytest.CaptureFixture[str]
LONG = "a" * 100_000
NAMES = {
    "the kind of an object": ("web.yaml", "kind: Deployment", f"kind: {LONG}"),
    "the kind of a class": ("pool.yaml", "kind: EC2NodeClass", f"kind: {LONG}"),
    "the name of a class": ("class.yaml", "name: default", f"name: {LONG}"),
    "a label": ("web.yaml", "app: web", f"app: {LONG}"),
    "the name of a label": ("web.yaml", "{app: web}", f"{{{LONG}: web}}"),
    "a field": ("pool.yaml", "spec:", f"{LONG}: 1\nspec:"),
    "a setting": ("reconciler.yaml", "fleet: shop", f"fleet: {LONG}"),
}


def write(folder: Path, **changes: str) -> None:
    settings = "apiVersion: reconciler/v1\nkind: Configuration\nfleet: shop\n"
    files = {"pool.yaml": POOL, "class.yaml": CLASS, "web.yaml": WEB, "reconciler.yaml": settings}
    for name, text in (files | changes).items():
        (folder / name).write_text(text)


@attack(Threat.OUTPUT, "a name of a hundred thousand characters in a finding")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_a_finding_is_short_whatever_it_names(
    form: str, name: str, tmp_path: Path, capsys: Capture
) -> None:
    """Guard: ``Diagnostic.__post_init__``."""
    write(tmp_path)
    file, old, new = NAMES[name]
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    main(["validate", str(tmp_path), "-o", form])
    out = capsys.readouterr().out
    assert "a" * (3 * TEXT_MAX) not in out


@attack(Threat.EXHAUSTION, "a long text where a list belongs, whose letters are no items of it")
def test_a_rule_does_not_read_the_letters_of_a_text() -> None:
    """Guard: the comparison with ``_TYPES``."""

    class Text(str):
        __slots__ = ()

        def __iter__(self) -> Iterator[str]:
            raise AssertionError("a rule reads the letters")

    data: Any = read_yaml(CLASS)
    for field in ("subnetSelectorTerms", "securityGroupSelectorTerms"):
        data["spec"][field] = Text("x")
    check_rules("ec2nodeclass.v1", data, list(check_schema("ec2nodeclass.v1", data)))


@attack(Threat.EXHAUSTION, "thousands of families that AWS does not have, each compared with all")
def test_only_some_unknown_names_get_a_suggestion(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.catalog.names._SUGGESTIONS_MAX", 3)
    families = ", ".join(f"m7i{letter}" for letter in "abchjkl")
    write(tmp_path, **{"pool.yaml": POOL.replace("[m7i]", f"[{families}]")})
    main(["validate", str(tmp_path), "-o", "json"])
    found = json.loads(capsys.readouterr().out)["diagnostics"]
    hints = [one["hint"] for one in found if "bundled catalog" in one["message"]]
    assert len(hints) == 7
    assert sum("did you mean" in hint for hint in hints) == 3


@attack(Threat.EXHAUSTION, "containers of one name, which no API server accepts")
def test_containers_of_one_name_are_not_an_internal_error(tmp_path: Path, capsys: Capture) -> None:
    write(
        tmp_path, **{"web.yaml": WEB.replace("[{name: web,", "[{name: a}, {name: a}, {name: web,")}
    )
    assert main(["validate", str(tmp_path)]) in (0, 3)
    assert "internal error" not in capsys.readouterr().err


@attack(Threat.OUTPUT, "a name of a hundred thousand characters in a cluster, on a terminal")
@pytest.mark.parametrize("field", ["name", "namespace"])
def test_a_line_of_a_plan_is_short_whatever_it_names(
    field: str, tmp_path: Path, capsys: Capture
) -> None:
    """Guard: ``_WORD_MAX`` in ``wrap``."""
    write(tmp_path)
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a", "namespace": "b", "uid": "1", field: LONG},
        "spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "900"}}}]},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
        },
    }  # fmt: skip
    snapshot = tmp_path.parent / f"{tmp_path.name}.json"
    snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}))
    assert main(["plan", str(tmp_path), "--snapshot", str(snapshot)]) in (0, 2)
    out = capsys.readouterr().out
    assert "aaaa" in out
    assert max(map(len, out.splitlines())) < 3 * TEXT_MAX


@attack(Threat.HIDDEN, "files and folders whose names differ in their case only")
@pytest.mark.parametrize("at_commit", [True, False])
def test_names_that_differ_in_case_are_all_read(
    at_commit: bool, tmp_path: Path, capsys: Capture
) -> None:
    init(tmp_path)
    write(tmp_path)
    for number, name in enumerate(("Pool.yaml", "A/pool.yaml", "a/pool.yaml")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(POOL.replace("name: general", f"name: general-{number}"))
    commit_all(tmp_path)
    main(["plan", str(tmp_path), "-o", "json", *(["--ref", "HEAD"] if at_commit else [])])
    plan = json.loads(capsys.readouterr().out)
    assert "general-0" in json.dumps(plan)
    main(["validate", str(tmp_path)])
    assert "4 NodePools" in capsys.readouterr().out
