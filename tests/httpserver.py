"""A server of HTTP on a port of this machine, for the imitations of services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class QuietHandler(BaseHTTPRequestHandler):
    """Answers requests without a log, each with a body of a known length."""

    def reply(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def serving_with(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve requests while the block runs, and yield the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
