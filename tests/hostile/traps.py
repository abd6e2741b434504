"""Modules with which a checkout takes the place of the standard library and of every dependency."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(sys.executable).parent / "reconciler"


def imported_names() -> set[str]:
    """Return every top-level name that the package, the action and Python itself may import."""
    names = set(sys.stdlib_module_names)
    for path in [*(ROOT / "reconciler").rglob("*.py"), *(ROOT / ".github").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import():
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                case ast.ImportFrom(module=str(module), level=0):
                    names.add(module.partition(".")[0])
    return names | {"pip", "ensurepip", "hatchling", "sitecustomize", "usercustomize", "moto"}


class Traps:
    """A checkout with a module for every import, each of which leaves a line behind when it runs.

    A name has both a module and a package, and there are a program for each usual name, a path file
    and the configuration of a virtual environment.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self._log = log
        for name in sorted(imported_names()):
            code = f"open({str(log)!r}, 'a').write({name!r} + chr(10))\n"
            (folder / f"{name}.py").write_text(code)
            if name in {"multiprocessing", "concurrent", "pip", "reconciler", "encodings", "cel"}:
                (folder / name).mkdir()
                (folder / name / "__init__.py").write_text(code)
        (folder / "trap.pth").write_text(f"import os; open({str(log)!r}, 'a').write('pth')\n")
        (folder / "pyvenv.cfg").write_text("home = .\ninclude-system-site-packages = true\n")
        for name in ("git", "ssh", "python", "python3", "kubectl", "aws", "sed"):
            (folder / name).write_text(f"#!/bin/sh\necho {name} >> '{log}'\n")
            (folder / name).chmod(0o755)

    @property
    def sprung(self) -> list[str]:
        """The names of the modules and programs that ran."""
        return sorted(set(self._log.read_text().split())) if self._log.exists() else []
