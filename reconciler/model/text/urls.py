"""Split addresses that may contain a password, and print them without it.

A password is often written into an address as it is, with the characters that should be
percent-encoded. Printing therefore hides too much rather than too little: everything before the
last ``@`` of an address but the user's name, and everything behind a ``token=``.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

_ADDRESS: Final = re.compile(r"(?<=://)\S+")
_VALUE: Final = re.compile(r"(?<=://).+", re.DOTALL)
_AUTHORITY: Final = re.compile(r"(?:[^:\[\]]*|\[[^\]]*\])(?::[0-9]{0,5})?[:,.;'\")\]>]*")
_QUERY: Final = re.compile(
    r"([?&;#][^=&;?\s]*(?:pass|pwd|token|secret|key|sig|auth|cred)[^=&;\s]*=).+", re.IGNORECASE
)
_KEYWORD: Final = re.compile(
    r"\b((?:ssl)?password|passwd|pgpassword)(\s*=\s*)('[^'\n]*'|\"[^\"\n]*\"|\S+)", re.IGNORECASE
)
_BARE: Final = re.compile(r"(?<![\w/:@.*-])([\w.+-]+):(?!//)\S+@(?=[\w\[])")
_BARE_VALUE: Final = re.compile(r"(?<![\w/:@.*-])([\w.+-]+):(?!//).+@(?=[\w\[])", re.DOTALL)
_LOOPBACK: Final = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|::1", re.IGNORECASE)
_MASK: Final = "***"


class Address(NamedTuple):
    """An address without credentials, and its credentials: decoded, empty if it has none."""

    bare: str
    user: str = ""
    password: str = ""


def split_credentials(url: str) -> Address:
    """Split an address from its user and password, which end at the only ``@``.

    Raises:
        ValueError: there are several ``@``, or one in a query, so that the end of the password is
            ambiguous. The message does not show the address.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or "@" not in rest:
        return Address(url)
    if rest.count("@") > 1:
        raise ValueError("there are several @ in the address; write @ in a password as %40")
    userinfo, _, host = rest.partition("@")
    if re.search(r"[?&][A-Za-z_]+=", userinfo):
        raise ValueError("there is an @ behind a ? in the address; write @ as %40, and ? as %3F")
    user, _, password = userinfo.partition(":")
    return Address(f"{scheme}://{host}", unquote(user), unquote(password))


def without_secrets(text: str, *, is_value: bool = False) -> str:
    """Return ``text`` with passwords and tokens in its addresses written as ``***``.

    The user's name stays, because it identifies the account. A name without a password may be a
    token and is hidden as well, unless it is the ``git`` of an SSH address. With ``is_value`` the
    text is a single value instead of prose, so an address extends to the end of the text, even
    across spaces.
    """
    pattern = _VALUE if is_value else _ADDRESS
    masked = _KEYWORD.sub(rf"\1\2{_MASK}", pattern.sub(_hide_address, text))
    bare = _BARE_VALUE if is_value else _BARE
    return bare.sub(rf"\1:{_MASK}@", masked)


def is_unencrypted(url: str) -> bool:
    """Return whether an address is plain http to another machine."""
    parts = _split(url)
    return parts is None or (parts[0] == "http" and not is_loopback(parts[1]))


def is_loopback(host: str) -> bool:
    """Return whether a host name refers to this machine."""
    return _LOOPBACK.fullmatch(host) is not None


def _split(url: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(url)
        return parts.scheme.lower(), parts.hostname or ""
    except ValueError:
        return None


def _hide_address(match: re.Match[str]) -> str:
    token = _QUERY.search(match[0])
    if token is not None:
        return f"{_hide_authority(match[0][: token.start()])}{token[1]}{_MASK}"
    return _hide_authority(match[0])


def _hide_authority(address: str) -> str:
    userinfo, at, host = address.rpartition("@")
    if not at:
        end = re.search(r"[/?#\s]", host)
        authority = host[: end.start()] if end else host
        if not _AUTHORITY.fullmatch(authority):
            # no port: the password of an address whose @ is missing
            return f"{authority.partition(':')[0]}:{_MASK}"
        return host
    user, colon, _ = userinfo.partition(":")
    if re.search(r"[/?#\s@]", user) or not (colon or user == "git"):
        return f"{_MASK}@{host}"
    return f"{user}:{_MASK}@{host}" if colon else address
