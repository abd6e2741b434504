"""The API of a cluster that Karpenter runs: lists of objects on a port of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

Lists = dict[str, list[dict[str, Any]] | int]
"""Path of a list → its objects, or the HTTP status with which it is refused."""


@contextmanager
def serving(lists: Lists) -> Iterator[str]:
    """Serve the lists while the block runs, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            found = lists.get(url.path, 404)
            name = parse_qs(url.query).get("fieldSelector", [""])[0].removeprefix("metadata.name=")
            if isinstance(found, int):
                status, answer = found, {"kind": "Status", "reason": "Refused", "message": url.path}
            else:
                items = [o for o in found if not name or o["metadata"]["name"] == name]
                status, answer = 200, {"kind": "List", "metadata": {}, "items": items}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

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
