"""Dask clusters of strangers: a scheduler that shows the certificate of somebody else."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from reconciler.model.errors import UnreadableError, UsageError
from reconciler.sweep.daskcluster import DaskCluster
from tests.hostile.threats import Threat, attack

pytest.importorskip("distributed")

import dask


def certificate(folder: Path, name: str) -> dict[str, str]:
    """Write a certificate that signs itself; return its settings for Dask."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).add_extension(here, critical=False)
    signed = builder.not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    pem, secret = folder / f"{name}.pem", folder / f"{name}.key"
    pem.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    prefix = "distributed.comm.tls"
    return {
        f"{prefix}.ca-file": str(pem),
        f"{prefix}.client.cert": str(pem),
        f"{prefix}.client.key": str(secret),
    }


@contextmanager
def a_listener(own: Mapping[str, str] | None, received: Queue[bytes]) -> Iterator[int]:
    """Yield the port of a server that keeps what it is sent, with its own certificate if any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if own is not None:
        pem, _, key = own.values()
        context.load_cert_chain(pem, key)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                try:
                    connection.settimeout(5)
                    with context.wrap_socket(connection, server_side=True) as secure:
                        received.put(secure.recv(1))
                except OSError:
                    received.put(b"")

        answering = Thread(target=answer, daemon=True)
        answering.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        answering.join()


@attack(Threat.PROCESSES, "a scheduler of Dask that shows the certificate of a stranger")
def test_nothing_is_sent_to_a_stranger(tmp_path: Path) -> None:
    """Guard: Dask's own check of the certificate, which its settings name."""
    received: Queue[bytes] = Queue()
    with a_listener(certificate(tmp_path, "stranger"), received) as port:
        with (
            dask.config.set(certificate(tmp_path, "own")),
            pytest.raises(UnreadableError, match="cannot be reached"),
        ):
            next(DaskCluster(f"tls://127.0.0.1:{port}").outcomes(cast("Any", None), ["a"]))
        first = received.get(timeout=60)  # the stranger may notice later than we do
    assert [first, *received.queue] == [b""] * (1 + received.qsize())


NOT_CERTIFICATES = {
    "none": {"ca-file": None, "client.cert": None, "client.key": None},
    "no authority": {"ca-file": None},
    "a file that is missing": {"ca-file": "nowhere.pem"},
    "a file of something else": {"ca-file": __file__},
}


@attack(Threat.PROCESSES, "a Dask cluster behind TLS, where no settings name whom to trust")
@pytest.mark.parametrize("wrong", NOT_CERTIFICATES.values(), ids=NOT_CERTIFICATES)
def test_tls_needs_certificates(wrong: Mapping[str, str | None], tmp_path: Path) -> None:
    """Guard: ``_expect_certificates``."""
    settings: dict[str, str | None] = {**certificate(tmp_path, "own")}
    settings |= {f"distributed.comm.tls.{name}": value for name, value in wrong.items()}
    received: Queue[bytes] = Queue()
    with (
        a_listener(None, received) as port,
        dask.config.set(settings),
        pytest.raises(UsageError, match=r"certificates .*which TLS trusts nobody.*TLS__CA_FILE"),
    ):
        DaskCluster(f"tls://127.0.0.1:{port}")
    assert received.empty()
