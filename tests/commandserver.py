"""Runs the command line in processes forked from one that has imported its modules already.

A scenario takes less time than the imports of its command. Each command still has a process, its
arguments, environment, current folder, output and exit code of its own, and no state of another
one: only modules are imported before the fork, and nothing is run.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).with_name("commandclient.py")
_LONGEST_S: Final = 600
"""After this time a command ends, though nobody waits for it."""
_NAMES: Final = """\
import sys
from reconciler.cli.main import main
code = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write("\\n".join(sys.modules))
sys.exit(code)
"""


@contextmanager
def command_server(command: Sequence[str]) -> Iterator[str]:
    """Yield a command line that has the effect of ``python -m reconciler``, while the block runs.

    The modules that ``command`` needs are imported in advance.
    """
    modules = _modules_of(command)
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder, "socket"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)
            number = listener.fileno()
            server = subprocess.Popen(
                [sys.executable, "-m", "tests.commandserver", str(number), *modules],
                cwd=Path(__file__).resolve().parents[1],
                pass_fds=[number],
            )
        with server:
            try:
                yield shlex.join([sys.executable, "-I", "-S", str(CLIENT), address])
            finally:
                server.terminate()


def _modules_of(command: Sequence[str]) -> list[str]:
    """Return the names of the modules that a command imports, in their order."""
    with tempfile.NamedTemporaryFile("r") as names:
        program = [sys.executable, "-c", _NAMES, names.name, *command]
        result = subprocess.run(program, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)} fails: {result.stderr}")
        return names.read().split()


def _serve(listener: socket.socket, modules: Sequence[str]) -> None:
    """Fork a process for each command."""
    for name in modules:
        # some are made by an extension module and cannot be imported by their name
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # otherwise each collection copies the pages of all modules
    while True:
        connection, _ = listener.accept()
        with suppress(ChildProcessError):  # there is no process
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        with connection:
            if os.fork() == 0:
                _exit_after(_answer, connection)


def _exit_after(work: Callable[..., None], *arguments: object) -> None:
    """Do the work of a forked process, which must not return to that of its parent."""
    try:
        work(*arguments)
    except BaseException:  # noqa: BLE001 - the process ends here in any case
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _answer(connection: socket.socket) -> None:
    """Run the command of a client in this process, and send it the exit code."""
    signal.alarm(_LONGEST_S)
    parts, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while not parts.endswith(b"\0"):
        parts += connection.recv(1 << 16)
    request = json.loads(parts[:-1])
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["reconciler", *request["arguments"]]
    from reconciler.cli.main import main

    code = main(request["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(str(code).encode())


if __name__ == "__main__":
    del sys.path[0]  # the current folder, as in ``python -m reconciler``
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
