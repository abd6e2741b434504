"""The shape of the package: what decision 18 promises to whoever looks for a rule."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

from reconciler.model.settings import PoolSettings, Settings

ROOT = Path(__file__).resolve().parents[1]
ANY_MAX = 124


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


def test_no_function_is_longer_than_sixty_lines() -> None:
    assert [found for found in structure().function_lengths() if found[0] > 60] == []


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


def test_the_map_of_the_packages_shows_their_imports() -> None:
    lines = structure().import_diagram().splitlines()
    assert lines[0] == "flowchart TD"
    assert "    plan --> placement" in lines
    assert "    placement --> plan" not in lines


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


def test_every_setting_is_used_by_what_it_describes() -> None:
    """One that is only read and checked has no effect, and its own tests do not notice."""
    package = ROOT / "reconciler"
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
        if package / "desired" / "settings" not in path.parents
    )
    used = set(re.findall(r"\.(\w+)\b", code))
    settings = {field.name for kind in (Settings, PoolSettings) for field in fields(kind)}
    assert len(settings) > 60
    assert settings - used == set()


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


STARTS_PROCESSES = re.compile(
    r"subprocess|multiprocessing|pty|_posixsubprocess|webbrowser|pexpect"
    r"|concurrent\.futures\.process|ProcessPoolExecutor"
    r"|asyncio\.subprocess|create_subprocess_\w+|subprocess_exec|subprocess_shell"
    r"|(os\.)?(system|popen|fork|forkpty|startfile|exec[lv]\w*|spawn[lv]\w*|posix_spawnp?)"
)


def test_processes_are_started_in_one_module_only() -> None:
    """A process that is started in another way may run code from a checkout."""
    used = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in [
            *sorted((ROOT / "reconciler").rglob("*.py")),
            *sorted((ROOT / "reconciler_embedded").rglob("*.py")),
        ]
        if path != ROOT / "reconciler" / "adapters" / "processes.py"
        for name in _names_that_start(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert used == set()


def test_a_process_that_is_started_in_another_way_is_found() -> None:
    ways = [
        "import subprocess",
        "import multiprocessing.pool",
        "from subprocess import run",
        "from multiprocessing import get_context",
        "from concurrent.futures import ProcessPoolExecutor",
        "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
        "import os\nos.system('x')",
        "import os as o\no.posix_spawn('x')",
        "from os import execvp as run",
        "import asyncio\nasyncio.create_subprocess_exec('x')",
        "import pty",
        "__import__('subprocess')",
        "import importlib\nimportlib.import_module('multiprocessing')",
        "import os\ngetattr(os, 'fork')()",
    ]
    assert [way for way in ways if not set(_names_that_start(ast.parse(way)))] == []


def _names_that_start(tree: ast.Module) -> Iterator[str]:
    """Yield the names in a module that can start a process."""
    for node in ast.walk(tree):
        found: list[str] = []
        match node:
            case ast.Import():
                found = [part for a in node.names for part in (a.name, a.name.partition(".")[0])]
            case ast.ImportFrom():
                module = node.module or ""
                found = [module, module.partition(".")[0], *(a.name for a in node.names)]
                found = [n for n in found if not module.startswith("reconciler")]
            case ast.Attribute(value=ast.Name(id=owner)) if owner not in {"self", "cls"}:
                found = [node.attr]
            case ast.Attribute(value=ast.Attribute()):
                found = [node.attr] if node.attr != "system" else []
            case ast.Call(args=[*arguments]) if _name_of(node.func) in _BY_NAME:
                found = [a.value for a in arguments if isinstance(a, ast.Constant)]
        yield from (n for n in found if isinstance(n, str) and STARTS_PROCESSES.fullmatch(n))


_BY_NAME = {"__import__", "import_module", "getattr"}


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_times_are_formatted_in_one_module() -> None:
    """Only the imitation of AWS has forms of its own."""
    found = [
        name
        for name, path in structure().find_modules().items()
        if "%Y-%m-%d" in path.read_text(encoding="utf-8") and ".moto." not in name
    ]
    assert found == ["reconciler.model.text.times"]


def test_json_is_decoded_by_one_function() -> None:
    """The errors of ``msgspec.json.decode`` for untrusted bytes are of several kinds."""
    sources = {
        p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8")
        for p in (ROOT / "reconciler").rglob("*.py")
    }
    direct = [path for path, text in sources.items() if "msgspec.json.decode(" in text]
    assert direct == ["reconciler/model/decode.py"]


def test_no_function_imports_what_its_module_has_imported() -> None:
    """An import within a function is there to start fast; one of a loaded module saves nothing."""
    repeated = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in sorted((ROOT / "reconciler").rglob("*.py"))
        for line, module in _repeated_imports(path)
    ]
    assert repeated == []


def _repeated_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the module of each import in a function that the top has already."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    loaded = {own} | {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    for node in (inner for function in functions for inner in ast.walk(function)):
        is_repeated = isinstance(node, ast.ImportFrom) and node.module in loaded
        if is_repeated and not (ROOT / node.module.replace(".", "/")).is_dir():
            yield node.lineno, node.module
