"""Divides fleets among replicas: which requests a free lease, and which gives one up.

Every replica computes the same division from the same facts. A lease moves only where that makes
the numbers of two replicas more equal, so the moves end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reconciler.adapters.database.leases.replicas import Replica


@dataclass(frozen=True, slots=True)
class Division:
    """By replica: the free fleets that it should acquire, and those that it should give up."""

    takes: Mapping[str, frozenset[str]]
    gives: Mapping[str, frozenset[str]]


def divided(replicas: Mapping[str, Replica], held: frozenset[str]) -> Division:
    """Return which replica acquires and gives up which fleets; ``held`` have a valid lease.

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
