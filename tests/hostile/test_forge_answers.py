"""Answers of a forge, or of what stands between: they unpack without end, or are no JSON."""

from __future__ import annotations

import gzip
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from reconciler.adapters.forge import GITHUB_REMEDIES, ForgeApi, ForgeError
from reconciler.adapters.http import HttpClient, HttpError, HttpFault, ReplyLimits
from tests.hostile.threats import Threat, attack
from tests.httpserver import QuietHandler, serving_with


@contextmanager
def answering(content: bytes, coding: str) -> Iterator[str]:
    """Serve one answer for every request while the block runs, and yield its URL."""

    class Handler(QuietHandler):
        def answer(self) -> None:
            self.reply(200, content, {"Content-Encoding": coding})

    with serving_with(Handler) as url:
        yield url


def get(url: str) -> object:
    api = ForgeApi(url, {}, GITHUB_REMEDIES, lambda _: None)
    try:
        return api.get("/user")
    finally:
        api.close()


def zeros(compress: Callable[[bytes], bytes]) -> bytes:
    return compress(b"0" * 64 * 2**20)


@attack(Threat.EXHAUSTION, "an answer of a forge that unpacks without end, or is not JSON")
@pytest.mark.parametrize(
    ("content", "coding", "message"),
    [
        (zeros(gzip.compress), "gzip", "more than 33,554,432 bytes"),
        (zeros(zlib.compress), "deflate", "packed"),
        (b"x", "br", "packed"),
        (b"not gzip", "gzip", "damaged"),
        (gzip.compress(b"not JSON", mtime=0), "gzip", "not JSON"),
        (b"[" * 100_000, "identity", "not JSON"),
    ],
)
def test_an_answer_that_unpacks_without_end_is_refused(
    content: bytes, coding: str, message: str
) -> None:
    with answering(content, coding) as url, pytest.raises(ForgeError, match=message):
        get(url)


def test_an_answer_that_a_proxy_has_packed_is_read() -> None:
    with answering(gzip.compress(b'{"login": "bot"}'), "gzip") as url:
        assert get(url) == {"login": "bot"}


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "a header": (HEAD + b"X: ", b"a"),
    "headers": (HEAD, b"A: b\r\n"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers": (CHUNKED + b"2\r\n[]\r\n0\r\n", b"A: b\r\n"),
    "chunks": (CHUNKED, b"1\r\n0\r\n"),
    "the length of a chunk": (CHUNKED, b"0"),
    "a body": (HEAD + b"\r\n", b"0"),
}


@attack(Threat.EXHAUSTION, "an answer of a server that goes on and on, a few bytes at a time")
@pytest.mark.parametrize(("start", "rest"), ENDLESS.values(), ids=ENDLESS.keys())
def test_an_answer_ends_with_the_time_of_its_request(start: bytes, rest: bytes) -> None:
    turns = 500
    left = iter(range(turns))

    class Handler(QuietHandler):
        def answer(self) -> None:
            self.wfile.write(start)
            for _ in left:
                self.wfile.write(rest)
                time.sleep(0.02)  # each byte starts the timeout of a socket again

    limits = ReplyLimits(10**6, connect_s=2, read_s=2, total_s=0.4)
    with serving_with(Handler) as url:
        client = HttpClient(url, limits)
        with pytest.raises(HttpError) as refused:
            client.send("GET", "/")
        client.close()
        assert next(left, turns) < turns, "the client waited until the server had nothing to say"
    assert refused.value.fault in (HttpFault.TOO_SLOW, HttpFault.UNANSWERED)


@attack(Threat.EXHAUSTION, "a small answer that needs all memory before its size is known")
def test_an_answer_is_unpacked_within_its_limit() -> None:
    packed = gzip.compress(b"0" * 2**26)
    limits = ReplyLimits(2**16, connect_s=5, read_s=5, total_s=60)
    with answering(packed, "gzip") as url:
        client = HttpClient(url, limits)
        tracemalloc.start()
        try:
            with pytest.raises(HttpError) as refused:
                client.send("GET", "/")
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            client.close()
    assert refused.value.fault is HttpFault.TOO_LARGE
    assert most < 3 * 2**20
