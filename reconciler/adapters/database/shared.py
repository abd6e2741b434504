"""The recorded states of the fleets of one process, which share connections to servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

from reconciler.adapters.database.connection import connect_server
from reconciler.adapters.database.leases.renewal import LeaseRenewals
from reconciler.adapters.database.location import is_url
from reconciler.adapters.database.state import DatabaseState, Server, open_state
from reconciler.model.errors import FleetConflictError, StateError

CONNECTIONS_MAX: Final = 3
"""How many connections the fleets of a process share, besides the one that renews leases.

A transaction of the state lasts for milliseconds, and holds one connection at a time."""


@dataclass
class SharedStates:
    """Opens the states of several fleets with one pool of connections for each server.

    Thread-safe. Each fleet is open once: a second folder with the same name, or the same state
    directory, is refused instead of waiting for a lease that this process holds itself.
    """

    application: str
    _mutex: Lock = field(default_factory=Lock, init=False)
    _servers: dict[str, Server] = field(default_factory=dict, init=False)
    _open: dict[tuple[str, str], str] = field(default_factory=dict, init=False)
    _clusters: dict[str, str] = field(default_factory=dict, init=False)
    _states: list[DatabaseState] = field(default_factory=list, init=False)

    def open(self, location: str, fleet: str, locks: Path | None = None) -> DatabaseState:
        """Open a state as ``open_state`` does; closing it leaves the connections open.

        Raises:
            StateError: it cannot be used, or another fleet of this process uses it.
        """
        key = (location, fleet) if is_url(location) else (str(Path(location).resolve()), "")
        with self._mutex:
            other = self._open.get(key)
            if other is not None:
                raise _taken(location, fleet, other)
            self._open[key] = fleet
        try:
            server = self.server(location) if is_url(location) else None
            state = open_state(location, fleet, locks=locks, server=server)
        except BaseException:
            self._left(key)
            raise
        with self._mutex:
            self._states.append(state)
        state.on_close.append(lambda: self._left(key, state))
        return state

    def on_servers(self) -> dict[str, tuple[Server, list[DatabaseState]]]:
        """Return the servers by their places, with the states that are open there."""
        with self._mutex:
            found = {s.place: (s, list[DatabaseState]()) for s in self._servers.values()}
            for state in self._states:
                if state.database.place in found:
                    found[state.database.place][1].append(state)
            return found

    def server(self, location: str) -> Server:
        """Return the connections to the server with this URL; nothing connects before it is asked.

        Raises:
            StateError: the URL is malformed, or its database is not supported.
        """
        with self._mutex:
            server = self._servers.get(location)
            if server is None:
                engine, place = connect_server(location, self.application, CONNECTIONS_MAX)
                # Leases have a pool of their own: writers may occupy the other one.
                renewing, _ = connect_server(location, self.application, 1)
                server = Server(engine, place, LeaseRenewals(renewing, place))
                self._servers[location] = server
            return server

    @contextmanager
    def only_user(self, cluster: str, fleet: str) -> Iterator[None]:
        """Let one fleet of this process act for a cluster while the block runs.

        ``cluster`` is the address of its API: a kubeconfig may lead two fleets to the same one.

        Raises:
            FleetConflictError: another fleet acts for it.
        """
        with self._mutex:
            other = self._clusters.setdefault(cluster, fleet)
        if other != fleet:
            raise FleetConflictError(
                f"fleet {other} of this process already acts for the cluster of fleet {fleet}",
                where=cluster,
                remedy="name a context for each fleet in a folder of files for --config",
            )
        try:
            yield
        finally:
            with self._mutex:
                self._clusters.pop(cluster, None)

    def close(self) -> None:
        """Close all connections; every state has been closed before."""
        with self._mutex:
            servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            server.engine.dispose()
            server.renewals.close()

    def _left(self, key: tuple[str, str], state: DatabaseState | None = None) -> None:
        with self._mutex:
            self._open.pop(key, None)
            self._states = [other for other in self._states if other is not state]


def _taken(location: str, fleet: str, other: str) -> StateError:
    if is_url(location):
        return StateError(
            f"two folders of this process have a fleet of the name {fleet}",
            remedy="set `fleet` in the reconciler.yaml of one of them",
        )
    return StateError(
        f"fleet {other} of this process already uses this state directory",
        where=location,
        remedy="use a PostgreSQL URL, or let each fleet have a state in its own folder",
    )
