"""Opens the recorded state for the commands that read it, and reads the progress of plans."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reconciler.assembly.inputs import operatorfile
from reconciler.assembly.inputs.timings import current_time
from reconciler.model.diagnostics import Severity
from reconciler.model.errors import (
    InvalidFleetError,
    ReconcilerError,
    StateError,
    UnreadableError,
    UsageError,
)
from reconciler.model.settings import ClusterKind
from reconciler.model.text.quoting import quote_value
from reconciler.plan.value.actions import ActionKind
from reconciler.ports.journal import Verb
from reconciler.source.resource import CONFIG_FILES

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.adapters.database.state import DatabaseState
    from reconciler.assembly.inputs.request import FleetRequest, StateRequest
    from reconciler.desired.settings.layers import Resolved
    from reconciler.engine.tracking import Records
    from reconciler.model.karpenter.nodeclaim import NodeClaim
    from reconciler.plan.run import ActionState, PlanRun
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.journal import JournalEntry
    from reconciler.ports.state import RecordedPlan, RunningCommand

FOLDER: Final = ".reconciler"
"""The state directory within the fleet folder, where nothing names another place."""

_PLANS: Final = (1, 10, 100)
"""How many plans are searched for the last applied one; usually it is the newest."""

_LAUNCHES_MAX: Final = 100
"""How many operations on one NodeClaim are searched for its launch."""

_SERVED_KIND: Final = {
    Verb.LAUNCH: ActionKind.PROVISION,
    Verb.TAINT: ActionKind.TERMINATE,
    Verb.UNTAINT: ActionKind.TERMINATE,
    Verb.DRAIN: ActionKind.TERMINATE,
    Verb.TERMINATE: ActionKind.TERMINATE,
    Verb.REBOOT: ActionKind.REBOOT,
    Verb.DELETE_NODE: ActionKind.TERMINATE,
}
"""The kind of action that an operation serves."""

_CLUSTER_SETTINGS: Final = ("cluster", "kubernetes.kubeconfig", "kubernetes.context")

_ENVIRONMENT: Final = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST")


def name_and_path(words: Sequence[str]) -> tuple[str | None, str | None]:
    """Return ``[NAME] [PATH]`` from the arguments; a single one is a path if it looks like one.

    Raises:
        UsageError: there are more than two.
    """
    if len(words) > 2:
        raise UsageError(
            f"unexpected argument {quote_value(words[2])}", remedy="pass only NAME and PATH"
        )
    if len(words) == 1 and _is_path(words[0]):
        return None, words[0]
    name, path = (*words, None, None)[:2]
    return name, path


def _is_path(word: str) -> bool:
    """Return whether an argument is a folder: by its form, or because it is the folder of a fleet.

    A folder that only happens to have the name of a node pool does not count.
    """
    if word.startswith((".", os.sep)):
        return True
    folder = Path(word)
    if not folder.is_dir():
        return False
    return os.sep in word or any((folder / name).exists() for name in (FOLDER, *CONFIG_FILES))


@dataclass(frozen=True, slots=True)
class RecordedFleet:
    """The state of one fleet, open for reading; ``where`` is how a message names it."""

    state: DatabaseState
    fleet: str
    where: str
    now: datetime


@contextmanager
def open_recorded(
    request: StateRequest, *, create: bool = False, needs_lease: bool = True
) -> Iterator[RecordedFleet]:
    """Open the state that the request names.

    If nothing names the fleet and the state has only one, that one is opened. Writing needs the
    lease, unless ``needs_lease`` is False.

    Raises:
        StateError: it cannot be used, or does not know the fleet.
    """
    from reconciler.adapters.database.state import open_state

    now = current_time(request.now)
    resolved = settings_of(request)
    location, fleet = state_location(request.path, resolved), resolved.settings.fleet
    with open_state(location, fleet, create=create, needs_lease=needs_lease) as state:
        known = state.history.fleets()
        chosen = fleet if create else _fleet_to_read(fleet, known, resolved, state.database.place)
        if chosen == fleet:
            yield RecordedFleet(state, fleet, state.database.place, now)
            return
    with open_state(location, chosen, create=create, needs_lease=needs_lease) as state:
        yield RecordedFleet(state, chosen, state.database.place, now)


def has_state(request: StateRequest) -> bool:
    """Return whether there is a recorded state to answer from.

    A state that ``--state`` names has to exist. A folder of states alone is none:
    ``apply --simulated`` keeps its own below that of the fleet.
    """
    from reconciler.adapters.database.location import may_exist

    place = state_location(request.path, settings_of(request))
    return request.state is not None or may_exist(place)


def is_fleet_recorded(request: StateRequest) -> bool:
    """Return whether the state that the request names knows their fleet; nothing is created.

    Raises:
        StateError: there is a state, and it cannot be used.
    """
    from reconciler.adapters.database.location import may_exist
    from reconciler.adapters.database.state import open_state

    resolved = settings_of(request)
    location, fleet = state_location(request.path, resolved), resolved.settings.fleet
    if not may_exist(location):
        return False
    with open_state(location, fleet, create=False) as state:
        return fleet in state.history.fleets()


def _fleet_to_read(named: str, known: Sequence[str], resolved: Resolved, place: str) -> str:
    from reconciler.desired.settings.layers import DEFAULT

    if named in known:
        return named
    if not known:
        raise StateError(
            "no recorded state in this folder yet",
            where=place,
            remedy="it is created by the first `reconciler apply` or `run`",
        )
    if len(known) == 1 and resolved.origins["fleet"] == DEFAULT:
        return known[0]
    raise StateError(
        f"fleet {named} has no recorded state here; recorded fleets: {', '.join(known)}",
        where=place,
        remedy="select one with --set fleet=NAME",
    )


def state_location(path: str | None, resolved: Resolved) -> str:
    """Return the folder or URL of the state.

    A relative folder in ``reconciler.yaml`` is relative to the fleet folder; one on the command
    line or in the environment is relative to the current folder.

    Raises:
        StateError: git tracks a file of the folder, or it is behind a symbolic link: a state that
            comes with a repository is never used.
    """
    location = _location(path, resolved)
    if "://" not in location:
        _refuse_untrusted_state(location, path or ".")
    return location


def _location(path: str | None, resolved: Resolved) -> str:
    from reconciler.desired.settings.layers import Layer

    folder, state = Path(path or "."), resolved.settings.state
    if not state:
        return str(folder / FOLDER)
    if "://" in state or resolved.origins["state"].layer is not Layer.FILE:
        return state
    return str(folder / state)


def _refuse_untrusted_state(location: str, folder: str) -> None:
    from reconciler.adapters.git.repository import find_tracked_path
    from reconciler.adapters.nofollow import refuse_link

    top, place = Path(os.path.abspath(folder)), Path(os.path.abspath(location))
    for step in (place, *place.parents):
        if top in step.parents:
            refuse_link(step)
    tracked = find_tracked_path(location)
    if tracked is not None:
        raise StateError(
            f"git tracks {tracked}; for safety, state that comes with a repository is never used",
            where=location,
            remedy="run `git rm -r --cached` on it, or pass another location with --state",
        )


def response_cache_folder(path: str | None, resolved: Resolved) -> str:
    """Return the folder for cached responses of AWS: the state's, else the user's cache."""
    with suppress(ReconcilerError):  # a state that is not trusted keeps no answers either
        location = state_location(path, resolved)
        if "://" not in location:
            return location
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(home, "reconciler")


def settings_of(request: StateRequest, region: str = "") -> Resolved:
    """Return the effective settings of the fleet in a folder.

    ``region`` is that of the zones which its NodePools require: they are not read here.

    Raises:
        UnreadableError: the folder does not exist, or its config cannot be read.
        InvalidFleetError: its config has errors.
        UsageError: a setting is wrong.
    """
    from reconciler.desired.settings.layers import resolve

    folder = Path(os.path.realpath(request.path or "."))
    flags = [*([f"state={request.state}"] if request.state else []), *request.settings]
    operator = operatorfile.read_operator_file(request.config, str(folder))
    return resolve(
        _config(folder), os.environ, flags, fleet=folder.name, region=region, operator=operator
    )


def _config(folder: Path) -> dict[str, Any]:
    """Return the data of the folder's config, empty if there is none."""
    from reconciler.assembly.inputs.files import read_checkout_file
    from reconciler.desired.fleet import SourceFile, read_fleet

    if not folder.is_dir():
        raise UnreadableError(
            f'folder "{folder}" does not exist', remedy="pass the fleet folder as PATH"
        )
    name = next((n for n in CONFIG_FILES if (folder / n).is_file()), None)
    if name is None:
        return {}
    try:
        content = read_checkout_file(folder / name, folder)
    except OSError as error:
        raise UnreadableError(error.strerror or str(error), where=str(folder / name)) from error
    fleet, findings = read_fleet([SourceFile(name, content)], allow_empty=True)
    if any(f.severity is Severity.ERROR for f in findings):
        raise InvalidFleetError(findings)
    return fleet.config


def newest_plan(state: DatabaseState) -> tuple[RecordedPlan, Plan] | None:
    """Return the newest plan as it is recorded, and decoded; None before the first."""
    newest = next(iter(state.store.plans(limit=1)), None)
    return None if newest is None else (newest, _decoded_plan(newest.digest, newest.body))


@lru_cache(maxsize=1)
def _decoded_plan(digest: str, body: bytes) -> Plan:
    """Return a plan; the last one is kept, because a terminal reads it every two seconds."""
    from reconciler.plan.value.plan import from_json

    return from_json(body, f"plan {digest}")


def newest_run(state: DatabaseState) -> tuple[RecordedPlan, PlanRun] | None:
    """Return the last applied plan and its progress, None before the first."""
    for limit in _PLANS:
        for recorded in state.store.plans(limit=limit):
            if recorded.carried_out_at is not None:
                return recorded, run_of_recorded(state, recorded)
    return None


def run_of_recorded(state: DatabaseState, recorded: RecordedPlan) -> PlanRun:
    """Return the progress of a recorded plan.

    Actions that had not started when a later plan was made are superseded. Pruning removes a plan
    before the records of its actions, so no action is superseded only because its records are
    gone.
    """
    from reconciler.engine.tracking import track_plan
    from reconciler.plan.value.plan import from_json

    plan = from_json(recorded.body, f"plan {recorded.digest}")
    newest = next(iter(state.store.plans(limit=1)), recorded)
    is_superseded = newest.digest != recorded.digest
    return track_plan(plan, records_of(state, recorded.digest), superseded=is_superseded)


def records_of(state: DatabaseState, plan: str) -> Records:
    """Return the records of a plan's actions.

    Two plans may decide on the same command; its record belongs to the one that started it last.
    """
    from reconciler.engine.tracking import Records

    @cache
    def command(name: str) -> RunningCommand | None:
        found = state.store.command(name)
        return found if found is not None and found.plan in ("", plan) else None

    @cache
    def gone_claim(name: str) -> NodeClaim | None:
        found = state.history.gone_claim(name)
        return None if found is None else found.claim

    def launch(name: str) -> JournalEntry | None:
        entries = state.journal.entries(limit=_LAUNCHES_MAX, target=name)
        ours = (e for e in entries if e.intent.verb is Verb.LAUNCH and e.intent.plan == plan)
        return next(ours, None)

    claims = {claim.name: claim for claim in state.store.node_claims()}
    return Records(claims, command, gone_claim, launch)


class ServedAction(NamedTuple):
    """The action that an operation served: the digest of its plan, its id and its present state."""

    plan: str
    action: str
    state: ActionState


def _runs_of(state: DatabaseState, entries: Sequence[JournalEntry]) -> dict[str, PlanRun]:
    """Return the runs of the plans that operations name, and the newest, by the plan's digest."""
    named = {e.intent.plan: None for e in entries if e.intent.plan}
    found = (state.store.plan(digest) for digest in named)
    runs = {plan.digest: run_of_recorded(state, plan) for plan in found if plan is not None}
    newest = newest_run(state) if entries else None
    if newest is not None:
        runs.setdefault(newest[0].digest, newest[1])
    return runs


def served_actions(
    state: DatabaseState, entries: Sequence[JournalEntry]
) -> Mapping[int, ServedAction]:
    """Return the action that each operation served, by its place in the journal.

    An operation of a later pass does not name its plan, so the plans that the other operations
    name are searched. Operations that served no action are left out: a tag, a cleanup, a stray
    taint.
    """
    runs = _runs_of(state, entries)
    targets = {digest: _actions_by_target(digest, run) for digest, run in runs.items()}
    served: dict[int, ServedAction] = {}
    for entry in entries:
        actions = targets.get(entry.intent.plan)
        key = (_SERVED_KIND.get(entry.intent.verb, ""), entry.intent.target)
        searched = [actions] if actions is not None else targets.values()
        action = next((found[key] for found in searched if key in found), None)
        if action is not None:
            served[entry.sequence] = action
    return served


def _actions_by_target(plan: str, run: PlanRun) -> dict[tuple[str, str], ServedAction]:
    """Return the actions of a plan by their kind and the NodeClaim or Node that they are about."""
    return {
        (action.kind, name): ServedAction(plan, action.id, run.states[action.id])
        for action in run.graph.actions.values()
        for name in (action.node_claim, action.node)
        if name
    }


def is_live(request: FleetRequest, resolved: Resolved) -> bool:
    """Return whether the plan is of the running fleet, not of a snapshot or of files.

    ``cluster`` is ``kubeconfig`` by default, because acting commands need it. Where no cluster can
    be found, such as on the machine of somebody who only wants to preview a folder, the plan is
    made from the workloads in the folder. So a cluster is used only if something names it: the
    settings, the environment (``KUBECONFIG``, a pod's service account), or records of this fleet.
    """
    from reconciler.desired.settings.layers import DEFAULT

    cluster = resolved.settings.cluster
    if request.snapshot is not None or cluster != ClusterKind.KUBECONFIG:
        return request.snapshot is None and cluster == ClusterKind.EMBEDDED
    if any(resolved.origins[key] != DEFAULT for key in _CLUSTER_SETTINGS):
        return True
    return any(os.environ.get(name) for name in _ENVIRONMENT) or _has_live_state(request, resolved)


def _has_live_state(request: FleetRequest, resolved: Resolved) -> bool:
    """Return whether the folder has a state, so that a plan is of the running fleet.

    A state that came with the repository does not count, nor does that of ``--simulated``: its EC2
    and cluster exist only within the process that simulates them.
    """
    from reconciler.adapters.database.location import SIMULATED, may_exist

    try:
        location = state_location(request.path, resolved)
    except StateError:
        return False
    is_simulated = Path(os.path.abspath(location)).parts[-2:] == (FOLDER, SIMULATED)
    return may_exist(location) and not is_simulated
