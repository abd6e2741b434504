"""The work that a placement may take, counted in checks, so that the result is the same everywhere.

Rules between pods make each pod depend on every other one, so whoever may create pods in one
namespace can make the work grow with the square of their number. Up to the limit nothing changes.
Beyond it, pods are served in turns by namespace, each with an equal share, and what is left over
goes to those who still wait. A pod that is not served is reported with the namespaces that used the
work. Karpenter stops a solve after a minute and keeps what it has.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from heapq import heapify, heappop, heappush
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from reconciler.placement.pods.cohort import Cohort
    from reconciler.placement.topology.rules import Rule

WORK_MAX: Final = 50_000_000
"""The checks of one placement. A check is a node or a planned node, once for each rule about hosts;
ten million take some seconds."""

WORK_TOTAL_MAX: Final = 10 * WORK_MAX
"""The checks of all simulated removals of a plan. Beyond it, only the pods of namespaces that have
needed less than an equal part are moved; pods that wait for a node are always placed."""

NAMESPACE_WORK_MAX: Final = 2 * WORK_MAX
"""The checks of the simulated removals of a plan that one namespace may need. Beyond it, its pods
are not moved, and its rules are simplified."""

FIT_CHECKS: Final = 8
"""How many checks it takes to find the instance types that suit another pod."""

DOMAIN_RULE_CHECKS: Final = 8
"""How many checks it takes to find the open domains of a rule about zones or other labels."""

_RUNNING_RULE_CHECKS: Final = 8
"""How many checks it takes to count the pods of a rule."""

_SHARED_MAX: Final = 1_000
"""How many rules of running pods one label may look up before they count as compared with all."""

PULSE_CHECKS: Final = 10_000
"""After how many checks a placement gives a sign of life: some tens of milliseconds."""

_pulse: Final[ContextVar[Callable[[], object] | None]] = ContextVar("pulse", default=None)

_SETUP_SHARE: Final = 2
"""The part of the work (a half) for finding out which rules select which pods."""


@contextmanager
def with_pulse(pulse: Callable[[], object]) -> Iterator[None]:
    """Call ``pulse`` again and again during long placements within this context.

    It is called after a number of checks, and decides nothing: a placement reads no clock. It is
    not a parameter, because plans make schedulers in many places.
    """
    token = _pulse.set(pulse)
    try:
        yield
    finally:
        _pulse.reset(token)


class Pulse:
    """Counts checks, and gives a sign of life after every ``PULSE_CHECKS`` of them."""

    __slots__ = ("_call", "_counted")

    def __init__(self) -> None:
        self._call = _pulse.get()
        self._counted = 0

    def count(self, checks: int) -> None:
        """Count checks."""
        self._counted += checks
        if self._counted >= PULSE_CHECKS:
            self._counted = 0
            if self._call is not None:
                self._call()


class WorkLimit(msgspec.Struct, frozen=True):
    """A placement that reached its limit: the percentage of the work by namespace, most first.

    ``pods`` is how many pods were not served.
    """

    namespaces: Mapping[str, int]
    pods: int

    def __str__(self) -> str:
        """Return who used the work."""
        if not self.namespaces:
            return "earlier placements"
        shares = ", ".join(f"{name} ({share}%)" for name, share in self.namespaces.items())
        return f"namespace {shares}" if len(self.namespaces) == 1 else f"namespaces {shares}"


class PlacementWork:
    """The checks of one placement, by the namespace whose pods needed them.

    ``running`` is how many rules the running pods of each namespace have, which every placement
    reads. ``share`` is what one namespace may use, None without a limit for each. ``pulse`` gives
    signs of life, also for work that is charged beforehand. ``refused`` are the checks that pods
    would have needed whose rules were too many even to be compared. ``before`` are those of an
    attempt that was given up.
    """

    __slots__ = ("_running", "before", "limit", "pulse", "refused", "share", "total", "used")

    def __init__(self, limit: int, running: Mapping[str, int] = MappingProxyType({})) -> None:
        self.limit = limit
        self.share: int | None = None
        self.total = 0
        self.used: dict[str, int] = {}
        self.refused: Counter[str] = Counter()
        self.before: Mapping[str, int] = MappingProxyType({})
        self.pulse = Pulse()
        self._running = running
        for namespace, rules in running.items():
            self.charge(namespace, rules * _RUNNING_RULE_CHECKS)

    def restarted(self) -> PlacementWork:
        """Return the work of a placement that begins again, with the same pods refused."""
        again = PlacementWork(self.limit, self._running)
        again.refused, again.before = self.refused, self.used
        return again

    def charge(self, namespace: str, checks: int) -> None:
        """Count checks."""
        self.total += checks
        self.used[namespace] = self.used.get(namespace, 0) + checks
        self.pulse.count(checks)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.total >= self.limit

    def allows(self, namespace: str) -> bool:
        """Return whether the pods of a namespace may be served."""
        if self.total >= self.limit:
            return False
        return self.share is None or self.used.get(namespace, 0) < self.share

    def reached(self, pods: int) -> WorkLimit:
        """Return the limit that was reached, with the namespaces that need a tenth or the most.

        What was refused counts: those who were served instead are not the cause.
        """
        needed = self.refused + Counter(self.used)
        shares = {name: n * 100 // max(needed.total(), 1) for name, n in needed.items()}
        ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
        return WorkLimit(dict(ranked[:1] + [row for row in ranked[1:5] if row[1] >= 10]), pods)


class SimulatedWork:
    """The checks of all simulated removals of a plan, by the namespace whose pods needed them.

    A removal that is only considered may be left for later. So a namespace whose pods need too much
    is closed: its own nodes stay, and those of others are examined as before.
    """

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()

    def add(self, work: PlacementWork) -> None:
        """Count the checks of one simulation."""
        self.used.update(work.used)
        self.used.update(work.before)

    @property
    def most(self) -> int:
        """What one namespace may use: beyond the total, an equal part of it."""
        if self.used.total() < WORK_TOTAL_MAX:
            return NAMESPACE_WORK_MAX
        return min(NAMESPACE_WORK_MAX, WORK_TOTAL_MAX // len(self.used))

    @property
    def closed(self) -> frozenset[str]:
        """The namespaces that have used what they may."""
        most = self.most
        return frozenset(name for name, checks in self.used.items() if checks >= most)

    def left(self, namespaces: Collection[str]) -> int:
        """Return the checks of a simulation for pods of these namespaces."""
        most = self.most
        return min(WORK_MAX, max((most - self.used[name] for name in namespaces), default=0))


def in_turns(cohorts: Sequence[Cohort]) -> list[Cohort]:
    """Return cohorts so that namespaces take turns; those of virtual pods come last."""
    by_namespace: dict[tuple[bool, str], list[Cohort]] = {}
    for cohort in cohorts:
        key = (cohort.shape.model.is_virtual, cohort.shape.namespace)
        by_namespace.setdefault(key, []).append(cohort)
    found: list[Cohort] = []
    for virtual in (False, True):
        queues = [row for key, row in sorted(by_namespace.items()) if key[0] is virtual]
        for turn in zip_longest(*queues):
            found += (cohort for cohort in turn if cohort is not None)
    return found


class StandingRules(msgspec.Struct, frozen=True):
    """The rules of running pods that are compared with each cohort in the namespaces they select.

    Their weight, by the namespace of their pods and by the namespaces that they select.
    """

    weights: Mapping[tuple[str, frozenset[str]], int]

    @classmethod
    def of(cls, rules: Iterable[tuple[str, Rule]]) -> StandingRules:
        """Return those among rules with the namespaces of their pods, which no label looks up."""
        known = list(rules)
        sharing = Counter(rule.selector.pairs[0] for _, rule in known if rule.selector.pairs)
        found: Counter[tuple[str, frozenset[str]]] = Counter()
        for owner, rule in known:
            if not rule.selector.pairs or sharing[rule.selector.pairs[0]] > _SHARED_MAX:
                found[owner, rule.namespaces] += _weight((rule,))
        return cls(found)

    @property
    def by_owner(self) -> Mapping[str, int]:
        """The weight by the namespace of the pods that have the rules."""
        found: Counter[str] = Counter()
        for (owner, _), weight in self.weights.items():
            found[owner] += weight
        return found

    def for_pods_in(self, namespaces: Iterable[str]) -> Mapping[str, int]:
        """Return the weight of the rules that select pods in each namespace."""
        return {
            name: sum(weight for (_, chosen), weight in self.weights.items() if name in chosen)
            for name in namespaces
        }


def admitted(
    cohorts: list[Cohort], running: int, work: PlacementWork, standing: StandingRules
) -> tuple[list[Cohort], Sequence[Cohort]]:
    """Return the cohorts whose rules can be compared with all pods, and the others.

    A rule is compared with each cohort and each of the ``running`` pods, except those that a label
    in its selector excludes. Those of running pods, ``standing``, are compared with each cohort.
    Beyond half of the work, namespaces take turns.
    """
    most = work.limit // _SETUP_SHARE
    costly = _costly_rules(cohorts, most // len(cohorts) if cohorts else most)
    rules: set[Rule] = set().union(*costly.values())
    cohorts_in = Counter(cohort.shape.namespace for cohort in cohorts)
    repelled = standing.for_pods_in(cohorts_in)
    repelling = sum(count * repelled[name] for name, count in cohorts_in.items())
    known, others = cohorts, []
    if _weight(rules) * (len(cohorts) + running) + repelling > most:
        taken = _admitted_in_turns(cohorts, costly, running, most, standing)
        known = [cohort for cohort in cohorts if cohort in taken]
        others = [cohort for cohort in cohorts if cohort not in taken]
        cohorts_in = Counter(cohort.shape.namespace for cohort in known)
        for cohort in others:
            checks = _weight(costly.get(cohort, ())) * (len(cohorts) + running)
            work.refused[cohort.shape.namespace] += checks + repelled[cohort.shape.namespace]
    for cohort in known:
        own = costly.get(cohort)
        if own:
            work.charge(cohort.shape.namespace, _weight(own) * (len(known) + running))
    for (owner, chosen), weight in standing.weights.items():
        work.charge(owner, weight * sum(cohorts_in[name] for name in chosen & cohorts_in.keys()))
    return known, others


def _admitted_in_turns(
    cohorts: Sequence[Cohort],
    costly: Mapping[Cohort, frozenset[Rule]],
    running: int,
    most: int,
    standing: StandingRules,
) -> set[Cohort]:
    """Return cohorts up to the limit; the next one is of the namespace with the least rules so far.

    The rules of its running pods count from the beginning.
    """
    queues: dict[tuple[bool, str], deque[Cohort]] = {}
    for cohort in cohorts:
        key = (cohort.shape.model.is_virtual, cohort.shape.namespace)
        queues.setdefault(key, deque()).append(cohort)
    repelled = standing.for_pods_in({name for _, name in queues})
    repelling, owned = 0, standing.by_owner
    turns = [(virtual, owned.get(name, 0), name) for virtual, name in queues]
    heapify(turns)
    rules: set[Rule] = set()
    taken: set[Cohort] = set()
    weight = 0
    while turns:
        virtual, spent, name = heappop(turns)
        queue = queues[virtual, name]
        cohort = queue.popleft()
        own = costly.get(cohort, frozenset()) - rules
        more = _weight(own)
        total = (weight + more) * (len(taken) + 1 + running) + repelling + repelled[name]
        if total <= most:
            rules |= own
            weight += more
            repelling += repelled[name]
            taken.add(cohort)
            spent += 1 + more
        if queue:
            heappush(turns, (virtual, spent, name))
    return taken


def _weight(rules: Iterable[Rule]) -> int:
    return sum(1 if rule.by_host else DOMAIN_RULE_CHECKS for rule in rules)


def _costly_rules(cohorts: Sequence[Cohort], most: int) -> Mapping[Cohort, frozenset[Rule]]:
    """Return the rules of each cohort that are compared with nearly every pod.

    These have no label to look them up by, or share it with more than ``most`` rules.
    """
    found: dict[Cohort, frozenset[Rule]] = {}
    sharing: Counter[tuple[str, str]] = Counter()
    for cohort in cohorts:
        shape = cohort.shape
        rules = frozenset((*shape.repels, *(r for step in shape.steps for r in step.rules)))
        if rules:
            found[cohort] = rules
            sharing.update(rule.selector.pairs[0] for rule in rules if rule.selector.pairs)
    return {
        cohort: frozenset(
            rule
            for rule in rules
            if not rule.selector.pairs or sharing[rule.selector.pairs[0]] > most
        )
        for cohort, rules in found.items()
    }
