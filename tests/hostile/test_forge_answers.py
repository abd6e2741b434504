"""Answers of a forge, or of what stands between: they unpack without end, or are no JSON."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from reconciler.adapters.forge import ForgeApi, ForgeError, github_remedy
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
    api = ForgeApi(url, {}, github_remedy, lambda _: None)
    try:
        return api.get("/user")
    finally:
        api.close()


def zeros(compress: Callable[[bytes], bytes]) -> bytes:
    return compress(b"0" * 64 * 2**20)


@pytest.mark.parametrize(
    ("content", "coding", "message"),
    [
        (zeros(gzip.compress), "gzip", "more than 33,554,432 bytes"),
        (zeros(zlib.compress), "deflate", "packed"),
        (b"x", "br", "packed"),
        (b"not gzip", "gzip", "damaged"),
        (gzip.compress(b"not JSON"), "gzip", "not JSON"),
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
