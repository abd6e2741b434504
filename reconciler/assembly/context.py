"""The context of every observation of a running fleet."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reconciler.adapters.database.location import may_exist
from reconciler.adapters.simulated.memory import MemoryJournal
from reconciler.assembly.account import aws_query_of, connections
from reconciler.assembly.inputs import sources
from reconciler.assembly.inputs.records import response_cache_folder, state_location
from reconciler.assembly.inputs.request import Environment, FleetRequest, clock_of
from reconciler.desired.settings.layers import Layer
from reconciler.model.errors import FleetMovedError, UnnamedClusterError
from reconciler.model.history import DAY
from reconciler.model.ownership import NO_CLUSTER, ClusterId

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from reconciler.assembly.inputs.catalogs import CurrentCatalog
    from reconciler.assembly.inputs.sources import SourceFiles
    from reconciler.catalog.adjusted.discovered import Discoveries
    from reconciler.desired.settings.layers import Resolved
    from reconciler.engine.records import Discovery
    from reconciler.model.settings import Settings
    from reconciler.ports.journal import Journal, JournalEntry
    from reconciler.ports.state import Shelf, StateStore


class FleetContext(NamedTuple):
    """The context of every observation of a running fleet."""

    resolved: Resolved
    catalog: CurrentCatalog
    environment: Environment
    location: str
    source: SourceFiles

    @property
    def settings(self) -> Settings:
        """The effective settings."""
        return self.resolved.settings


def context_of(
    request: FleetRequest, environment: Environment | None, source: SourceFiles | None = None
) -> FleetContext:
    """Return the effective settings, the catalog of the region, and the location of the state.

    ``source`` is what was already read of the fleet.
    """
    from reconciler.adapters.aws.launch.profiles import is_simulated_account
    from reconciler.assembly.inputs.catalogs import CurrentCatalog

    environment = environment or Environment(clock_of(request))
    source = source or sources.read_source(request)
    fleet, _ = sources.read_desired(source, any_class=False)
    resolved = sources.settings_of(request, fleet)
    by_default = not is_simulated_account(resolved.settings)
    query = aws_query_of(request, resolved, environment, by_default=by_default)
    catalog = CurrentCatalog(request, query, resolved, fleet.lock)
    location = state_location(request.path, resolved)
    return FleetContext(resolved, catalog, environment, location, source)


def is_real(settings: Settings, environment: Environment) -> bool:
    """Return whether EC2 is a real account, not a simulation in this process or on this machine.

    An endpoint elsewhere (a VPC endpoint, a proxy) leads to a real account. So does
    ``cluster=embedded``, which simulates Kubernetes and not EC2.
    """
    from reconciler.adapters.aws.clients import account_of

    return environment.connect is None and not account_of(settings).is_simulated


def expect_cluster_name(context: FleetContext) -> None:
    """Refuse to act in a real account for a cluster that was not named (decision 15).

    Raises:
        UnnamedClusterError: ``clusterName`` is not set.
    """
    if not is_real(context.settings, context.environment) or is_cluster_named(context.resolved):
        return
    raise UnnamedClusterError(
        (
            "clusterName is not set; without it, instances of other clusters in this account "
            "cannot be distinguished from this fleet's"
        ),
        where=f"region {context.settings.region}",
        remedy="set clusterName in reconciler.yaml or pass --set clusterName=NAME",
    )


def cluster_id(context: FleetContext) -> ClusterId:
    """Return the cluster that this fleet acts for, none where EC2 is simulated."""
    from reconciler.adapters.aws.checks import account_number

    settings = context.settings
    if not is_real(settings, context.environment):
        return NO_CLUSTER
    account = account_number(connections().connector(settings), settings)
    return ClusterId(account, settings.region, settings.cluster_name)


def expect_account(context: FleetContext, records: CopiedState, claims: int) -> None:
    """Refuse credentials of another account than the one in which the fleet has its NodeClaims.

    An observation of that account lists none of their instances, so a plan would replace them all.
    A changed region is declared in git, where a plan can preview it: it is a finding instead.

    Raises:
        FleetMovedError: the credentials are those of another account.
    """
    before = records.cluster
    if not claims or before.region != context.settings.region:
        return
    here = cluster_id(context)
    if before.is_out_of_reach(here):
        raise FleetMovedError(context.settings.fleet, claims, before, here, records.place)


def locks_folder() -> Path:
    """Return the folder in which this user's processes lock clusters, for all state directories."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home, "reconciler", "locks")


def is_cluster_named(resolved: Resolved) -> bool:
    """Return whether the cluster was named: the default is the same for every cluster."""
    origin = resolved.origins["clusterName"]
    return origin.layer is not Layer.DEFAULT and bool(resolved.settings.cluster_name)


def discovery_of(request: FleetRequest, resolved: Resolved, *, keeps: bool = True) -> Discovery:
    """Return the node capacity that was observed and cached with the state."""
    import msgspec

    from reconciler.adapters.aws.facts.latest import cache_folder
    from reconciler.catalog.adjusted.discovered import Memory
    from reconciler.engine.records import Discovery, store_nothing
    from reconciler.model.decode import decode_json

    name = "memory.1"
    folder = cache_folder(resolved.settings, response_cache_folder(request.path, resolved))

    def keep(known: Discoveries) -> None:
        folder.write(name, msgspec.json.encode(known, order="sorted"))

    try:
        known = decode_json(folder.read(name) or b"{}", dict[str, dict[str, Memory]])
    except msgspec.MsgspecError:
        known = {}  # it will be observed again soon
    return Discovery(known, keep if keeps else store_nothing)


def recorded_journal(location: str, fleet: str) -> Journal:
    """Return a journal that reads the recorded one and does not write to it.

    It is read only for instances that no recorded NodeClaim has.
    """
    from reconciler.adapters.database.state import open_state

    class RecordedJournal(MemoryJournal):
        """Entries of the recorded journal, read when they are needed."""

        def find_entries(self, intents: Collection[str]) -> Mapping[str, JournalEntry]:
            if not may_exist(location):
                return {}
            with open_state(location, fleet, create=False) as state:
                return state.journal.find_entries(intents)

    return RecordedJournal()


class CopiedState(NamedTuple):
    """The serial of the records that were copied, and the cluster that the fleet acted for last.

    ``place`` is where the records are, without secrets.
    """

    serial: int
    cluster: ClusterId
    place: str


def copy_state(
    location: str, fleet: str, store: StateStore, shelf: Shelf, now: datetime
) -> CopiedState:
    """Copy the records, if there are any."""
    from reconciler.adapters.database.state import open_state
    from reconciler.adapters.simulated.cluster import SHELF_NAME

    if not may_exist(location):
        return CopiedState(0, NO_CLUSTER, "")
    with open_state(location, fleet, create=False) as state:
        store.put_node_claims(state.store.node_claims())
        for command in (*state.store.commands(), *state.store.commands_since(now - DAY)):
            store.put_command(command)
        for rollout in state.store.rollouts():
            store.put_rollout(rollout)
        store.put_obstacles(state.store.obstacles())
        epoch = datetime.fromtimestamp(0, UTC)
        store.put_objects(state.store.objects(), "", epoch)
        store.put_unavailable(state.store.unavailable(epoch))
        kept = state.shelf.read(SHELF_NAME)
        if kept is not None:
            shelf.write(SHELF_NAME, kept)
        return CopiedState(state.store.serial(), state.cluster(), state.database.place)
