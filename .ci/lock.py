"""Write the lock files: every dependency of each profile with its version and hashes.

``python .ci/lock.py`` needs uv. It keeps the versions that are locked and adds what is missing;
``--upgrade`` takes the newest of everything. All profiles lock the same versions.
The tools of a release and of the documentation site have locks of their own.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPLETE = "requirements.lock"
PROFILES = {
    COMPLETE: (
        *("aws", "cel", "comment", "dev", "embedded", "kubernetes", "lsp", "otel", "postgres"),
        *("terminal", "web"),
    ),
    "requirements/action.lock": ("cel", "comment"),
    "requirements/embedded.lock": ("embedded", "web"),
    "requirements/production.lock": (
        *("aws", "cel", "comment", "kubernetes", "otel", "postgres", "web"),
    ),
}
COMPILE = ("uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11")
FORM = ("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url")
HEADER = "# Written by `python .ci/lock.py` for the extras {}, and for building the package.\n"


def main(arguments: list[str]) -> None:
    """Write every lock file; the complete one first, since the others take its versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = "\n".join(project["build-system"]["requires"])
    for name, extras in PROFILES.items():
        command = [*COMPILE, *FORM, "--output-file", name, "pyproject.toml", "-"]
        command += [part for extra in extras for part in ("--extra", extra)]
        command += arguments if name == COMPLETE else ["--constraint", COMPLETE]
        subprocess.run(command, cwd=ROOT, input=build, text=True, check=True)
        path = ROOT / name
        path.write_text(HEADER.format(", ".join(extras)) + path.read_text(encoding="utf-8"))
    for group in ("docs", "release"):
        tools = [*COMPILE, *FORM, "--group", group, "--output-file", f"requirements/{group}.lock"]
        subprocess.run([*tools, *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
