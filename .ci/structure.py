"""Print the structure of the package: its size, its folders, and the imports between them.

``python .ci/structure.py`` prints the figures that decision 18 (`docs/decisions`) quotes;
``--map`` prints the imports between folders as Mermaid.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "reconciler"


def find_modules() -> dict[str, Path]:
    """Return the modules by dotted name, without packages."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {module_name(path): path for path in paths if path.name != "__init__.py"}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imported_modules(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Return the modules that a module imports, at once or lazily."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                name = full if full in known else node.module
                if name in known:
                    yield name


def importers_by_module() -> dict[str, set[str]]:
    """Return the importing modules of each module."""
    known = find_modules()
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        for target in imported_modules(path, known):
            if target != name:
                found[target].add(name)
    return found


def class_counts() -> Counter[str]:
    """Return the number of public classes of each name."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in find_modules().values())
    nodes = (node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return Counter(node.name for node in nodes if not node.name.startswith("_"))


def count_any() -> int:
    """Return the number of uses of ``Any`` in annotations and aliases."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in find_modules().values())
    return sum(
        isinstance(node, ast.Name) and node.id == "Any" for tree in trees for node in ast.walk(tree)
    )


def count_lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def function_lengths() -> list[tuple[int, str]]:
    """Return the lines of each function and its name, the longest first."""
    found = [
        (node.end_lineno - node.lineno + 1, f"{module}.{node.name}")
        for module, path in find_modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    return sorted(found, reverse=True)


def largest_folder() -> tuple[int, str]:
    """Return the number of modules in the largest folder, and its path."""
    folders = Counter(path.parent for path in find_modules().values())
    folder, count = max(folders.items(), key=lambda item: (item[1], str(item[0])))
    return count, str(folder.relative_to(ROOT))


def single_importers() -> list[str]:
    """Return the modules that only one module of their own folder imports."""
    return sorted(
        name
        for name, users in importers_by_module().items()
        if len(users) == 1 and name.rpartition(".")[0] == next(iter(users)).rpartition(".")[0]
    )


def figures() -> dict[str, object]:
    sizes = {name: count_lines(path) for name, path in find_modules().items()}
    longest = max(sizes, key=lambda name: sizes[name])
    names = class_counts()
    count, folder = largest_folder()
    return {
        "modules": len(sizes),
        "lines": sum(sizes.values()),
        "median lines of a module": statistics.median(sizes.values()),
        "longest module": f"{sizes[longest]} lines, {longest}",
        "longest function": "{} lines, {}".format(*function_lengths()[0]),
        "modules below 60 lines": sum(size < 60 for size in sizes.values()),
        "modules with one importer, in the same folder": len(single_importers()),
        "most modules in one folder": f"{count}, {folder}",
        "class names used more than once": sum(number > 1 for number in names.values()),
        "uses of Any": count_any(),
    }


def folder_of(module: str) -> str:
    """Return the folder of a module below the package, at most one deep."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 else ""


def import_diagram() -> str:
    """Return the imports between the top folders as a Mermaid flowchart."""
    edges: set[tuple[str, str]] = set()
    for target, users in importers_by_module().items():
        for user in users:
            pair = folder_of(user), folder_of(target)
            if all(pair) and pair[0] != pair[1]:
                edges.add(pair)
    arrows = (f"    {user} --> {target}" for user, target in sorted(edges))
    return "\n".join(["flowchart TD", *arrows])


def main() -> None:
    if "--map" in sys.argv[1:]:
        print(import_diagram())
        return
    for name, value in figures().items():
        print(f"{name:48}{value}")
    if "--names" in sys.argv[1:]:
        for name, number in sorted(class_counts().items()):
            if number > 1:
                print(f"  {number} × class {name}")


if __name__ == "__main__":
    main()
