"""Running git without letting a repository, a folder or a variable decide what runs.

Every run names its git directory (and its work tree, where it has one), starts in a new empty
folder, and has an environment that is written here. Where only a local repository is read, not even
the settings of the user count: see ``repository`` and decision 12. Where git connects to a remote,
the user's own settings count (credentials, proxies), and never those of a repository.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from reconciler.adapters import processes
from reconciler.model.errors import UnreadableError
from reconciler.model.text.urls import without_secrets

TIMEOUT_S: Final = 60.0
NETWORK_TIMEOUT_S: Final = 600.0
OUTPUT_MAX: Final = 64 * 2**20
"""How many bytes one run may print where they are variables in memory."""
MEMORY_MAX: Final = 512 * 2**20
"""The largest piece of memory that git may request: the index of a million files takes half."""

SETTINGS: Final = (
    "safe.bareRepository=explicit",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.commitGraph=false",
    "core.multiPackIndex=false",
    "core.bigFileThreshold=32m",
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    "protocol.ext.allow=never",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
)
"""Settings that every run of git gets, so that none of a repository has an effect."""

_OPTIONS: Final = (
    "--no-pager",
    "--no-optional-locks",
    "--no-replace-objects",
    "--literal-pathspecs",
    *(part for setting in SETTINGS for part in ("-c", setting)),
)
_ALWAYS: Final = {
    "LC_ALL": "C",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
_USERS_OWN: Final = frozenset(
    {
        "GIT_ASKPASS",
        "GIT_CONFIG_GLOBAL",
        "GIT_CONFIG_SYSTEM",
        "GIT_SSH",
        "GIT_SSH_COMMAND",
        "GIT_SSL_CAINFO",
        "GIT_SSL_CAPATH",
    }
)
_MESSAGE_MAX: Final = 400
_NO_MEMORY: Final = re.compile(r"attempting to allocate \d+ over limit|Out of memory")
_CHUNK: Final = 65536

NO_REASON: Final = "git failed without a message"


class GitMissingError(UnreadableError):
    """``git`` is not installed on this machine."""

    def __init__(self) -> None:
        super().__init__("git is not installed or not on PATH", remedy="install git")


class GitFailedError(UnreadableError):
    """git failed; ``git_message`` is its own message, without secrets."""

    def __init__(self, message: str, *, where: str, remedy: str = "") -> None:
        self.git_message = message
        super().__init__(f"git: {message}", where=where, remedy=remedy)


def git_program(tree: str = "") -> str:
    """Return the absolute path of git.

    A relative entry of PATH (``.``, an empty one) would select another program in every folder, and
    one inside the work tree ``tree`` a program of the repository. Neither is used.

    Raises:
        GitMissingError: no other entry has a git.
    """
    for folder in _trusted_path(tree):
        candidate = os.path.join(folder, "git")
        is_in_tree = bool(tree) and is_inside(os.path.realpath(candidate), tree)
        if not is_in_tree and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise GitMissingError


def _trusted_path(tree: str) -> list[str]:
    folders = [f for f in os.get_exec_path() if os.path.isabs(f)]
    return [f for f in folders if not tree or not is_inside(os.path.realpath(f), tree)]


def is_inside(path: str, folder: str) -> bool:
    """Return whether the absolute ``path`` is ``folder`` or lies below it, as they are written."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def local_environment(home: str, tree: str = "", *, memory_max: int = MEMORY_MAX) -> dict[str, str]:
    """Return the environment for reading a local repository, without the user's configuration.

    ``memory_max`` limits each piece of memory, in bytes: git unpacks an object, and what the object
    is a delta of, in one piece, before the size of the result is known.
    """
    return {
        **processes.library_folders(),
        **_ALWAYS,
        "PATH": os.pathsep.join(_trusted_path(tree)),
        "HOME": home,
        "XDG_CONFIG_HOME": home,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ALLOC_LIMIT": str(memory_max),
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_CEILING_DIRECTORIES": os.path.dirname(home),
    }


def users_environment(protocols: str = "", **extra: str) -> dict[str, str]:
    """Return the user's environment for connecting to a remote, without variables that control git.

    ``protocols`` are those that git may use, separated by colons.
    """
    own = {name: os.environ[name] for name in sorted(_USERS_OWN) if name in os.environ}
    return {
        **processes.environment(),
        **own,
        **_ALWAYS,
        "PATH": os.pathsep.join(_trusted_path("")),
        "GIT_ALLOW_PROTOCOL": protocols,
        "GIT_SSH_COMMAND": own.get("GIT_SSH_COMMAND", "ssh -o BatchMode=yes"),
        **extra,
    }


def command_line(
    arguments: Sequence[str], *, git_dir: str, work_tree: str = "", tree: str = ""
) -> tuple[str, ...]:
    """Return the complete command line of a run of git."""
    places = [f"--git-dir={git_dir}", *([f"--work-tree={work_tree}"] if work_tree else [])]
    return (git_program(tree), *_OPTIONS, *places, *arguments)


def run(
    arguments: Sequence[str],
    *,
    git_dir: str,
    cwd: str,
    environment: Mapping[str, str],
    where: str,
    work_tree: str = "",
    tree: str = "",
    timeout_s: float = TIMEOUT_S,
    secrets: Sequence[str] = (),
) -> bytes:
    """Run ``git ARGUMENTS`` on ``git_dir`` and return what it prints, at most ``OUTPUT_MAX``.

    ``tree`` is a work tree that git itself must not come from, by default ``work_tree``. An error
    names ``where``: the folder or address as the user wrote it. ``secrets`` are texts that no
    message may show.

    Raises:
        GitMissingError: there is no git.
        GitFailedError: git refused, took longer than ``timeout_s``, or printed too much.
    """
    parts: list[bytes] = []
    size = 0
    line = command_line(arguments, git_dir=git_dir, work_tree=work_tree, tree=tree or work_tree)
    for part in stream_output(
        line, cwd=cwd, environment=environment, where=where, timeout_s=timeout_s, secrets=secrets
    ):
        parts.append(part)
        size += len(part)
        if size > OUTPUT_MAX:
            message = f"its output exceeds {OUTPUT_MAX >> 20} MiB"
            raise GitFailedError(message, where=without_secrets(where))
    return b"".join(parts)


def stream_output(
    line: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[str, str],
    where: str,
    timeout_s: float = TIMEOUT_S,
    secrets: Sequence[str] = (),
) -> Iterator[bytes]:
    """Yield the output of a run of git in pieces; a reader that stops early ends the run.

    Raises:
        GitFailedError: git refused, or took longer than ``timeout_s``.
    """
    where = without_secrets(where)
    deadline = time.monotonic() + timeout_s
    stderr_path = os.path.join(cwd, "stderr")
    with open(stderr_path, "w+b") as stderr:
        process = start_process(line, cwd=cwd, environment=environment, stderr=stderr)
        assert process.stdout is not None
        number = process.stdout.fileno()
        try:
            while True:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([number], [], [], left)[0]:
                    message = f"no answer within {timeout_s:.0f} s"
                    raise GitFailedError(message, where=where)
                part = os.read(number, _CHUNK)
                if not part:
                    break
                yield part
            code = process.wait()
        finally:
            processes.end(process)
        if code:
            stderr.seek(0)
            raise failure_error(stderr.read(_CHUNK), where, secrets)


def start_process(
    line: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[str, str],
    stderr: processes.Stream = processes.DISCARDED,
    stdin: processes.Stream = processes.DISCARDED,
) -> processes.Process:
    """Start git.

    Raises:
        GitMissingError: it cannot be started.
    """
    try:
        return processes.start(line, cwd=cwd, variables=environment, stdin=stdin, stderr=stderr)
    except (FileNotFoundError, PermissionError) as error:
        raise GitMissingError from error


def failure_error(stderr: bytes, where: str, secrets: Sequence[str] = ()) -> GitFailedError:
    """Return the error of a failed git command, in one line and without secrets."""
    text = stderr.decode("utf-8", "replace")
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith(("fatal:", "error:", "ERROR:"))]
    message = without_secrets(" ".join(marked or lines))[:_MESSAGE_MAX]
    if _NO_MEMORY.search(message):
        message = "an object of the repository is too large to be unpacked"
    return GitFailedError(message.removeprefix("fatal: ") or NO_REASON, where=where)
