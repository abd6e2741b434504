"""Answers of a forge, or of what stands between: they unpack without end, or are no JSON."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from reconciler.adapters.forge import ForgeApi, ForgeError, github_remedy


@contextmanager
def answering(content: bytes, coding: str) -> Iterator[str]:
    """Serve one answer for every request while the block runs, and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Encoding", coding)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
        (zeros(gzip.compress), "gzip", "too large"),
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
