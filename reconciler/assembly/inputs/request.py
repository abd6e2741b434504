"""What a command is asked and acts on: frozen values, made once from its arguments."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from reconciler.options import option, repeated, switch

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.adapters.aws.clients import Connect
    from reconciler.ports.clock import Clock

SNAPSHOT_MAX_AGE: Final = timedelta(hours=24)
WORKERS_MAX: Final = 64
DASHBOARD: Final = "127.0.0.1:8080"
"""Where the dashboard of a simulated fleet is by default."""

_FLEET: Final = "fleet"
_INPUTS: Final = "inputs"
_SETTINGS: Final = "settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRequest:
    """A fleet on this machine and its recorded state.

    ``path`` is the fleet folder, None for the current one.
    """

    path: str | None = None
    state: str | None = option(
        "--state", "DIR|URL", "state directory or database URL", group=_SETTINGS
    )
    settings: tuple[str, ...] = repeated(
        "--set", "KEY=VALUE", "override a setting of reconciler.yaml (repeatable)", group=_SETTINGS
    )
    config: str | None = option(
        "--config",
        "FILE",
        "operator settings, in a file outside the repository (default: $RECONCILER_CONFIG)",
        group=_SETTINGS,
    )
    now: datetime | None = option(
        "--now", "TIME", "current time in RFC 3339 (default: the system clock)", group=_INPUTS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRequest(StateRequest):
    """A fleet at a revision, and the inputs that a plan of it is made from.

    ``is_watched`` is whether changes of the folder are detected at once although ``ref`` names a
    commit. ``base_path`` is where the fleet's folder was at ``base``, if it has moved since.
    ``is_removed`` is whether the folder is gone: then only the settings of the base are left of the
    fleet. ``is_emptied`` is whether a change deletes every NodePool: then a folder without any is
    planned. ``replicas_percent`` is None for the present number, else from 0 (the minimum) to 100
    (the maximum). With ``is_instead``, ``manifests`` are read instead of the folder, of which only
    the configuration counts. ``cost_by`` is how the cost of a change is divided among workloads
    (``--by``), empty by default. ``durations`` are how long the pods of CronJobs run, by
    ``namespace/name`` or by name. ``is_of_cluster`` is whether the NodePools and settings are those
    of the cluster itself, without any file, and ``overrides`` are files with objects in place of
    those of the same name. ``is_in_ci`` is whether a job of a CI service plans a commit.
    ``is_base`` is whether it is the base of a comparison, which may have older versions of the API.
    """

    repo: str | None = option(
        "--repo", "URL", "read a remote repository without a checkout", group=_FLEET
    )
    ref: str | None = option(
        "--ref", "REF", "commit, branch or tag (default: the working tree)", group=_FLEET
    )
    below: str | None = option("--path", "DIR", "fleet folder within the repository", group=_FLEET)
    base: str | None = option(
        "--base", "REF", "show what changes compared with this commit", group=_INPUTS
    )
    snapshot: str | None = option(
        "--snapshot",
        "PLACE",
        "cluster objects from `reconciler snapshot` or `kubectl get … -o json`: a file, - for "
        "stdin, s3://BUCKET/KEY, https://HOST/PATH, or git:REF:PATH",
        group=_INPUTS,
    )
    snapshot_max_age: timedelta = option(
        "--snapshot-max-age",
        "DURATION",
        "warn if the snapshot is older than this (default: 24h)",
        default=SNAPSHOT_MAX_AGE,
        group=_INPUTS,
    )
    catalog: str | None = option(
        "--catalog",
        "FILE",
        "catalog of instance types (default: the bundled AWS catalog)",
        group=_INPUTS,
    )
    allow_removal: frozenset[str] = repeated(
        "--allow-removal",
        "NAME",
        "allow this NodePool to be removed if it is no longer in git (repeatable)",
        default=frozenset(),
        group=_SETTINGS,
    )
    is_watched: bool = False
    base_path: str | None = None
    is_removed: bool = False
    is_emptied: bool = False
    replicas_percent: int | None = option(
        "--replicas",
        "NUMBER",
        "replicas of scaled workloads: present (without a cluster, the minimum), min, max, or N%% "
        "of the range between them (default: present)",
        group=_INPUTS,
    )
    manifests: tuple[str, ...] = repeated(
        "-f",
        "FILE",
        "rendered manifests or `terraform show -json` (- for stdin), added to the files of PATH, "
        "or read alone without PATH (repeatable)",
        group=_FLEET,
    )
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
    """A file with a trace, what it is replayed against, and where; nothing without ``trace``."""

    trace: str | None = option(
        "--trace",
        "FILE",
        "replay this workload: a trace of reconciler or an openb CSV, plain or gzipped",
    )
    against: str | None = option(
        "--against",
        None,
        "with --trace: also replay it as Karpenter packs and searches, or with settings that trade "
        "cost for evictions",
        choices=("karpenter-defaults", "frontier"),
    )
    sweep: SweepRequest = field(default_factory=SweepRequest)
    workload_only: bool = switch(
        "--workload-only",
        "with --trace: omit the recorded spot prices and unavailable offerings",
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The fleet to keep, how often it is reconciled, and how the daemon behaves.

    ``others`` are the fleets, or folders of fleets, that were named after the first. ``heartbeat``
    is a file, None for none.
    """

    fleet: FleetRequest
    heartbeat: str | None = None
    interval: timedelta = option(
        "--interval",
        "DURATION",
        "time between two reconcile passes (default: 30s)",
        default=timedelta(seconds=30),
    )
    waits: bool = switch(
        "--no-wait",
        "exit 1 if another process acts for this fleet (default: wait, and take over)",
        default=True,
    )
    acts_on_files: bool = switch(
        "--dirty", "act on uncommitted changes of the working tree (default: on its commits only)"
    )
    is_simulated: bool = switch(
        "--simulated",
        f"act on a simulated EC2 and cluster, with the dashboard at http://{DASHBOARD} unless "
        "--listen is given",
    )
    log_format: str = option(
        "--log-format",
        None,
        "format of the log (default: text)",
        choices=("text", "json"),
        default="text",
    )
    serving: ServingRequest = ServingRequest()
    others: tuple[FleetRequest, ...] = ()


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
