"""The shape of the package: what decision 18 promises to whoever looks for a rule."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
ANY_MAX = 139


def structure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure", ROOT / ".ci" / "structure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_module_is_longer_than_five_hundred_lines() -> None:
    tool = structure()
    lengths = {name: tool.count_lines(path) for name, path in tool.find_modules().items()}
    long = {name: length for name, length in lengths.items() if length > 500}
    assert long == {}


def test_no_two_classes_share_a_name() -> None:
    assert {name: count for name, count in structure().class_counts().items() if count > 1} == {}


def test_use_of_any_does_not_grow() -> None:
    """Lower the number with every use that goes; ``model/json.py`` says when ``Any`` is right."""
    assert structure().count_any() <= ANY_MAX


def test_no_folder_has_too_many_modules() -> None:
    count, folder = structure().largest_folder()
    assert count <= 15, folder


def test_every_module_named_in_the_architecture_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z0-9_]+/)+[a-z0-9_]+\.py)`", page))
    assert len(named) > 10
    missing = [name for name in sorted(named) if not (ROOT / "reconciler" / name).is_file()]
    assert missing == []


def test_the_map_of_the_architecture_is_drawn_from_the_code() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert structure().import_diagram() in page, "run python .ci/structure.py --map"


def test_only_the_parser_and_the_commands_use_the_arguments() -> None:
    """Whatever is below the door of a command is given a frozen request."""
    package = ROOT / "reconciler" / "cli"
    doors = {package / "parser", package / "commands"}
    seeing = [
        str(path.relative_to(ROOT))
        for path in sorted(package.rglob("*.py"))
        if not doors & set(path.parents) and re.search(r"\b(argparse|Namespace)\b", _code(path))
    ]
    assert seeing == []


def test_a_command_uses_its_arguments_in_one_function() -> None:
    seen = {
        path.name: re.findall(r"^def (\w+)\([^)]*argparse\.Namespace", _code(path), re.MULTILINE)
        for path in sorted((ROOT / "reconciler" / "cli" / "commands").rglob("*.py"))
    }
    assert {name: found for name, found in seen.items() if found not in ([], ["request_of"])} == {}


def _code(path: Path) -> str:
    """Return a module without its docstring."""
    source = path.read_text(encoding="utf-8")
    return source.partition('"""')[2].partition('"""')[2] if source.startswith('"""') else source


def test_the_scripts_in_benchmarks_import_what_exists() -> None:
    """The linter and the type checker do not read code that a benchmark keeps in a string."""
    missing = [
        f"{path.name}: {name} of {module}"
        for path in sorted((ROOT / "benchmarks").glob("*.py"))
        for script in _scripts(path)
        for module, name in _own_imports(script)
        if not _exists(module, name)
    ]
    assert missing == []


def _scripts(path: Path) -> Iterator[ast.Module]:
    """Yield the strings of a module that are Python code and import the package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and re.search(r"^from reconciler", text, re.MULTILINE):
            yield ast.parse(text)


def _own_imports(script: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(script):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reconciler"):
            yield from ((node.module or "", alias.name) for alias in node.names)


def _exists(module: str, name: str) -> bool:
    """Return whether a module has the name, or the package has the module."""
    try:
        found = __import__(module, fromlist=[name])
    except ImportError:
        return False
    return hasattr(found, name)
