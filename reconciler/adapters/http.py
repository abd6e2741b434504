"""HTTP with other servers: the proxy of the environment, and the pauses that they request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

PAUSE_MAX_S: Final = 60.0
"""The longest pause between two attempts."""


def connection_pool(url: str) -> urllib3.PoolManager:
    """Return the connections to a URL, through the proxy of the environment."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.hostname or ""):
        return urllib3.PoolManager()
    return urllib3.ProxyManager(proxy if "://" in proxy else f"http://{proxy}")


def retry_pause(headers: Mapping[str, str], pause: float) -> float:
    """Return the pause that ``Retry-After`` requests, at most a minute.

    Without one, return ``pause``.
    """
    retry_after = headers.get("retry-after", "")
    return (
        min(float(retry_after), PAUSE_MAX_S)
        if retry_after.isascii() and retry_after.isdigit()
        else pause
    )
