"""Addresses that may carry a password: how they are printed."""

from __future__ import annotations

import re
from typing import Final

_USER: Final = r"(?<=://)[^/?#\s]*@"
_QUERY: Final = r"(?i)([?&;](?:password|passwd|pwd|token|secret|sslpassword)=)[^&;#\s]+"


def without_secrets(text: str) -> str:
    """Return ``text`` with passwords and tokens in its URLs written as ``***``.

    The user's name stays, since it says which account was meant; a name without a password may
    be a token, and goes as well, unless it is the plain ``git`` of an SSH address.
    """
    return re.sub(_QUERY, r"\1***", re.sub(_USER, _hidden, text))


def secret_of(url: str) -> str:
    """Return the password or token before the host of an address, "" when it has none.

    Programs that complain about an address may tell its parts one by one.
    """
    found = re.search(_USER, url)
    if found is None:
        return ""
    user, colon, password = found[0][:-1].partition(":")
    if colon:
        return password
    return "" if user == "git" else user


def _hidden(match: re.Match[str]) -> str:
    user, colon, _ = match[0][:-1].partition(":")
    if colon:
        return f"{user}:***@"
    return match[0] if user == "git" else "***@"
