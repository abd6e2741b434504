"""HTTP with other servers: the proxy of the environment, and the pauses that they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

PAUSE_MAX_S: Final = 60.0
"""The longest pause between two attempts."""


def pool_of(url: str) -> urllib3.PoolManager:
    """Return the connections to a URL, through the proxy that the environment names."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.hostname or ""):
        return urllib3.PoolManager()
    return urllib3.ProxyManager(proxy if "://" in proxy else f"http://{proxy}")


def pause_asked_for(headers: Mapping[str, str], pause: float) -> float:
    """Return the pause that the server asks for in ``Retry-After``, at most a minute.

    Without one, return ``pause``.
    """
    asked = headers.get("retry-after", "")
    return min(float(asked), PAUSE_MAX_S) if asked.isascii() and asked.isdigit() else pause
