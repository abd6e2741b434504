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


@dataclass(frozen=True, slots=True)
class Division:
    """By replica: the free fleets that it should acquire, and those that it should release."""

    takes: Mapping[str, frozenset[str]]
    gives: Mapping[str, frozenset[str]]


def divided(replicas: Mapping[str, Replica], held: frozenset[str]) -> Division:
    """Return which replica acquires and releases which fleets; ``held`` have a valid lease.

    A free fleet goes to the replica with the fewest fleets among those that can serve it. Then
    leases move from the replica with the most to the one with the fewest, for as long as they
    differ by two or more.
    """
    holds = {name: set(replica.holds & held) for name, replica in replicas.items()}
    takes: dict[str, set[str]] = {name: set() for name in replicas}
    gives: dict[str, set[str]] = {name: set() for name in replicas}
    offered = {fleet for replica in replicas.values() for fleet in replica.serves}

    def load(name: str) -> int:
        return len(holds[name]) + len(takes[name])

    for fleet in sorted(offered - held):
        able = [name for name, replica in replicas.items() if fleet in replica.serves]
        takes[min(able, key=lambda name: (load(name), name))].add(fleet)
    received: dict[str, int] = dict.fromkeys(replicas, 0)
    while True:
        loads = {name: load(name) + received[name] for name in replicas}
        move = next(_moves(replicas, holds, loads), None)
        if move is None:
            break
        giver, taker, fleet = move
        holds[giver].remove(fleet)
        gives[giver].add(fleet)
        received[taker] += 1
    return Division(_frozen(takes), _frozen(gives))


def _moves(
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


def _frozen(fleets: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {name: frozenset(some) for name, some in fleets.items()}


BEAT_S: Final = 1.0
_FREE_FOR_ALL_S: Final = 5.0
"""After this time a free lease is anybody's: the replica whose turn it is may not be able."""

_SURE_AFTER: Final = 3
"""After how many heartbeats with the same result a lease is given up."""

_KEPT_S: Final = 600.0
"""How long a released fleet is kept that no other replica took."""


@dataclass
class _Shares:
    """What this replica knows about a server; ``is_known`` is whether it answered recently."""

    is_known: bool = False
    held: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()
    gives: frozenset[str] = frozenset()
    free_since: dict[str, float] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    kept_until: dict[str, float] = field(default_factory=dict)


class FleetSharing:
    """Announces this replica on each server, and decides which leases to acquire or release.

    Thread-safe. ``elapsing`` gives seconds that pass.
    """

    def __init__(
        self, states: SharedStates, elapsing: Callable[[], float] = time.monotonic
    ) -> None:
        self.states: Final = states
        self.id: Final = f"{os.getpid()}@{socket.gethostname()} {secrets.token_hex(4)}"
        self._elapsing = elapsing
        self._mutex = Lock()
        self._shares: dict[str, _Shares] = {}
        self._ended = Event()
        self._thread = Thread(target=self._keep, name="replica heartbeat", daemon=True)

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

    def may_ask(self, state: DatabaseState, *, has_asked: bool) -> bool:
        """Return whether to acquire a lease now.

        Where another process holds it, it is worth one question: the answer names the holder.
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
            if fleet in shares.held:
                return not has_asked
            since = shares.free_since.get(fleet)
            is_anybodys = since is not None and self._elapsing() - since >= _FREE_FOR_ALL_S
            return fleet in shares.takes or is_anybodys

    def gives_up(self, state: DatabaseState) -> bool:
        """Return whether to release a lease after the pass, because another replica has fewer."""
        fleet, place = state.database.fleet, state.database.place
        with self._mutex:
            shares = self._shares.get(place)
            return shares is not None and fleet in shares.gives

    def _keep(self) -> None:
        while not self._ended.is_set():
            for place, (server, states) in self.states.on_servers().items():
                self._beat(place, server, states)
            self._ended.wait(BEAT_S)
        from reconciler.adapters.database.leases.replicas import Heartbeat

        for server, _ in self.states.on_servers().values():
            Heartbeat(server, self.id).end()

    def _beat(self, place: str, server: Server, states: list[DatabaseState]) -> None:
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
        division = divided(found.alive, found.held)
        with self._mutex:
            shares = self._shares.setdefault(place, _Shares())
            shares.is_known, shares.held = True, found.held
            shares.takes = division.takes.get(self.id, frozenset())
            self._note_free(shares, serves - found.held)
            self._note_gives(shares, division.gives.get(self.id, frozenset()), holds, found.held)

    def _note_free(self, shares: _Shares, free: frozenset[str]) -> None:
        now = self._elapsing()
        shares.free_since = {fleet: shares.free_since.get(fleet, now) for fleet in free}

    def _note_gives(
        self, shares: _Shares, wanted: frozenset[str], holds: frozenset[str], held: frozenset[str]
    ) -> None:
        """Decide which leases to release, and which returned ones to keep for a while."""
        now = self._elapsing()
        for fleet in sorted(shares.given & holds):
            shares.kept_until[fleet] = now + _KEPT_S
        shares.kept_until = {f: until for f, until in shares.kept_until.items() if until > now}
        shares.given = (shares.given - held) | (shares.gives - holds)
        shares.wanted = {fleet: shares.wanted.get(fleet, 0) + 1 for fleet in wanted}
        sure = {fleet for fleet, times in shares.wanted.items() if times >= _SURE_AFTER}
        shares.gives = frozenset((sure | shares.gives) & holds)
