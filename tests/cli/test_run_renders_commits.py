"""``run`` renders each commit; what cannot be rendered keeps the last revision that could be."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.source.plainyaml import dump
from tests.cli.test_end_to_end import CONFIG, NODE_CLASS, NODE_POOL, Shop, a_deployment
from tests.engine.world import catalog_file
from tests.repositories import commit_all, init
from tests.yamltext import dump_all

OBJECTS = dump_all([NODE_CLASS, NODE_POOL, a_deployment(2)])


def kustomized(folder: Path, replicas: int | None) -> None:
    """Write an overlay with that number of replicas; None makes one that cannot be built."""
    (folder / "objects.yaml").write_text(OBJECTS)
    change = f"replicas: [{{name: web, count: {replicas}}}]"
    broken = (
        "patches: [{target: {kind: NodePool}, "
        "patch: '[{op: remove, path: /spec/template/spec/nothing}]'}]"
    )
    text = f"resources: [objects.yaml]\n{broken if replicas is None else change}\n"
    (folder / "kustomization.yaml").write_text(text)


def charted(folder: Path, replicas: int | None) -> None:
    """Write a chart with that number of replicas; None makes one whose template fails."""
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: nodes\nversion: 0.1.0\n")
    (folder / "values.yaml").write_text("{}\n" if replicas is None else f"web: {replicas}\n")
    (folder / "templates").mkdir(exist_ok=True)
    number = '{{ required "web is missing" .Values.web }}'
    text = OBJECTS.replace('"replicas": 2', f'"replicas": {number}')
    (folder / "templates" / "objects.yaml").write_text(text)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("tool", "write", "says"),
    [
        ("kustomize", kustomized, "`kustomize build .` failed"),
        ("helm", charted, "web is missing"),
    ],
)
def test_a_commit_that_cannot_be_rendered_keeps_the_last_one_that_could_be(
    tool: str, write: Callable[[Path, int | None], None], says: str, shop: Shop
) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    (shop.folder / "fleet.yaml").unlink()
    (shop.folder / "reconciler.yaml").write_text(dump(CONFIG))
    (shop.folder.parent / "types.json").write_bytes(catalog_file())
    write(shop.folder, 2)
    (shop.folder / ".gitignore").write_text(".reconciler/\n")
    init(shop.folder)
    commit_all(shop.folder)
    heads: list[str] = []

    def commit(replicas: int | None) -> None:
        write(shop.folder, replicas)
        heads.append(commit_all(shop.folder))

    def is_reported() -> bool:
        return shop.query("status")["revisionProblem"] is not None

    def look_and_mend() -> None:
        status = shop.query("status")
        assert says in status["revisionProblem"]["message"]
        assert status["revision"]["head"] == heads[0]
        assert "Problem:" in shop.run("status")
        assert shop.rests(3), "nodes of the last valid commit stay"
        commit(1)

    shop.keep(
        (lambda: shop.rests(2), lambda: commit(3)),
        (lambda: shop.rests(3), lambda: commit(None)),
        (is_reported, look_and_mend),
        (lambda: shop.rests(1), lambda: None),
    )
    status = shop.query("status")
    assert status["revisionProblem"] is None
    assert status["revision"]["head"] == heads[2]
