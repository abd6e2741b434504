"""A server of HTTP on a port of this machine, for the imitations of services."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class QuietHandler(BaseHTTPRequestHandler):
    """Answers requests without a log, each with a body of a known length."""

    def answer(self) -> None:
        """Answer a request."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer a request of any method."""
        self.answer()

    do_POST = do_PATCH = do_PUT = do_GET  # noqa: N815 - as http.server names them

    def reply(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send an answer."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def handle(self) -> None:
        """Serve a connection; one that the client ends early is over."""
        with suppress(OSError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def serving_with(
    handler: type[BaseHTTPRequestHandler], certificate: Path | None = None
) -> Iterator[str]:
    """Serve requests while the block runs, and yield the URL.

    With a certificate it is that of ``localhost``, and the server uses TLS.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    port = server.server_address[1]
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"https://localhost:{port}" if certificate else f"http://127.0.0.1:{port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_certificate(folder: Path) -> Path:
    """Write the certificate of ``localhost`` and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    start = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=3))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "both.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)
    return file
