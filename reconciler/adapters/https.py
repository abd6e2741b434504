"""Downloads a file over HTTPS from the one host that the operator names.

The name is resolved once, and the connection goes to an address that was checked: a name server
that answers differently the second time gains nothing. Redirects stay on the host and its port.
No credentials are sent, no proxy is used, and no message shows the query, which may hold a
signature.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

import urllib3

from reconciler.model.errors import UnreadableError, UsageError

_TIMEOUT: Final = urllib3.Timeout(connect=5, read=30)
TOTAL_S: Final = 300.0
_REDIRECTS_MAX: Final = 3
_CHUNK: Final = 2**20
_METADATA: Final = tuple(
    map(ipaddress.ip_network, ("fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32"))
)
"""Where clouds answer with credentials besides the link-local addresses."""
_REDIRECTED: Final = frozenset({301, 302, 303, 307, 308})
_TRANSLATED: Final = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses whose last four bytes are an IPv4 address (NAT64)."""

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


def download(
    url: str, bytes_max: int, *, trust: str | None = None, total_s: float = TOTAL_S
) -> bytes:
    """Return the content at a URL: at most ``bytes_max`` bytes within ``total_s`` seconds.

    ``trust`` is a file of certificates to trust instead of the system's.

    Raises:
        UsageError: the URL is not one that may be read.
        UnreadableError: the server does not return the file.
    """
    deadline = time.monotonic() + total_s
    parts = _parse_url(url)
    first = parts
    for _ in range(_REDIRECTS_MAX + 1):
        content, target = _request(parts, bytes_max, trust, deadline)
        if target is None:
            return content
        parts = _redirect_target(first, parts, target)
    raise UnreadableError(f"more than {_REDIRECTS_MAX} redirects", where=redact_url(url))


def redact_url(url: str) -> str:
    """Return a URL as messages may show it: without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "the URL"
    return f"{parts.scheme}://{host}{parts.path}"


def _parse_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError("not a valid URL", where="--snapshot") from error
    where = redact_url(url)
    if parts.scheme != "https" or not host or not url.isprintable():
        raise UsageError("not an https URL", where=where, remedy="use https://HOST/PATH")
    if "@" in parts.netloc:
        raise UsageError(
            "the URL contains a user or password", where=where, remedy="use a presigned URL"
        )
    return parts


def _redirect_target(first: SplitResult, parts: SplitResult, target: str) -> SplitResult:
    """Return where a redirect leads, if that is the same host and port over https."""
    where = redact_url(parts.geturl())
    try:
        new = urlsplit(urljoin(parts.geturl(), target))
        same = (new.scheme, new.hostname, new.port or 443) == (
            "https", first.hostname, first.port or 443,
        )  # fmt: skip
    except ValueError:
        same = False
    if not same or "@" in new.netloc:
        raise UnreadableError(
            "the server redirects to another host or protocol",
            where=where,
            remedy="pass the URL that it redirects to, if you trust that host",
        )
    return new


def _resolve_address(parts: SplitResult) -> str:
    """Return an address of the host; every address that it has must be allowed."""
    where = redact_url(parts.geturl())
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnreadableError("the host name cannot be resolved", where=where) from error
    addresses = [str(item[4][0]) for item in found]
    for address in addresses:
        if is_forbidden(address):
            raise UsageError(
                f"the host has the address {address}, which is link-local or a metadata service",
                where=where,
                remedy="pass the URL of a file server",
            )
    return addresses[0]


def is_forbidden(address: str) -> bool:
    """Return whether nothing may be read from an IP address."""
    ip: _Ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        ip = inner or ip
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return True
    return any(ip.version == net.version and ip in net for net in _METADATA)


def _request(
    parts: SplitResult, bytes_max: int, trust: str | None, deadline: float
) -> tuple[bytes, str | None]:
    """Return the content, or where the server redirects to."""
    where = redact_url(parts.geturl())
    address = _resolve_address(parts)
    context = ssl.create_default_context(cafile=trust)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Host": parts.netloc, "Accept-Encoding": "identity"}
    pool = urllib3.HTTPSConnectionPool(
        address,
        parts.port or 443,
        ssl_context=context,
        assert_hostname=parts.hostname,
        server_hostname=parts.hostname,
        timeout=_TIMEOUT,
        retries=False,
    )  # urllib3 itself reports an answer that ends early
    with pool:
        try:
            response = pool.request(
                "GET", path, headers=headers, redirect=False, preload_content=False
            )
            try:
                if response.status in _REDIRECTED:
                    return b"", response.headers.get("location", "")
                if response.status != 200:
                    raise UnreadableError(
                        f"the server answered {response.status}",
                        where=where,
                        remedy="check the URL, and whether it has expired",
                    )
                return _read_body(response, bytes_max, deadline, where), None
            finally:
                response.close()
        except urllib3.exceptions.HTTPError as error:
            # its text has the URL with its query
            raise UnreadableError(
                f"the file cannot be downloaded: {type(error).__name__}",
                where=where,
                remedy="check the host, its certificate and the network",
            ) from None


def _read_body(
    response: urllib3.BaseHTTPResponse, bytes_max: int, deadline: float, where: str
) -> bytes:
    parts: list[bytes] = []
    size = 0
    while chunk := response.read1(_CHUNK, decode_content=False):
        size += len(chunk)
        if size > bytes_max:
            raise UnreadableError(
                f"more than {bytes_max} bytes", where=where, remedy="capture fewer objects"
            )
        if time.monotonic() > deadline:
            raise UnreadableError(
                "the download takes too long", where=where, remedy="try again, or use a file"
            )
        parts.append(chunk)
    return b"".join(parts)
