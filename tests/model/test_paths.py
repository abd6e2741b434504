import pytest

from reconciler.model.text.paths import is_below


@pytest.mark.parametrize("path", ["nodes", "nodes/pool.yaml", "nodes/a/b.yaml"])
def test_a_folder_contains_itself_and_what_is_in_it(path: str) -> None:
    assert is_below(path, "nodes")


@pytest.mark.parametrize("path", ["nodes2/pool.yaml", "nodes.yaml", "a/nodes/pool.yaml", "."])
def test_a_folder_with_the_same_beginning_contains_nothing_of_another(path: str) -> None:
    assert not is_below(path, "nodes")


@pytest.mark.parametrize("path", [".", "pool.yaml", "nodes/pool.yaml"])
def test_the_top_contains_everything(path: str) -> None:
    assert is_below(path, ".")
