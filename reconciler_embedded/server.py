"""The simulated EC2 on a local port, so that EC2 continues when its caller is killed."""

from __future__ import annotations

import re
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from reconciler_embedded.ec2 import ConnectionLostError, EmbeddedEC2
from reconciler_embedded.wire import Request, Response

_SCOPE: Final = re.compile(r"Credential=[^/=]+/\d+/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4")
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends a reset instead of an orderly end."""


@contextmanager
def serve(ec2: EmbeddedEC2, port: int = 0) -> Iterator[str]:
    """Serve on loopback while the block runs, and yield the endpoint's URL.

    Port 0 selects a free one. A call that times out because of a fault is reset here as well: the
    caller learns as little, only sooner.
    """
    server = _Server(("127.0.0.1", port), _Handler)
    server.ec2 = ec2
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """A server of one account; connections do not outlive it."""

    daemon_threads = True
    block_on_close = False
    ec2: EmbeddedEC2

    def handle_error(self, request: Any, client_address: object) -> None:
        """Ignore a connection that the client closed, as a killed client does."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        """Answer a call of a REST service."""
        self.do_POST()

    def do_POST(self) -> None:
        """Answer one call; AWS' signature names the service and the region."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        scope = _SCOPE.search(self.headers.get("Authorization", ""))
        request = Request(
            service=scope["service"] if scope else "ec2",
            region=scope["region"] if scope else self.server.ec2.region,
            method=self.command,
            path=self.path,
            headers=dict(self.headers.items()),
            body=body,
        )
        try:
            answer = self.server.ec2.respond(request)
        except ConnectionLostError:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.close_connection = True
            self.connection.close()
            return
        with suppress(ConnectionError):
            self._reply(answer)

    def _reply(self, answer: Response) -> None:
        """Send an answer; a caller that was killed meanwhile does not receive it."""
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("content-length", "date", "server", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        """Log nothing: the calls are in ``EmbeddedEC2.calls``."""
