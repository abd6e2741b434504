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
_AUTHORITY: Final = re.compile(r"(?:[^:\[\]]*+|\[[^\]]*\])(?::[0-9]{0,5})?[:,.;'\")\]>]*")
_CREDENTIAL: Final = re.compile("pass|pwd|token|secret|key|sig|auth|cred", re.IGNORECASE)
_WORD: Final = re.compile(r"\S+")
_BREAK: Final = re.compile(r"[&;\s]")
_NAME: Final = re.compile(r"[\w.+-]+")
_AT: Final = re.compile(r"@(?=[\w\[])")
_KEYWORD: Final = re.compile(
    r"\b((?:ssl)?password|passwd|pgpassword)(\s*=\s*)('[^'\n]*'|\"[^\"\n]*\"|\S+)", re.IGNORECASE
)
_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LOOPBACK: Final = re.compile(rf"localhost|127(?:\.{_BYTE}){{3}}|::1", re.IGNORECASE)
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
    return _hide_bare(masked) if is_value else _WORD.sub(lambda word: _hide_bare(word[0]), masked)


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
    address = match[0]
    secret = _find_secret(address)
    if secret is None:
        return _hide_authority(address)
    start, end = secret
    return f"{_hide_authority(address[:start])}{address[start:end]}{_MASK}"


def _find_secret(address: str) -> tuple[int, int] | None:
    """Return where the first name of a secret in a query starts, and where its value does.

    A name starts at one of ``?&;#`` and ends with ``=``. Each character is read once or twice:
    an expression that starts again at each sign takes quadratic time.
    """
    begin = 0
    while (equals := address.find("=", begin)) >= 0:
        if address[equals + 1 : equals + 2] not in ("", "\n"):
            *_, last = _BREAK.split(address[begin:equals])
            at = equals - len(last)
            sign = at - 1 if at > begin and address[at - 1] in "&;" else -1
            for part in last.split("?"):
                end = at + len(part)
                if sign < 0:
                    sign = address.find("#", at, end)
                if sign >= 0 and _CREDENTIAL.search(address, sign, end):
                    return sign, equals + 1
                at, sign = end + 1, end
        begin = equals + 1
    return None


def _hide_bare(text: str) -> str:
    """Hide the password of the first address without a scheme (``user:password@host``)."""
    end = max((found.start() for found in _AT.finditer(text)), default=-1)
    for found in _NAME.finditer(text, 0, max(end, 0)):
        colon = found.end()
        if colon + 1 >= end or text[colon] != ":" or text.startswith("//", colon + 1):
            continue
        start = found.start()
        if start and text[start - 1] in "/:@*":  # part of something else, up to the next plus
            start = text.find("+", start, colon) + 1
        if 0 < start < colon or start == found.start():
            return f"{text[:colon]}:{_MASK}{text[end:]}"
    return text


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
