"""An editor: it starts the language server as a process, and speaks the protocol with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any, Self

_SECONDS_MAX = 120.0
PROGRAM = Path(sys.executable).parent / "reconciler"


class Editor:
    """A context in which the server runs for a workspace; messages are read in their order."""

    def __init__(
        self, workspace: Path, cwd: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.workspace = workspace
        self.capabilities: dict[str, Any] = {}
        self.logged: list[str] = []
        self._number = 0
        self._findings: dict[str, list[list[Any]]] = defaultdict(list)
        self._process = subprocess.Popen(
            [PROGRAM, "lsp", "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env={**os.environ, **(environ or {})},
        )
        self._limit = Timer(_SECONDS_MAX, self._process.kill)

    def __enter__(self) -> Self:
        self._limit.start()
        self.initialize()
        return self

    def initialize(self) -> None:
        folder = {"uri": self.workspace.as_uri(), "name": "workspace"}
        answer = self.request(
            "initialize",
            processId=None,
            rootUri=folder["uri"],
            workspaceFolders=[folder],
            capabilities={},
        )
        self.capabilities = answer["capabilities"]
        self.notify("initialized")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.request("shutdown")
            self.notify("exit")
            assert self._process.wait() == 0
        self.end()

    def end(self) -> None:
        """End the server, whatever its state is."""
        self._limit.cancel()
        self._process.kill()
        self._process.communicate()

    def open(self, path: Path, text: str) -> str:
        uri = path.as_uri()
        self.open_uri(uri, text)
        return uri

    def open_uri(self, uri: str, text: str) -> None:
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self.notify("textDocument/didOpen", textDocument=document)

    def change(self, uri: str, text: str) -> None:
        document = {"uri": uri, "version": 2}
        self.notify(
            "textDocument/didChange", textDocument=document, contentChanges=[{"text": text}]
        )

    def findings(self, uri: str) -> list[Any]:
        """Return the next findings on a file that the server publishes."""
        while not self._findings[uri]:
            self._take(self._read())
        return self._findings[uri].pop(0)

    def publications(self, uri: str) -> int:
        """Return how often findings on a file were published so far and not read."""
        return len(self._findings[uri])

    def ask(self, method: str, uri: str, line: int, column: int) -> Any:
        at = {"line": line, "character": column}
        return self.request(method, textDocument={"uri": uri}, position=at)

    def request(self, method: str, **params: Any) -> Any:
        message = self.exchange(method, params or None)
        assert "error" not in message, message
        return message.get("result")

    def exchange(self, method: str, params: Any = None) -> dict[str, Any]:
        """Return the answer to a request, a result or an error."""
        self._number += 1
        body = {"id": self._number, "method": method}
        self._send({**body, **({} if params is None else {"params": params})})
        while True:
            message = self._read()
            if message.get("id") == self._number and "method" not in message:
                return message
            self._take(message)

    def notify(self, method: str, **params: Any) -> None:
        self._send(
            {"method": method, "params": params or ({} if method == "initialized" else None)}
        )

    def send_bytes(self, content: bytes) -> None:
        """Send what may not be a message."""
        assert self._process.stdin is not None
        self._process.stdin.write(content)
        self._process.stdin.flush()

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("method") == "textDocument/publishDiagnostics":
            params = message["params"]
            self._findings[params["uri"]].append(params["diagnostics"])
        if message.get("method") == "window/logMessage":
            self.logged.append(message["params"]["message"])

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.send_bytes(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, "the server has ended"
        found: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return found
