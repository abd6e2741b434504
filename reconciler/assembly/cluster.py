"""The cluster: the Kubernetes API, or a simulation based on the instances in EC2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.kubernetes.access import access_of, expect_one_cluster
from reconciler.assembly.account import connections
from reconciler.assembly.decoding import prepare_decoders
from reconciler.assembly.fleetsource import FleetSource
from reconciler.assembly.inputs.request import Environment
from reconciler.catalog.aws.devices import drivers_of_nodes
from reconciler.model.diagnostics import failed_check, passed_check, unknown_check
from reconciler.model.errors import ReconcilerError, UsageError
from reconciler.model.settings import ClusterKind
from reconciler.ports.calls import InlineCalls

if TYPE_CHECKING:
    from reconciler.adapters.kubernetes.api import Api
    from reconciler.adapters.kubernetes.informers import ClusterCache
    from reconciler.assembly.inputs.catalogs import CurrentCatalog
    from reconciler.model.diagnostics import Check
    from reconciler.model.settings import Settings
    from reconciler.ports.calls import Calls
    from reconciler.ports.clock import Clock
    from reconciler.ports.cluster import Arrivals, Cluster
    from reconciler.ports.state import Shelf


def expect_a_cluster(settings: Settings) -> None:
    """Refuse to act without a cluster.

    Raises:
        UsageError: the settings say that there is none.
    """
    if settings.cluster == ClusterKind.NONE:
        raise UsageError(
            "no cluster is configured",
            where="cluster",
            remedy=(
                "use --set cluster=kubeconfig, or cluster=embedded, which simulates a cluster "
                "from the EC2 instances"
            ),
        )


def expect_access(settings: Settings) -> None:
    """Refuse to act on a cluster that the configuration does not lead to; nothing is asked of it.

    A command calls this before it creates the state of the fleet: with a state, a folder counts as
    that of a running fleet.

    Raises:
        UsageError: no cluster is configured.
        ClusterError: a kubeconfig cannot be read, or does not have the context.
    """
    expect_a_cluster(settings)
    if settings.cluster == ClusterKind.KUBECONFIG:
        access_of(settings).client.close()


def cluster_of(
    settings: Settings,
    catalog: CurrentCatalog,
    environment: Environment,
    shelf: Shelf,
    source: FleetSource,
    confirm: Callable[[], None] | None = None,
    calls: Calls | None = None,
    cache: ClusterCache | None = None,
) -> Cluster:
    """Return the cluster.

    ``confirm`` is called before each attempt of a call to a real one, ``calls`` makes those that
    take long, and ``cache`` is a copy of its objects.
    """
    expect_a_cluster(settings)
    if settings.cluster == ClusterKind.KUBECONFIG:
        from reconciler.adapters.kubernetes.cluster import KubernetesCluster

        api = api_of(settings, environment.clock)
        api.confirm = confirm or api.confirm
        expect_one_cluster(api.access, settings)
        return KubernetesCluster(api, calls, cache)
    from reconciler.adapters.simulated.cluster import EmbeddedCluster

    cluster = EmbeddedCluster(
        shelf=shelf,
        types=catalog.get,
        workloads=lambda: source.workloads,
        clock=environment.clock,
        joining_s=environment.joining_s,
        ready_s=environment.ready_s,
        starting_s=environment.starting_s,
        leaving_s=environment.leaving_s,
        drivers=drivers_of_nodes(settings, lambda: source.classes),
    )
    cluster.schedule_with(settings.scheduler_profiles)
    return cluster


def api_of(settings: Settings, clock: Clock) -> Api:
    """Return the API of the cluster; nothing connects before the first use.

    The clock of this machine follows that of the API server.
    """
    from reconciler.adapters.kubernetes.api import Api

    api = Api(
        lambda: access_of(settings),
        lambda seconds: clock.wait(seconds, lambda: False),
        settings.kube_timeout.total_seconds(),
        meter=connections().meter,
    )
    if isinstance(clock, SystemClock):
        api.on_time = clock.follow
    return api


def cluster_checks(settings: Settings, *, writes: bool) -> Iterator[Check]:
    """Yield the results of checking the Kubernetes API and our permissions."""
    from reconciler.adapters.kubernetes.api import cluster_checks

    return cluster_checks(api_of(settings, SystemClock()), settings, writes=writes)


def karpenter_check(settings: Settings, *, writes: bool) -> Check:
    """Return whether a Karpenter runs in the cluster; for a plan alone it is no failure."""
    from reconciler.adapters.kubernetes.api import find_pods
    from reconciler.engine.ownership import KARPENTER_SELECTOR, UnclearOwners, running_karpenters

    try:
        pods = find_pods(api_of(settings, SystemClock()), KARPENTER_SELECTOR)
    except ReconcilerError as error:
        return unknown_check("karpenter", "", f"cannot check: {error}")
    found = UnclearOwners(karpenters=running_karpenters(pods))
    if not found:
        return passed_check("karpenter", "", "does not run in this cluster")
    if writes:
        return failed_check("karpenter", "", found.summary, found.remedy)
    return unknown_check("karpenter", "", found.summary)


def uses_threads(settings: Settings, environment: Environment) -> bool:
    """Return whether calls are made at the same time, which they are if the cluster is real."""
    return settings.cluster == ClusterKind.KUBECONFIG and environment.workers > 1


@contextmanager
def calls_of(settings: Settings, environment: Environment, *, sleeps: bool) -> Iterator[Calls]:
    """Make calls on threads if the cluster is real, else one after another.

    ``apply``, which unlike ``run`` never ``sleeps``, has to start its plan within one pass.
    """
    if not uses_threads(settings, environment):
        yield InlineCalls()
        return
    from reconciler.adapters.threads import PATIENT_S, WITHIN_S, threaded_calls

    with threaded_calls(within_s=WITHIN_S if sleeps else PATIENT_S) as calls:
        yield calls


@dataclass(frozen=True)
class ClusterWatch:
    """The watches of a command on a real cluster between two passes.

    They are active while ``run_in_background`` runs. ``cache`` is None if each pass lists all
    objects.
    """

    arrivals: Arrivals
    cache: ClusterCache | None = None
    run_in_background: Callable[[], AbstractContextManager[None]] = nullcontext


def cluster_watch_of(settings: Settings, clock: Clock, *, sleeps: bool) -> ClusterWatch:
    """Return the watches of a command that ``sleeps`` between passes; other commands list."""
    from reconciler.engine.world import NoArrivals

    if not sleeps or settings.cluster != ClusterKind.KUBECONFIG:
        return ClusterWatch(NoArrivals())
    from reconciler.adapters.kubernetes.arrivals import PendingPods
    from reconciler.adapters.kubernetes.informers import ClusterCache, Freshness

    prepare_decoders()
    api = api_of(settings, clock)
    pods = PendingPods(
        api, clock, idle=settings.batch_idle_duration, max_wait=settings.batch_max_duration
    )
    if not settings.kube_watch:
        return ClusterWatch(pods, None, pods.run_in_background)
    freshness = Freshness.of_settings(settings)
    cache = ClusterCache(api, freshness, on_objects=pods.record_pods, on_reopened=pods.wake)
    return ClusterWatch(pods, cache, cache.run_in_background)
