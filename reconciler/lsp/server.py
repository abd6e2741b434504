"""The language server: the protocol on standard input and output (pygls), around a session.

Everything that takes time runs in one thread beside the one that reads messages, in order, so that
a session has one user. Findings follow a short pause after the last change.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Final, TypeVar

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from reconciler import build
from reconciler.assembly.inputs.checking import CheckContext
from reconciler.lsp.protocol import AnsweringProtocol
from reconciler.lsp.session import EditorSession, LocatedFinding, Span
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.errors import ReconcilerError
from reconciler.model.text.visible import neutralize

T = TypeVar("T")

Message = Any
"""A message of the protocol, or a part of one: its types are those of a package of the extra."""

PAUSE_S: Final = 0.15
"""How long after the last change the findings are computed."""
TEXT_MAX: Final = 4 * 1024 * 1024
"""Characters of a text; a larger one is not kept."""
MESSAGE_MAX: Final = 64 * 1024 * 1024
"""Bytes of a message; a larger one is skipped."""
HEADER_MAX: Final = 64 * 1024
_ENDLESS: Final = re.compile(rb"Content-Length: [0-9]{16}")
LINE_MAX: Final = 300
"""Characters of a line about a message that the server could not read."""
SOURCE: Final = "reconciler"
_SUFFIXES: Final = (".yaml", ".yml", ".json")


def serve(context: CheckContext, stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Answer an editor until it ends the connection.

    What the package that speaks the protocol logs about a message is printed as one line.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter())
    log = logging.getLogger("pygls")
    log.addHandler(handler)
    log.propagate = False
    try:
        FleetServer(context).server.start_io(BoundedInput(stdin), stdout)
    finally:
        log.removeHandler(handler)
        log.propagate = True


class BoundedInput:
    """Standard input with limits: the package reads whatever length a message says it has."""

    def __init__(self, stdin: BinaryIO) -> None:
        self._stdin = stdin

    def readline(self) -> bytes:
        """Return a line, of a longer one its start; a length has at most 15 digits."""
        line = part = self._stdin.readline(HEADER_MAX)
        while len(part) == HEADER_MAX and not part.endswith(b"\n"):
            part = self._stdin.readline(HEADER_MAX)
        if _ENDLESS.match(line):
            return b"Content-Length: " + b"9" * 15 + b"\r\n"
        return line

    def read(self, size: int) -> bytes:
        """Return a message; one that is too large is skipped, and is an error in its place."""
        if size <= MESSAGE_MAX:
            return self._stdin.read(size)
        while size > 0 and (part := self._stdin.read(min(size, HEADER_MAX))):
            size -= len(part)
        return b"a message is too large" if size == 0 else b""


class _LineFormatter(logging.Formatter):
    """The first line of a message, without the traceback that it quotes."""

    def format(self, record: logging.LogRecord) -> str:
        lines = record.getMessage().splitlines() or [""]
        return neutralize(f"{record.levelname.capitalize()}: {lines[0]}"[:LINE_MAX])


class FleetServer:
    """Connects a session with the messages of the protocol."""

    def __init__(self, context: CheckContext, pause: float = PAUSE_S) -> None:
        self.session = EditorSession(context)
        self.pause = pause
        self._worker = ThreadPoolExecutor(1, "fleet")
        self._pending: dict[str, asyncio.TimerHandle] = {}
        self._queued: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.server: Message = LanguageServer(
            SOURCE,
            build.release(),
            text_document_sync_kind=types.TextDocumentSyncKind.Full,
            protocol_cls=AnsweringProtocol,
        )
        self._answer(types.INITIALIZED, self._start)
        self._answer(types.SHUTDOWN, self._stop)
        self._answer(types.TEXT_DOCUMENT_DID_OPEN, self._note_open)
        self._answer(types.TEXT_DOCUMENT_DID_CHANGE, self._note_change)
        self._answer(types.TEXT_DOCUMENT_DID_SAVE, self._note_open)
        self._answer(types.TEXT_DOCUMENT_DID_CLOSE, self._note_close)
        triggers = types.CompletionOptions(trigger_characters=[":", " ", "-", '"', "[", ","])
        self._answer(types.TEXT_DOCUMENT_COMPLETION, self._complete, triggers)
        self._answer(types.TEXT_DOCUMENT_HOVER, self._hover)
        kinds = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])
        self._answer(types.TEXT_DOCUMENT_CODE_ACTION, self._offer_fixes, kinds)

    def _answer(
        self, message: str, method: Callable[[Message], Awaitable[Message]], options: Message = None
    ) -> None:
        """Let a method answer a kind of message; pygls marks functions, which methods are not."""

        async def answer(params: Message) -> Message:
            return await method(params)

        self.server.feature(message, options)(answer)

    async def _start(self, _: Message) -> None:
        workspace = self.server.workspace
        folders = [folder.uri for folder in workspace.folders.values()]
        paths = [_real_path(uri) for uri in folders or [workspace.root_uri or ""]]
        self.session.workspaces = tuple(path for path in paths if path)
        self.session.encoding = str(getattr(workspace.position_encoding, "value", "utf-16"))

    async def _stop(self, _: Message) -> None:
        for timer in self._pending.values():
            timer.cancel()
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def _note_open(self, params: Message) -> None:
        self._note_text(params.text_document.uri, 0.0)

    async def _note_change(self, params: Message) -> None:
        self._note_text(params.text_document.uri, self.pause)

    async def _note_close(self, params: Message) -> None:
        path = _fleet_file(params.text_document.uri)
        if path is not None:
            self._schedule(path, 0.0, lambda: self.session.texts.pop(path, None))

    def _note_text(self, uri: str, pause: float) -> None:
        """Keep the text of an open file, and compute the findings after a pause."""
        path = _fleet_file(uri)
        known = self.server.workspace.text_documents.get(uri)
        if path is None or known is None or len(known.source) > TEXT_MAX:
            return
        text = known.source

        def keep() -> None:
            self.session.texts[path] = text

        self._schedule(path, pause, keep)

    def _schedule(self, path: str, pause: float, change: Callable[[], object]) -> None:
        """Apply a change to the session at once, and publish the findings after a pause."""
        loop = asyncio.get_running_loop()
        self._worker.submit(change)
        folder = os.path.dirname(path)
        timer = self._pending.pop(folder, None)
        if timer is not None:
            timer.cancel()
        self._pending[folder] = loop.call_later(pause, self._start_check, folder, path)

    def _start_check(self, folder: str, path: str) -> None:
        """Compute the findings of a folder, unless a check of it waits for its turn already."""
        self._pending.pop(folder, None)
        if folder in self._queued:
            return
        self._queued.add(folder)
        task = asyncio.get_running_loop().create_task(self._publish(folder, path))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, folder: str, path: str) -> None:
        def check() -> dict[str, list[LocatedFinding]]:
            self._queued.discard(folder)
            return self.session.check(path)

        found = await self._ask(check)
        for name, findings in (found or {}).items():
            self.server.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(
                    uri=from_fs_path(name), diagnostics=[_diagnostic(one) for one in findings]
                )
            )

    async def _ask(self, question: Callable[[], T]) -> T | None:
        """Return an answer of the session; None, with a line in the editor's log, on an error."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, question)
        except ReconcilerError as error:
            message = neutralize(" ".join(str(error).split()))
            self.server.window_log_message(
                types.LogMessageParams(type=types.MessageType.Warning, message=message)
            )
            return None

    async def _complete(self, params: Message) -> Message:
        path, at = _fleet_file(params.text_document.uri), params.position
        if path is None:
            return None
        found = await self._ask(lambda: self.session.complete(path, at.line, at.character))
        if found is None:
            return None
        items = [
            types.CompletionItem(
                label=one.label,
                kind=types.CompletionItemKind.Field
                if one.is_key
                else types.CompletionItemKind.Value,
                documentation=one.meaning or None,
                sort_text=f"{number:05}",
                filter_text=one.label,
                text_edit=types.TextEdit(
                    _range(found.span), one.label if found.is_quoted else one.text
                ),
            )
            for number, one in enumerate(found.proposals)
        ]
        return types.CompletionList(is_incomplete=False, items=items)

    async def _hover(self, params: Message) -> Message:
        path, at = _fleet_file(params.text_document.uri), params.position
        if path is None:
            return None
        found = await self._ask(lambda: self.session.hover(path, at.line, at.character))
        if found is None:
            return None
        content = types.MarkupContent(types.MarkupKind.Markdown, found.text)
        return types.Hover(content, _range(found.span))

    async def _offer_fixes(self, params: Message) -> Message:
        path, uri = _fleet_file(params.text_document.uri), params.text_document.uri
        if path is None:
            return None
        changes = await self._ask(lambda: self.session.fix(path))
        if not changes:
            return None
        edits = [types.TextEdit(_range(change.span), change.text) for change in changes]
        return [
            types.CodeAction(
                title="Rewrite older spellings in this file",
                kind=types.CodeActionKind.QuickFix,
                edit=types.WorkspaceEdit(changes={uri: edits}),
            )
        ]


def _real_path(uri: str) -> str:
    """Return the real path of a file or folder of this machine, empty for any other address."""
    path: str | None = to_fs_path(uri)
    if not path or path.startswith("//") or "\0" in path:
        return ""
    return os.path.realpath(path)


def _fleet_file(uri: str) -> str | None:
    """Return the path of a file in its real folder; None if it can be of no fleet.

    The last part is kept: the text of a link is that of the editor, and its target is not read.
    """
    path: str | None = to_fs_path(uri)
    if not path or path.startswith("//") or "\0" in path or not path.endswith(_SUFFIXES):
        return None
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _range(span: Span) -> Message:
    start, end = span
    return types.Range(types.Position(*start), types.Position(*end))


def _diagnostic(found: LocatedFinding) -> Message:
    finding = found.finding
    severity = {
        Severity.ERROR: types.DiagnosticSeverity.Error,
        Severity.WARNING: types.DiagnosticSeverity.Warning,
        Severity.INFO: types.DiagnosticSeverity.Information,
    }[finding.severity]
    return types.Diagnostic(
        _range(found.span), _message(finding), severity=severity, code=finding.code, source=SOURCE
    )


def _message(finding: Diagnostic) -> str:
    """Return a finding as `validate` prints it, without its place, severity and code."""
    what = f"{finding.path}: " if finding.path else ""
    hint = f" ({finding.hint})" if finding.hint else ""
    return neutralize(f"{what}{finding.message}{hint}")
