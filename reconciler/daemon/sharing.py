"""Shares fleets among the replicas of a server: which one acquires a free lease or releases one."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final, Self

from reconciler.model.errors import ReconcilerError

if TYPE_CHECKING:
    from reconciler.adapters.database.leases.replicas import Replica
    from reconciler.adapters.database.state import DatabaseState, Server, SharedStates

BEAT_S: Final = 1.0
_FREE_FOR_ALL_S: Final = 5.0
"""After this time any replica may take a free lease: the one whose turn it is may be unable to."""

_RELEASE_AFTER: Final = 3
"""After how many heartbeats with the same result a lease is released."""

_KEEP_S: Final = 600.0
"""How long a released fleet that no other replica took is kept."""


@dataclass(frozen=True, slots=True)
class Division:
    """By replica: the free fleets that it should acquire, and those that it should release."""

    to_acquire: Mapping[str, frozenset[str]]
    to_release: Mapping[str, frozenset[str]]


def divide_fleets(replicas: Mapping[str, Replica], leased: frozenset[str]) -> Division:
    """Return which replica acquires and releases which fleets; ``leased`` have a valid lease.

    A free fleet goes to the replica with the fewest fleets among those that can serve it. Then
    leases move from the replica with the most to the one with the fewest, for as long as they
    differ by two or more.
    """
    holds = {name: set(replica.holds & leased) for name, replica in replicas.items()}
    to_acquire: dict[str, set[str]] = {name: set() for name in replicas}
    offered = {fleet for replica in replicas.values() for fleet in replica.serves}

    def load(name: str) -> int:
        return len(holds[name]) + len(to_acquire[name])

    for fleet in sorted(offered - leased):
        able = [name for name, replica in replicas.items() if fleet in replica.serves]
        to_acquire[min(able, key=lambda name: (load(name), name))].add(fleet)
    to_release = _leases_to_release(replicas, holds, {n: len(to_acquire[n]) for n in replicas})
    return Division(_freeze(to_acquire), _freeze(to_release))


def _leases_to_release(
    replicas: Mapping[str, Replica], holds: Mapping[str, set[str]], incoming: dict[str, int]
) -> dict[str, set[str]]:
    """Return what each replica releases; ``incoming`` counts the fleets that each will acquire."""
    to_release: dict[str, set[str]] = {name: set() for name in replicas}
    while True:
        loads = {name: len(holds[name]) + incoming[name] for name in replicas}
        move = next(_lease_moves(replicas, holds, loads), None)
        if move is None:
            return to_release
        giver, taker, fleet = move
        holds[giver].remove(fleet)
        to_release[giver].add(fleet)
        incoming[taker] += 1


def _lease_moves(
    replicas: Mapping[str, Replica], holds: Mapping[str, set[str]], loads: Mapping[str, int]
) -> Iterator[tuple[str, str, str]]:
    """Yield the moves of a lease that make two replicas more equal, the best one first."""
    for giver in sorted(loads, key=lambda name: (-loads[name], name)):
        for taker in sorted(loads, key=lambda name: (loads[name], name)):
            if loads[giver] - loads[taker] < 2:
                break
            movable = (holds[giver] & replicas[taker].serves) - replicas[giver].keeps
            if movable:
                yield giver, taker, min(movable)


def _freeze(fleets: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {name: frozenset(some) for name, some in fleets.items()}


@dataclass
class _Shares:
    """What this replica knows about a server; ``is_known`` is whether it answered recently."""

    is_known: bool = False
    leased: frozenset[str] = frozenset()
    to_acquire: frozenset[str] = frozenset()
    to_release: frozenset[str] = frozenset()
    free_since: dict[str, float] = field(default_factory=dict)
    release_votes: dict[str, int] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    kept_until: dict[str, float] = field(default_factory=dict)


class FleetSharing:
    """Announces this replica on each server, and decides which leases to acquire or release.

    Thread-safe. ``elapsed_s`` is a monotonic clock.
    """

    def __init__(
        self, states: SharedStates, elapsed_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.states: Final = states
        self.id: Final = f"{os.getpid()}@{socket.gethostname()} {secrets.token_hex(4)}"
        self._elapsed_s = elapsed_s
        self._mutex = Lock()
        self._shares: dict[str, _Shares] = {}
        self._ended = Event()
        self._thread = Thread(target=self._announce, name="replica heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.leave()
        self._thread.join()
        self.states.close()

    def leave(self) -> None:
        """Stop announcing this replica, because it is about to end: others take its fleets."""
        self._ended.set()

    def may_acquire(self, state: DatabaseState, *, has_requested: bool) -> bool:
        """Return whether to acquire a lease now.

        A lease that another process holds is requested once, because the error names the holder.
        """
        fleet, place = state.database.fleet, state.database.place
        if state.database.folder is not None:
            return True
        with self._mutex:
            shares = self._shares.get(place)
            if shares is None:
                return False  # until the first heartbeat
            if not shares.is_known:
                return True
            if fleet in shares.leased:
                return not has_requested
            since = shares.free_since.get(fleet)
            is_anybodys = since is not None and self._elapsed_s() - since >= _FREE_FOR_ALL_S
            return fleet in shares.to_acquire or is_anybodys

    def should_release(self, state: DatabaseState) -> bool:
        """Return whether to release a lease after the pass, because another replica has fewer."""
        fleet, place = state.database.fleet, state.database.place
        with self._mutex:
            shares = self._shares.get(place)
            return shares is not None and fleet in shares.to_release

    def _announce(self) -> None:
        while not self._ended.is_set():
            for place, (server, states) in self.states.states_by_server().items():
                self._send_heartbeat(place, server, states)
            self._ended.wait(BEAT_S)
        from reconciler.adapters.database.leases.replicas import Heartbeat

        for server, _ in self.states.states_by_server().values():
            Heartbeat(server, self.id).end()

    def _send_heartbeat(self, place: str, server: Server, states: list[DatabaseState]) -> None:
        from reconciler.adapters.database.leases.replicas import Heartbeat, Replica

        serves = frozenset(state.database.fleet for state in states)
        holds = frozenset(s.database.fleet for s in states if s.database.fence.epoch is not None)
        with self._mutex:
            keeps = frozenset(self._shares.get(place, _Shares()).kept_until)
        try:
            found = Heartbeat(server, self.id).beat(Replica(serves, holds, keeps))
        except ReconcilerError:
            with self._mutex:
                self._shares.setdefault(place, _Shares()).is_known = False
            return
        division = divide_fleets(found.alive, found.held)
        with self._mutex:
            shares = self._shares.setdefault(place, _Shares())
            shares.is_known, shares.leased = True, found.held
            shares.to_acquire = division.to_acquire.get(self.id, frozenset())
            self._record_free(shares, serves - found.held)
            self._decide_releases(
                shares, division.to_release.get(self.id, frozenset()), holds, found.held
            )

    def _record_free(self, shares: _Shares, free: frozenset[str]) -> None:
        now = self._elapsed_s()
        shares.free_since = {fleet: shares.free_since.get(fleet, now) for fleet in free}

    def _decide_releases(
        self,
        shares: _Shares,
        surplus: frozenset[str],
        holds: frozenset[str],
        leased: frozenset[str],
    ) -> None:
        """Decide which leases to release, and which returned ones to keep for a while."""
        now = self._elapsed_s()
        for fleet in sorted(shares.released & holds):
            shares.kept_until[fleet] = now + _KEEP_S
        shares.kept_until = {f: until for f, until in shares.kept_until.items() if until > now}
        shares.released = (shares.released - leased) | (shares.to_release - holds)
        shares.release_votes = {fleet: shares.release_votes.get(fleet, 0) + 1 for fleet in surplus}
        decided = {
            fleet for fleet, times in shares.release_votes.items() if times >= _RELEASE_AFTER
        }
        shares.to_release = frozenset((decided | shares.to_release) & holds)
