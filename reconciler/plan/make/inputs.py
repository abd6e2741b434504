"""Everything that a plan is made from, read beforehand by whoever asks for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from reconciler.catalog.adjusted.discovered import Discoveries
from reconciler.catalog.catalog import Catalog
from reconciler.desired.fleet import Fleet
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.json import JsonObject
from reconciler.model.policy import Policy
from reconciler.model.settings import Settings
from reconciler.observed.state import ClusterState
from reconciler.plan.make.pools import ClassKey, OfferingKey
from reconciler.plan.value.plan import ComparedWith, InputDigests, ObservationSource, Revision

if TYPE_CHECKING:
    from reconciler.diff.nodeclass import LiveInstance
    from reconciler.model.history import History
    from reconciler.plan.value.costs import AtRest

Object = JsonObject


class ChangeSimulation(Protocol):
    """Plays a change with the engine and every latency until nothing is left to do."""

    def __call__(self, *, has_effect: bool) -> AtRest | None:
        """Return what the change costs, None if it does not come to rest within a limit of passes.

        A change without an effect is not played: both fleets are that of the base.
        """


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one plan.

    ``fleet`` is what git wants, without a single error. ``base`` are the objects to compare it
    with, None where there are none; ``compared_with`` says which they are. ``live`` are the
    cluster's own NodePools, NodeOverlays and EC2NodeClasses; of these only what was looked up in
    the account counts (``status``). ``any_class`` takes every node class as known and ready, as
    with a catalogue file. ``refused`` are offerings that EC2 did not have of late.
    ``allow_removal`` are NodePools that may go though git no longer has them;
    ``memory`` is what nodes were seen to have, in this look and before;
    ``interrupted`` are NodeClaims that EC2 takes back, with the event that says so.
    ``instances`` are what EC2 says of the machines now, by provider id; what it was not asked
    about is left out, and drifts no node.
    ``against`` is the same question asked of the base, to tell what the change itself costs;
    ``simulation`` plays that change where it can be simulated.
    ``nominated`` are NodeClaims whose pods are still on their way from nodes that go.
    ``unsettled`` are NodeClaims that consolidation removes and whose pods have not all moved yet.
    ``history`` is what the guards remember, None where nobody keeps a record;
    ``lists_blockers`` says whether anybody wants to know what keeps nodes from going, and what
    that costs. ``unready_classes`` are the kind and name of node classes that are not ready.
    ``observation`` says where ``cluster`` was seen, ``observed_at`` when a snapshot of it was
    captured, if that is known, and ``observed`` what an approval of the plan
    rests on: a fingerprint for each object. ``withheld`` says why nothing may be launched or
    removed now, empty where it may. ``base_policies`` are the policies of the base revision.
    """

    fleet: Fleet
    cluster: ClusterState
    catalog: Catalog
    settings: Settings
    now: datetime
    revision: Revision = Revision()
    base: Sequence[Object] | None = None
    compared_with: ComparedWith = ""
    live: Sequence[Object] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    any_class: bool = False
    refused: Collection[OfferingKey] = ()
    memory: Discoveries = {}
    allow_removal: frozenset[str] = frozenset()
    interrupted: Mapping[str, str] = {}
    instances: Mapping[str, LiveInstance] = {}
    serial: int = 0
    digests: InputDigests = InputDigests()
    against: Inputs | None = None
    simulation: ChangeSimulation | None = None
    nominated: frozenset[str] = frozenset()
    unsettled: frozenset[str] = frozenset()
    history: History | None = None
    lists_blockers: bool = True
    withheld: str = ""
    unready_classes: frozenset[ClassKey] = frozenset()
    observation: ObservationSource | None = None
    observed_at: datetime | None = None
    observed: Mapping[str, str] = {}
    base_policies: tuple[Policy, ...] = ()

    @property
    def known_before(self) -> tuple[Object, ...]:
        """The objects of the cluster and of the base, those of the base last."""
        return (*self.live, *(self.base or ()))
