"""Flags for what a long-running command serves: metrics, health checks and a dashboard."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from reconciler.assembly.inputs.request import ServingRequest
from reconciler.model.errors import UsageError
from reconciler.model.text.quoting import quote_value

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63}){0,126}")
LISTEN_VARIABLE: Final = "RECONCILER_LISTEN"
PROBES_VARIABLE: Final = "RECONCILER_LISTEN_PROBES"
HOSTS_VARIABLE: Final = "RECONCILER_ALLOWED_HOSTS"
TOKEN_VARIABLE: Final = "RECONCILER_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable


def add_serving(parser: argparse.ArgumentParser) -> None:
    """Declare where pages are served, and who may see them."""
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=os.environ.get(LISTEN_VARIABLE, ""),
        help="serve metrics, health checks and a dashboard at this address "
        f"(default: {LISTEN_VARIABLE}; *:8080 listens on all interfaces)",
    )
    parser.add_argument(
        "--listen-probes",
        metavar="HOST:PORT",
        default=os.environ.get(PROBES_VARIABLE, ""),
        help=f"serve only health checks at this address (default: {PROBES_VARIABLE})",
    )
    parser.add_argument(
        "--allowed-host",
        metavar="NAME",
        action="append",
        default=[],
        help=f"another host name of the dashboard (default: {HOSTS_VARIABLE}, separated by commas; "
        "repeatable)",
    )
    parser.add_argument(
        "--trusted-header",
        metavar="NAME",
        default="",
        help=f"header in which a proxy names the user (instead of {TOKEN_VARIABLE})",
    )


def serving_request(args: argparse.Namespace) -> ServingRequest:
    """Return what the arguments and the environment name.

    Raises:
        UsageError: a name is not that of a host.
    """
    return ServingRequest(
        args.listen,
        os.environ.get(TOKEN_VARIABLE, ""),
        args.trusted_header,
        _host_names(args.allowed_host or os.environ.get(HOSTS_VARIABLE, "").split(",")),
        args.listen_probes,
    )


def _host_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Return host names without spaces and a final dot.

    Raises:
        UsageError: one is a URL, has a port or another character that no name contains.
    """
    names = [text.strip().removesuffix(".") for text in texts if text.strip()]
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            remedy = "pass the name alone, for example reconciler.example.com"
            what = f"{quote_value(name, 80)} is not a host name"
            raise UsageError(what, where="--allowed-host", remedy=remedy)
    return tuple(names)
