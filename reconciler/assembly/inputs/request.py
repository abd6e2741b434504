"""What a command is asked and acts on: frozen values, made once from its arguments."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.adapters.aws.clients import Connect
    from reconciler.ports.clock import Clock

SNAPSHOT_MAX_AGE: Final = timedelta(hours=24)
WORKERS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRequest:
    """A fleet on this machine and its recorded state.

    ``path`` is the fleet folder, None for the current one. ``state`` is the flag ``--state``,
    ``settings`` are the ``KEY=VALUE`` of ``--set``, ``config`` is the operator's configuration
    file. ``now`` is None for the system clock.
    """

    path: str | None = None
    state: str | None = None
    settings: tuple[str, ...] = ()
    config: str | None = None
    now: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRequest(StateRequest):
    """A fleet at a revision, and the inputs that a plan of it is made from.

    ``repo`` is the URL of a remote repository, ``ref`` a commit, branch or tag, ``below`` the
    folder within the repository, ``base`` the commit to compare with. ``snapshot`` and
    ``catalog`` are files (``-`` is stdin); a snapshot may also be an object of S3, an https URL or
    a file in git. A snapshot older than ``snapshot_max_age`` causes a warning. ``is_watched`` is
    whether changes of the folder are detected at once although ``ref`` names a commit.
    ``base_path`` is where the fleet's folder was at ``base``, if it has moved since. ``is_removed``
    is whether the folder is gone: then only the settings of the base are left of the fleet.
    ``is_emptied`` is whether a change deletes every NodePool: then a folder without any is planned.
    ``replicas_percent`` is how many replicas scaled workloads have: None for the present number,
    else from 0 (the minimum) to 100 (the maximum).
    ``manifests`` are files with rendered objects (``-`` is stdin), beside those of the folder or,
    with ``is_instead``, instead of them: then only the configuration of the folder counts.
    ``cost_by`` is how the cost of a change is divided among workloads (``--by``), empty by default.
    ``durations`` are how long the pods of CronJobs run, by ``namespace/name`` or by name.
    ``is_of_cluster`` is whether the NodePools and settings are those of the cluster itself, without
    any file, and ``overrides`` are files with objects in place of those of the same name.
    ``is_in_ci`` is whether a job of a CI service plans a commit. ``is_base`` is whether it is the
    base of a comparison, which may have older versions of the API.
    """

    repo: str | None = None
    ref: str | None = None
    below: str | None = None
    base: str | None = None
    snapshot: str | None = None
    snapshot_max_age: timedelta = SNAPSHOT_MAX_AGE
    catalog: str | None = None
    allow_removal: frozenset[str] = frozenset()
    is_watched: bool = False
    base_path: str | None = None
    is_removed: bool = False
    is_emptied: bool = False
    replicas_percent: int | None = None
    manifests: tuple[str, ...] = ()
    is_instead: bool = False
    cost_by: str = ""
    is_of_cluster: bool = False
    overrides: tuple[str, ...] = ()
    durations: tuple[tuple[str, timedelta], ...] = ()
    is_in_ci: bool = False
    is_base: bool = False

    @property
    def is_at_commit_time(self) -> bool:
        """Whether a plan of files is made for the time of its commit.

        So the same change has the same figures whenever it is planned.
        """
        return self.now is None and (self.base is not None or self.is_in_ci)

    @property
    def reads_folder(self) -> bool:
        """Whether it reads the fleet of a folder as it is on disk, and nothing instead of it."""
        return not (self.repo or self.ref or self.manifests)

    @property
    def removes_nodes(self) -> bool:
        """Whether no NodePool is left, so that all nodes go."""
        return self.is_removed or self.is_emptied

    @property
    def may_be_empty(self) -> bool:
        """Whether a folder without any NodePool is allowed.

        With a cluster and a catalog from files everything is stated, as in a test; otherwise an
        empty folder is a checkout that went wrong.
        """
        is_stated = self.snapshot is not None and self.catalog is not None
        return self.removes_nodes or is_stated

    @property
    def at_base(self) -> FleetRequest:
        """The same request for the fleet as it was at ``base``."""
        path = self.base_path or self.path
        return replace(
            self, ref=self.base, path=path, is_removed=False, is_emptied=False, is_base=True
        )


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """Where evaluations run: in ``workers`` processes, or on the Dask cluster of ``scheduler``.

    ``cache`` is a folder or an ``s3://`` URL that keeps their results, None to keep none.
    """

    workers: int = 1
    scheduler: str | None = None
    cache: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A file with a trace, what it is replayed against, and where.

    ``trace`` is None if nothing is replayed. ``against`` is ``karpenter-defaults``, ``frontier`` or
    None. With ``workload_only``, the spot prices and refusals of the trace are left out.
    """

    trace: str | None = None
    against: str | None = None
    sweep: SweepRequest = field(default_factory=SweepRequest)
    workload_only: bool = False


@dataclass(frozen=True, slots=True)
class ServingRequest:
    """Where metrics, health checks and the dashboard are served, and who may see it.

    ``listen`` is the address, empty for none; ``token`` and ``header`` let users see the dashboard
    from other machines, and ``hosts`` are the names under which they reach it. ``probes`` is an
    address for health checks alone, empty for none.
    """

    listen: str = ""
    token: str = ""
    header: str = ""
    hosts: tuple[str, ...] = ()
    probes: str = ""

    @property
    def is_wanted(self) -> bool:
        """Whether anything is served."""
        return bool(self.listen or self.probes)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The fleet to keep, how often it is reconciled, and how the daemon behaves.

    ``others`` are the fleets, or folders of fleets, that were named after the first. ``waits`` is
    whether it waits for the lease where another process holds it. ``acts_on_files`` is whether
    uncommitted changes count. ``heartbeat`` is a file, None for none. ``is_simulated`` is whether
    EC2 and the cluster are simulated.
    """

    fleet: FleetRequest
    interval: timedelta
    waits: bool = True
    acts_on_files: bool = False
    heartbeat: str | None = None
    log_format: str = "text"
    serving: ServingRequest = ServingRequest()
    others: tuple[FleetRequest, ...] = ()
    is_simulated: bool = False


@dataclass(frozen=True, slots=True)
class Environment:
    """The clock of a command, how it reaches EC2, and the latencies of a simulated cluster.

    ``connect`` leads to a simulated EC2; if it is None, the settings name the account. The seconds
    are those of ``EmbeddedCluster``. ``workers`` is the number of simultaneous launches.
    """

    clock: Clock
    connect: Connect | None = None
    workers: int = 8
    joining_s: float = 0.0
    ready_s: float = 0.0
    starting_s: float = 0.0
    leaving_s: float = 0.0


def clock_of(request: FleetRequest) -> Clock:
    """Return the machine's clock, set to ``--now`` if that is given."""
    from reconciler.adapters.clock import SystemClock

    return SystemClock() if request.now is None else SystemClock(request.now)
