"""Recognizes what other programs have recorded, and finds the audit events in it.

These forms are read, plain or gzipped:

- audit events, one on each line: of an API server, or of an export of CloudWatch Logs to S3, where
  a time comes before each. Lines of other logs in an export are ignored;
- the JSON of ``aws logs filter-log-events`` and ``get-log-events``;
- what a subscription of CloudWatch Logs delivers to S3, one document after another;
- a capture of kubereplay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from reconciler.backtest.captures.auditlog import GROUP, AuditMessage, read_audit_log
from reconciler.backtest.captures.kubereplay import CapturedPeriod, read_kubereplay
from reconciler.backtest.captures.pods import MALFORMED, line_error
from reconciler.backtest.trace import BYTES_MAX, Trace
from reconciler.model.decode import decode_json, describe_mismatch, expect_values
from reconciler.source.compressed import decompress

_DATED: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}Z? ")
"""The time that an export of CloudWatch Logs puts before each line."""
_SPLIT: Final = "split it into shorter captures"
_REPLY: Final = re.compile(rb'\{\s*"(?:events|searchedLogStreams|next[A-Za-z]*Token)"\s*:')
"""The beginning of what ``aws logs`` prints, on one line or on several."""
_OWN: Final = b'"Trace"'
_DELIVERY: Final = b'"messageType"'
_JOINED: Final = re.compile(rb'\}[ \t]*(?=\{"messageType")')
_KUBEREPLAY: Final = re.compile(rb'"captured"[ \t]*:')


class _LogEvent(msgspec.Struct, frozen=True):
    message: str = ""


class _LogEvents(msgspec.Struct, frozen=True):
    events: tuple[_LogEvent, ...]


class _Delivered(msgspec.Struct, frozen=True, rename="camel"):
    message_type: str = ""
    log_events: tuple[_LogEvent, ...] = ()


def read_capture(content: bytes, where: str) -> tuple[Trace, str] | None:
    """Return the trace of a capture with a report about it; None for any other file.

    Raises:
        UnreadableError: it is too large, or a part of it cannot be read.
    """
    plain = decompress(content, BYTES_MAX, where, size_remedy=_SPLIT)
    capture = _capture(plain.removeprefix(b"\xef\xbb\xbf"), where)
    if capture is None:
        return None
    trace = capture.pods.trace(capture.begin, capture.end)
    return trace, capture.pods.report(trace)


def _capture(plain: bytes, where: str) -> CapturedPeriod | None:
    head = plain[:4096].lstrip()
    first = head.partition(b"\n")[0]
    if _OWN in first:
        return None
    if head.startswith(b"{") and _DELIVERY in first:
        return read_audit_log(_deliveries(plain, where), where)
    is_log = bool(_DATED.match(first)) or GROUP.encode() in first
    if is_log and not _REPLY.match(head):
        return read_audit_log(_lines(plain), where)
    if head.startswith(b"{") and b'"events"' in head:
        expect_values(plain, where, remedy=_SPLIT)
        if _KUBEREPLAY.search(head):
            return read_kubereplay(plain, where)
        return read_audit_log(_replies(plain, where), where)
    return None


def _lines(plain: bytes) -> Iterator[AuditMessage]:
    """Yield the lines that are JSON; others are of other logs."""
    for number, line in enumerate(_split(plain), 1):
        dated = _DATED.match(line)
        text = (line[dated.end() :] if dated else line).strip()
        if text.startswith(b"{"):
            yield AuditMessage(number, text)


def _split(plain: bytes) -> Iterator[bytes]:
    """Yield the lines one by one: all at once would take as much memory again."""
    position = 0
    while position < len(plain):
        end = plain.find(b"\n", position)
        end = len(plain) if end < 0 else end
        yield plain[position:end]
        position = end + 1


def _replies(plain: bytes, where: str) -> Iterator[AuditMessage]:
    """Yield the messages of a reply of CloudWatch Logs, all at the line of the document."""
    try:
        reply = decode_json(plain, _LogEvents)
    except MALFORMED as error:
        raise line_error(where, 1, describe_mismatch(error)) from error
    starts = (m.start() for m in re.finditer(rb'"message"[ \t]*:', plain))
    line, position = 1, 0
    for event in reply.events:
        start = next(starts, position)
        line += plain.count(b"\n", position, start)
        position = start
        yield from _message(event, line)


def _deliveries(plain: bytes, where: str) -> Iterator[AuditMessage]:
    """Yield the messages of documents that a subscription has delivered."""
    for number, line in enumerate(_split(plain), 1):
        for text in _JOINED.sub(b"}\n", line).split(b"\n"):
            if not text.strip():
                continue
            try:
                document = decode_json(text, _Delivered)
            except MALFORMED as error:
                raise line_error(where, number, describe_mismatch(error)) from error
            for event in document.log_events:
                yield from _message(event, number)


def _message(event: _LogEvent, line: int) -> Iterator[AuditMessage]:
    if event.message.lstrip().startswith("{"):
        yield AuditMessage(line, event.message.encode())
