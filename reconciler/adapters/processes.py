"""Starts the processes of the product; a test forbids every other way.

A process takes programs from the current folder, the environment and the import path: ``python -c``
imports from the current folder before anything else, and ``PYTHONPATH``, ``LD_LIBRARY_PATH`` or a
relative entry of ``PATH`` can name a folder of a checkout. So each process starts in an empty
folder of our own, with the variables listed here, and Python without any of its own variables.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Final, TypeAlias

from reconciler.model.errors import ReconcilerError, UnreadableError

Process: TypeAlias = subprocess.Popen[bytes]
Stream: TypeAlias = int | IO[bytes] | None
PIPE: Final = subprocess.PIPE
DISCARDED: Final = subprocess.DEVNULL
INHERITED: Final = None

_NAMES: Final = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TERM", "SYSTEMROOT"),
        *("LANG", "LANGUAGE", "TZ", "NO_COLOR", "FORCE_COLOR", "CI"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NIX_SSL_CERT_FILE"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("SSH_AUTH_SOCK", "SSH_AGENT_PID", "DBUS_SESSION_BUS_ADDRESS"),
        *("GH_TOKEN", "USE_GKE_GCLOUD_AUTH_PLUGIN"),
    }
)
_PREFIXES: Final = (
    *("RECONCILER_", "AWS_", "KUBE", "OTEL_", "PG", "LC_", "XDG_", "KRB5"),
    *("GITHUB_", "GITLAB_", "CI_", "GCM_"),
    *("ARM_", "AZURE_", "CLOUDSDK_", "GOOGLE_", "VAULT_"),
)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOLDER_LISTS: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables with folders from which programs and libraries are loaded."""


def environment() -> dict[str, str]:
    """Return the variables that a process of ours gets: credentials, proxies, locale, folders.

    A variable that makes a program load code (``PYTHONPATH``, ``LD_PRELOAD``, ``BASH_ENV``,
    ``NODE_OPTIONS``) is not among them, nor a relative folder in a list of folders.
    """
    kept = {n: v for n, v in os.environ.items() if n in _NAMES or n.startswith(_PREFIXES)}
    return {**kept, **library_folders(), **_absolute_folders("PATH"), "PYTHONSAFEPATH": "1"}


def library_folders() -> dict[str, str]:
    """Return the variables without which a program does not start on some machines."""
    found = {n: os.environ[n] for n in ("SYSTEMROOT",) if n in os.environ}
    for name in _FOLDER_LISTS[1:]:
        found |= _absolute_folders(name)
    return found


def _absolute_folders(name: str) -> dict[str, str]:
    folders = [f for f in os.environ.get(name, "").split(os.pathsep) if os.path.isabs(f)]
    return {name: os.pathsep.join(folders)} if folders else {}


def start(
    command: Sequence[str],
    *,
    cwd: str,
    variables: Mapping[str, str],
    stdin: Stream = DISCARDED,
    stdout: Stream = PIPE,
    stderr: Stream = DISCARDED,
    new_session: bool = True,
) -> Process:
    """Start a program in the folder ``cwd`` with exactly these variables, without a shell.

    ``command`` begins with an absolute path, and ``cwd`` is a ``private_folder``.

    Raises:
        OSError: it cannot be started.
    """
    assert os.path.isabs(command[0]), "the current folder does not choose the program"
    assert os.path.isabs(cwd), "the process does not start in the current folder"
    return subprocess.Popen(  # noqa: S603 - the arguments are ours, and no shell reads them
        command,
        cwd=cwd,
        env=dict(variables),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=new_session,
    )


def answer_of(
    command: Sequence[str],
    content: bytes,
    *,
    cwd: str,
    variables: Mapping[str, str],
    timeout_s: float,
) -> tuple[int | None, bytes]:
    """Return the exit status of a program, None if it took too long, and what it printed.

    ``content`` is its input.

    Raises:
        OSError: it cannot be started.
    """
    process = start(command, cwd=cwd, variables=variables, stdin=PIPE)
    try:
        out, _ = process.communicate(content, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return None, process.communicate()[0]
    else:
        return process.returncode, out
    finally:
        end(process)


def end(process: Process) -> None:
    """Kill a process that has a session of its own, with everything it started, and reap it."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    process.wait()


def python_file(path: str) -> list[str]:
    """Return the command that runs a file of ours, without the import path of this process."""
    return [_interpreter(), "-I", "-B", path]


def python_function(module: str, function: str, *arguments: str) -> list[str]:
    """Return the command that calls a function of the package with ``sys.argv[1:]``."""
    code = (
        f"import sys; sys.path[:] = {repr(import_path())}; "  # noqa: RUF010 - code, not a message
        f"from {module} import {function} as run; sys.exit(run())"
    )
    return [_interpreter(), "-I", "-B", "-c", code, *arguments]


def import_path() -> list[str]:
    """Return the folders from which a process of ours may import.

    The current folder is not among them, unless the package itself is there.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    here = os.path.realpath(os.curdir)
    own = [p for p in sys.path if os.path.isabs(p) and os.path.realpath(p) != here]
    return own if package in own else [*own, package]


def _interpreter() -> str:
    if not os.path.isabs(sys.executable or ""):
        raise ReconcilerError(
            "the Python interpreter is unknown, so no process can be started",
            where="sys.executable",
            remedy="run the installed command `reconciler`",
        )
    return sys.executable


def find_program(name: str) -> str | None:
    """Return the absolute path of a program; a relative entry of PATH does not count.

    A name with a slash is a path from the current folder, which the user wrote.
    """
    if os.sep in name:
        return os.path.abspath(name)
    for folder in os.get_exec_path():
        candidate = os.path.join(folder, name)
        if os.path.isabs(folder) and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


@contextmanager
def private_folder() -> Iterator[str]:
    """Yield a new folder that only this user can enter, and remove it afterwards.

    Raises:
        UnreadableError: no folder for temporary files can be written, or its disk is full.
    """
    folder = _create_private_folder()
    try:
        yield folder
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise UnreadableError(
            f"no temporary files can be written: {error.strerror}",
            where=os.path.dirname(folder),
            remedy="free some space there, or set TMPDIR to a folder on another disk",
        ) from error
    finally:
        _remove_folder(folder)


def _create_private_folder() -> str:
    """Return a new private folder, without ``tempfile``, whose import takes 8 ms."""
    for place in (os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp"):  # noqa: S108 - the name is random, the mode 0700
        if os.path.isabs(place):
            folder = os.path.join(os.path.realpath(place), f"reconciler-{os.urandom(12).hex()}")
            with suppress(OSError):
                os.mkdir(folder, 0o700)
                return folder
    remedy = "set TMPDIR to a folder that this user can write"
    raise UnreadableError("no folder for temporary files", where="TMPDIR", remedy=remedy)


def _remove_folder(folder: str) -> None:
    """Remove a folder with its files and folders; a link in it is removed, never followed."""
    with suppress(OSError):
        with os.scandir(folder) as listing:
            entries = list(listing)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _remove_folder(entry.path)
            else:
                os.unlink(entry.path)
        os.rmdir(folder)
