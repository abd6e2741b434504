"""Connections through the proxy that the environment names."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3


def pool_of(url: str) -> urllib3.PoolManager:
    """Return the connections to a URL, through the proxy that the environment names."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.hostname or ""):
        return urllib3.PoolManager()
    return urllib3.ProxyManager(proxy if "://" in proxy else f"http://{proxy}")
