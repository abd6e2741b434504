"""How this program was installed, and the command that adds an extra in the same way."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from reconciler import DISTRIBUTION

_TOOLS: Final = (
    (os.path.join("uv", "tools"), "uv tool install --force"),
    (os.path.join("uv", "archive"), "uvx"),
    (os.path.join("pipx", "venvs"), "pipx install --force"),
)
"""Parts of an environment's path, and the command of the tool that keeps its environments there."""

_EXTRAS: Final = {
    "boto3": "aws",
    "botocore": "aws",
    "kubernetes": "kubernetes",
    "moto": "embedded",
    "psycopg": "postgres",
    "urllib3": "aws",
    **dict.fromkeys(("jinja2", "prometheus_client", "starlette", "uvicorn"), "web"),
}
"""The extra that installs a package, by the name under which it is imported."""


@dataclass(frozen=True, slots=True)
class Installation:
    """An environment with this program in it.

    ``prefix`` is the environment's folder, and ``active`` the one that the shell has activated.
    ``source`` is the folder that the program was installed from, empty for the package index.
    ``has_pip`` is whether pip is installed in it: environments of uv do not have it.
    """

    prefix: str
    active: str = ""
    source: str = ""
    is_editable: bool = False
    has_pip: bool = True

    def command_for(self, extra: str) -> str:
        """Return the command that installs the program again with an extra."""
        target = shlex.quote(f"{self.source or DISTRIBUTION}[{extra}]")
        for part, command in _TOOLS:
            if f"{os.sep}{part}" in self.prefix:
                return f"{command} {target}"
        return f"{self._pip()} {'-e ' if self.is_editable else ''}{target}"

    def _pip(self) -> str:
        python = os.path.join(self.prefix, "bin", "python")
        if not self.has_pip:
            return f"uv pip install --python {shlex.quote(python)}"
        if self.active and os.path.realpath(self.active) == os.path.realpath(self.prefix):
            return "pip install"
        return f"{shlex.quote(os.path.join(self.prefix, 'bin', 'pip'))} install"


def current_installation() -> Installation:
    """Return the installation that runs."""
    from importlib.metadata import PackageNotFoundError, distribution
    from importlib.util import find_spec

    try:
        origin = distribution(DISTRIBUTION).read_text("direct_url.json")
    except (PackageNotFoundError, OSError):
        origin = None
    source, is_editable = _source_of(origin or "")
    return Installation(
        prefix=sys.prefix,
        active=os.environ.get("VIRTUAL_ENV", ""),
        source=source,
        is_editable=is_editable,
        has_pip=find_spec("pip") is not None,
    )


def _source_of(origin: str) -> tuple[str, bool]:
    """Return the folder that ``direct_url.json`` (PEP 610) names, and whether it is editable."""
    try:
        stated = json.loads(origin)
        address = urlsplit(stated["url"])
        folder = url2pathname(address.path)
    except (ValueError, KeyError, TypeError):
        return "", False
    if address.scheme != "file" or not os.path.isdir(folder):
        return "", False
    return folder, bool(stated.get("dir_info", {}).get("editable"))


def install_remedy(extra: str) -> str:
    """Return what a user whose installation lacks an extra has to do."""
    return f"run `{current_installation().command_for(extra)}`"


def extra_remedy(module: str) -> str:
    """Return what a user who lacks a module has to do, empty if no extra has it."""
    extra = _EXTRAS.get(module.partition(".")[0])
    return install_remedy(extra) if extra is not None else ""
