"""Running git itself, on repositories whose content and settings are not to be trusted.

No hook, no file-system monitor, no pager and no prompt runs; the machine's own git settings
count only where they are the user's (credentials, ``safe.directory``), and no variable of a
surrounding git command leaks in.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Final

from reconciler.model.errors import UnreadableError
from reconciler.model.urls import secret_of, without_secrets

TIMEOUT_S: Final = 60.0
NETWORK_TIMEOUT_S: Final = 600.0

_OPTIONS: Final = (
    "--no-optional-locks",
    "--literal-pathspecs",
    "-c",
    "core.fsmonitor=false",
    "-c",
    f"core.hooksPath={os.devnull}",
    "-c",
    "protocol.ext.allow=never",
    "-c",
    "submodule.recurse=false",
    "-c",
    "gc.autoDetach=false",
)
_USERS_OWN: Final = frozenset(
    {"GIT_ASKPASS", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH"}
)
_MESSAGE_MAX: Final = 400


class GitMissingError(UnreadableError):
    """There is no ``git`` on this machine."""

    def __init__(self) -> None:
        super().__init__("git is not installed, or not on PATH", remedy="install git")


class GitFailedError(UnreadableError):
    """git refused; ``said`` is its own message, without secrets."""

    def __init__(self, said: str, *, where: str, remedy: str = "") -> None:
        self.said = said
        super().__init__(f"git: {said}", where=where, remedy=remedy)


def environment(**more: str) -> dict[str, str]:
    """Return the environment in which git runs: the user's, without what would steer it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name in _USERS_OWN
    }
    return {
        **kept,
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_SSH_COMMAND": kept.get("GIT_SSH_COMMAND", "ssh -o BatchMode=yes"),
        **more,
    }


def run(
    arguments: Sequence[str],
    *,
    folder: str,
    where: str,
    timeout_s: float = TIMEOUT_S,
    protocols: str = "",
) -> bytes:
    """Run ``git ARGUMENTS`` in ``folder`` and return what it prints.

    ``protocols`` are those that it may speak, parted by colons; none by default. ``where`` is
    what an error names: the folder or address as the user gave it.

    Raises:
        GitMissingError: there is no git.
        GitFailedError: git refused, or took longer than ``timeout_s``.
    """
    where = without_secrets(where)
    try:
        done = subprocess.run(  # noqa: S603 - the arguments are ours, and no shell reads them
            ("git", *_OPTIONS, *arguments),  # noqa: S607 - the user's git is the one on PATH
            cwd=folder,
            env=environment(GIT_ALLOW_PROTOCOL=protocols),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        if not os.path.isdir(folder):  # noqa: PTH112 - pathlib costs a start
            raise UnreadableError("there is no such folder", where=where) from error
        raise GitMissingError from error
    except subprocess.TimeoutExpired as error:
        raise GitFailedError(f"no answer within {timeout_s:.0f} s", where=where) from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace")
        for secret in filter(None, map(secret_of, arguments)):
            said = said.replace(secret, "***")
        raise _failed(said, arguments[0], where)
    return done.stdout


def _failed(stderr: str, verb: str, where: str) -> GitFailedError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith(("fatal:", "error:", "ERROR:"))]
    said = without_secrets(" ".join(marked or lines))[:_MESSAGE_MAX] or f"{verb} failed"
    remedy = ""
    if "dubious ownership" in stderr:
        said = "the repository belongs to another user, so git does not trust its settings"
        remedy = f"if you do: `git config --global --add safe.directory {_top(where)}`"
    return GitFailedError(said.removeprefix("fatal: "), where=where, remedy=remedy)


def _top(where: str) -> str:
    """Return the repository that ``where`` is in, as ``safe.directory`` wants it."""
    return top_of(where) or os.path.abspath(where)  # noqa: PTH100


def top_of(path: str) -> str | None:
    """Return the top of the working tree that ``path`` lies in; None outside of any."""
    folder = os.path.realpath(path)
    while True:
        if os.path.exists(os.path.join(folder, ".git")):  # noqa: PTH110, PTH118
            return folder
        parent = os.path.dirname(folder)  # noqa: PTH120
        if parent == folder:
            return None
        folder = parent
