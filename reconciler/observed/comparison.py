"""Compares lists of objects by identity: an object that has not changed is the same one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from operator import is_

from reconciler.model.kubernetes.pod import Pod


def other_pods(old: Sequence[Pod], new: Sequence[Pod]) -> tuple[list[Pod], set[str]]:
    """Return the pods that were not there as the same objects, and the keys of those that were."""
    new_pods, old_pods = _trim_common(old, new)
    ids, present = set(map(id, old_pods)), set(map(id, new_pods))
    fresh = [pod for pod in new_pods if id(pod) not in ids]
    return fresh, {pod.key for pod in old_pods if id(pod) not in present}


def _trim_common(old: Sequence[Pod], new: Sequence[Pod]) -> tuple[Sequence[Pod], Sequence[Pod]]:
    """Return the new and the old pods without those that both begin and end with."""
    shorter = min(len(old), len(new))
    first = _common_length(old, new, shorter)
    last = _common_length(reversed(old), reversed(new), shorter - first)
    return new[first : len(new) - last], old[first : len(old) - last]


def _common_length(left: Iterable[Pod], right: Iterable[Pod], most: int) -> int:
    """Return how many objects both have in common from the beginning, at most ``most``."""
    pairs = islice(map(is_, left, right), most)
    return next((number for number, same in enumerate(pairs) if not same), most)


def have_same_objects(known: Sequence[object], seen: Sequence[object]) -> bool:
    """Return whether both have the same objects; those that only equal each other do not count."""
    return known is seen or (len(known) == len(seen) and all(map(is_, known, seen)))
