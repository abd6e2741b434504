"""Downloads a file over HTTPS from the one host that the operator names.

The name is resolved once, and the connection goes to an address that was checked: a name server
that answers differently the second time gains nothing. Redirects stay on the host and its port.
No credentials are sent, no proxy is used, and no message shows the query, which may hold a
signature.
"""

from __future__ import annotations

import ipaddress
import socket
from http import HTTPStatus
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

from reconciler.adapters.http import (
    HttpClient,
    HttpError,
    HttpFault,
    ReplyLimits,
    redact_url,
    url_problem,
)
from reconciler.model.errors import UnreadableError, UsageError

TOTAL_S: Final = 300.0
_REDIRECTS_MAX: Final = 3
_REMEDIES: Final = {
    HttpFault.TOO_LARGE: "capture fewer objects",
    HttpFault.TOO_SLOW: "try again, or use a file",
}
_METADATA: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            *("fd00:ec2::/32", "fd20:ce::/32", "fd00:c1::/32"),
            *("100.100.100.200/32", "168.63.129.16/32"),
        ),
    )
)
"""Where clouds answer with credentials besides the link-local addresses."""
_REDIRECTED: Final = frozenset({301, 302, 303, 307, 308})
_TRANSLATED: Final = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48")))
"""IPv6 addresses whose last four bytes are an IPv4 address (NAT64, also of a local network)."""

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


def download(
    url: str, bytes_max: int, *, trust: str | None = None, total_s: float = TOTAL_S
) -> bytes:
    """Return the content at a URL: at most ``bytes_max`` bytes, each answer within ``total_s``.

    ``trust`` is a file of certificates to trust instead of the system's.

    Raises:
        UsageError: the URL is not one that may be read.
        UnreadableError: the server does not return the file.
    """
    limits = ReplyLimits(bytes_max, connect_s=5, read_s=30, total_s=total_s)
    parts = _parse_url(url)
    first = parts
    for _ in range(_REDIRECTS_MAX + 1):
        content, target = _request(parts, limits, trust)
        if target is None:
            return content
        parts = _redirect_target(first, parts, target)
    raise UnreadableError(f"more than {_REDIRECTS_MAX} redirects", where=redact_url(url))


def _parse_url(url: str) -> SplitResult:
    problem = url_problem(url, is_secret=True, has_query=True)
    if problem or urlsplit(url).scheme != "https":
        raise UsageError(
            problem or "not an https URL",
            where=redact_url(url),
            remedy="use https://HOST/PATH, or a presigned URL",
        )
    return urlsplit(url)


def _redirect_target(first: SplitResult, parts: SplitResult, target: str) -> SplitResult:
    """Return where a redirect leads, if that is the same host and port over https."""
    where = redact_url(parts.geturl())
    try:
        new = urlsplit(urljoin(parts.geturl(), target))
        same = (new.scheme, new.hostname, new.port or 443) == (
            "https",
            first.hostname,
            first.port or 443,
        )
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


def _embedded_address(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address leads to, None if it leads to none."""
    inner = ip.ipv4_mapped or ip.sixtofour
    if inner is None and any(ip in net for net in _TRANSLATED):
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return inner


def is_forbidden(address: str) -> bool:
    """Return whether nothing may be read from an IP address."""
    ip: _Ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        ip = _embedded_address(ip) or ip
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return True
    return any(ip.version == net.version and ip in net for net in _METADATA)


def _request(
    parts: SplitResult, limits: ReplyLimits, trust: str | None
) -> tuple[bytes, str | None]:
    """Return the content, or where the server redirects to."""
    where = redact_url(parts.geturl())
    client = HttpClient(parts.geturl(), limits, address=_resolve_address(parts), trust=trust)
    try:
        reply = client.send("GET")
    except HttpError as error:
        raise UnreadableError(
            f"the file cannot be downloaded: {error}",
            where=where,
            remedy=_REMEDIES.get(error.fault, "check the host, its certificate and the network"),
        ) from None
    finally:
        client.close()
    if reply.status in _REDIRECTED:
        return b"", reply.headers.get("location", "")
    if reply.status != HTTPStatus.OK:
        raise UnreadableError(
            f"the server answered {reply.status}",
            where=where,
            remedy="check the URL, and whether it has expired",
        )
    return reply.body, None
