"""Serves several fleets in one process: a thread for each, which runs the loop of one daemon.

A fleet that cannot be served is reported and tried again; it never stops another one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from reconciler.model.errors import ReconcilerError, UnreadableError, UsageError
from reconciler.ports.progress import EventKind, Progress

if TYPE_CHECKING:
    from reconciler.assembly.inputs.request import FleetRequest, RunRequest
    from reconciler.assembly.monitoring import Monitoring
    from reconciler.daemon.monitoring import FleetsMonitoring
    from reconciler.daemon.roster import FleetRoster
    from reconciler.daemon.sharing import FleetSharing
    from reconciler.ports.clock import Clock

ROSTER_S: Final = 5.0
"""How often the commit of a folder of fleets is read; for a remote one, a third as often."""

_TICK_S: Final = 0.5
_RETRY_S: Final = 5.0
_RETRY_MAX_S: Final = 300.0


def serve(request: RunRequest, roster: FleetRoster) -> int:
    """Serve all fleets until SIGTERM or SIGINT; each finishes its current pass.

    Raises:
        UsageError: the request uses an option that is for a single fleet only.
        UnreadableError: a folder does not exist, or the fleets cannot be listed.
    """
    from reconciler.adapters.clock import SystemClock
    from reconciler.adapters.database.state import SharedStates
    from reconciler.assembly.decoding import prepare_decoders
    from reconciler.assembly.inputs import watching
    from reconciler.daemon.daemon import with_heartbeat
    from reconciler.daemon.monitoring import serve_fleets_monitoring
    from reconciler.daemon.sharing import FleetSharing
    from reconciler.exitcode import DONE
    from reconciler.notifications.log import log_libraries

    _expect_supported_options(request)
    for named in (request.fleet, *request.others):
        if named.repo is None and not os.path.isdir(named.path or "."):
            raise UnreadableError(
                f'folder "{named.path}" does not exist',
                remedy="pass fleet folders, or a folder that contains fleets, as PATH",
            )
    roster.read()
    prepare_decoders()
    clock = SystemClock()
    with watching.stop_on_signal() as stop, ExitStack() as stack:
        monitoring = stack.enter_context(serve_fleets_monitoring(request, clock, sys.stdout))
        stack.enter_context(log_libraries(monitoring.log))
        sharing = stack.enter_context(FleetSharing(SharedStates("reconciler")))
        beat = with_heartbeat(request.heartbeat, lambda: False)
        FleetService(request, roster, monitoring, sharing, clock, stop, beat).run()
    return DONE


def _expect_supported_options(request: RunRequest) -> None:
    if not request.waits:
        raise UsageError(
            "several fleets wait for their leases",
            where="--no-wait",
            remedy="name one fleet, or leave out --no-wait",
        )
    for setting in request.fleet.settings:
        if setting.partition("=")[0] == "fleet":
            raise UsageError(
                "several fleets cannot have one name",
                where=f"--set {setting}",
                remedy="set `fleet` in the reconciler.yaml of each",
            )


@dataclass
class _Member:
    """A fleet that is served: its folder, its name, and its thread."""

    folder: str
    name: str
    request: RunRequest
    monitoring: Monitoring
    removed: Event = field(default_factory=Event)
    thread: Thread | None = None


@dataclass
class FleetService:
    """The threads of the fleets; ``run`` starts and stops them as the roster changes.

    ``beat`` is called for as long as every fleet is alive.
    """

    request: RunRequest
    roster: FleetRoster
    monitoring: FleetsMonitoring
    sharing: FleetSharing
    clock: Clock
    stop: Callable[[], bool]
    beat: Callable[[], object] = lambda: None
    _members: dict[str, _Member] = field(default_factory=dict, init=False)
    _leaving: list[_Member] = field(default_factory=list, init=False)

    def run(self) -> None:
        """Serve the fleets until ``stop`` returns True, and wait for their last passes."""
        interval_s = ROSTER_S * (3 if self.request.fleet.repo is not None else 1)
        elapsed_s = interval_s
        while not self.stop():
            if elapsed_s >= interval_s:
                elapsed_s = 0.0
                self._follow_roster()
            if self.monitoring.are_alive():
                self.beat()
            self.clock.wait(_TICK_S, self.stop)
            elapsed_s += _TICK_S
        self.sharing.leave()
        for member in (*self._members.values(), *self._leaving):
            self._join(member)

    def _follow_roster(self) -> None:
        """Start the fleets that are new and stop those that are gone."""
        self._leaving = [m for m in self._leaving if m.thread is not None and m.thread.is_alive()]
        try:
            now = self.roster.read()
        except ReconcilerError as error:
            text = f"cannot list the fleets, continuing with those that are known: {error}"
            self._notify(EventKind.RETRYING, text)
            return
        for folder in list(filterfalse(now.__contains__, self._members)):
            self._remove(self._members.pop(folder))
        leaving = {member.folder for member in self._leaving}
        for folder, fleet in now.items():
            if folder not in self._members and folder not in leaving:
                self._members[folder] = self._start(folder, fleet)
        self.monitoring.set_fleet_count(len(now))

    def _start(self, folder: str, fleet: FleetRequest) -> _Member:
        fleet = with_own_config(fleet)
        name = self._display_name(fleet)
        removed = Event()

        def stops() -> bool:
            return self.stop() or removed.is_set()

        request = replace(self.request, fleet=fleet, others=())
        member = _Member(folder, name, request, self.monitoring.for_fleet(name, stops), removed)
        member.thread = Thread(
            target=self._run_daemon, args=(member,), name=f"fleet {name}", daemon=True
        )
        text = f"serving fleet {name} in {folder}"
        member.monitoring.notifier.notify(Progress(self.clock.now(), EventKind.FLEET_ADDED, text))
        member.thread.start()
        return member

    def _remove(self, member: _Member) -> None:
        """Stop a fleet after its pass; its nodes stay, because their removal was not requested."""
        text = (
            f"no longer serving fleet {member.name}: {member.folder} has no fleet any more; "
            "its nodes stay"
        )
        member.monitoring.notifier.notify(Progress(self.clock.now(), EventKind.FLEET_REMOVED, text))
        member.removed.set()
        self.monitoring.forget(member.name)
        self._leaving.append(member)

    def _join(self, member: _Member) -> None:
        if member.thread is not None:
            member.thread.join()

    def _run_daemon(self, member: _Member) -> None:
        """Run the daemon of a fleet, and restart it after any error until it is stopped."""
        from reconciler.daemon.daemon import FleetDaemon
        from reconciler.engine.loop import describe_error

        monitoring = member.monitoring
        failures = 0
        while not monitoring.stop():
            try:
                FleetDaemon(
                    member.request,
                    monitoring.notifier,
                    monitoring.stop,
                    observer=monitoring.observer,
                    sharing=self.sharing,
                    alive=monitoring.stop,
                ).run()
            except Exception as error:  # noqa: BLE001 - one fleet must not end the others
                problem = describe_error(error)
                monitoring.observer.pass_failed(problem)
                monitoring.notifier.notify(
                    Progress(self.clock.now(), EventKind.FAILED, f"cannot be served: {problem}")
                )
                pause = min(_RETRY_S * 2.0 ** min(failures, 10), _RETRY_MAX_S)
                failures += 1
                self.clock.wait(pause, self._change_detector(member))

    def _change_detector(self, member: _Member) -> Callable[[], bool]:
        """Return a function that is true once the fleet is stopped or its files have changed."""
        places = _watched_paths(member.request.fleet)
        before = _modification_times(places)

        def has_changed() -> bool:
            return member.monitoring.stop() or _modification_times(places) != before

        return has_changed

    def _display_name(self, fleet: FleetRequest) -> str:
        """Return the name to display: the fleet's, or its folder's if that is unknown.

        The name of another fleet is not used again: a second one with that name is refused later,
        and its failure must not be shown as that of the first.
        """
        from reconciler.assembly.fleetsource import follow_commits
        from reconciler.assembly.inputs import sources

        try:
            request = fleet if self.request.acts_on_files else follow_commits(fleet)
            found = sources.desired_fleet(request, any_class=True, allow_empty=True)
            name = sources.settings_of(request, found).settings.fleet
        except ReconcilerError:
            name = sources.fleet_name(fleet)
        used_names = {member.name for member in (*self._members.values(), *self._leaving)}
        if name in used_names:
            name = sources.fleet_name(fleet)
        while name in used_names:
            name += ".2"
        return name

    def _notify(self, kind: EventKind, text: str) -> None:
        self.monitoring.log.notify(Progress(self.clock.now(), kind, text))


def with_own_config(fleet: FleetRequest) -> FleetRequest:
    """Return the request with the operator's file for this fleet, where ``--config`` is a folder.

    The file has the name of the fleet's folder; a fleet without one has ``default.yaml``.
    """
    from reconciler.assembly.inputs.operatorfile import operator_file_path
    from reconciler.assembly.inputs.sources import fleet_name

    config = operator_file_path(fleet.config)
    if config is None or not os.path.isdir(config):
        return fleet
    own = os.path.join(config, f"{fleet_name(fleet)}.yaml")
    default = os.path.join(config, "default.yaml")
    return replace(fleet, config=own if os.path.lexists(own) else default)


def _watched_paths(fleet: FleetRequest) -> list[str]:
    """Return the files and folders that change with the commit of a repository on this machine."""
    if fleet.repo is not None:
        return []
    from reconciler.adapters.git.repository import find_repository

    folder = fleet.path or "."
    found = find_repository(folder)
    if found is None:
        return [folder]
    return [
        folder,
        os.path.join(found.git_dir, "HEAD"),
        os.path.join(found.git_dir, "logs", "HEAD"),
    ]


def _modification_times(places: list[str]) -> list[float]:
    stamps = []
    for place in places:
        try:
            stamps.append(os.stat(place).st_mtime)
        except OSError:
            stamps.append(0.0)
    return stamps
