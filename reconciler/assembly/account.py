"""AWS: connections, EC2, and the sources of interruption messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

from reconciler.adapters.clock import SystemClock
from reconciler.assembly.inputs.records import response_cache_folder
from reconciler.assembly.inputs.request import Environment, FleetRequest, clock_of

if TYPE_CHECKING:
    from reconciler.adapters.aws.clients import Connections
    from reconciler.adapters.aws.compute import AwsCompute
    from reconciler.adapters.aws.facts.latest import AccountFacts
    from reconciler.adapters.aws.nodeclass.images import Types
    from reconciler.assembly.inputs.catalogs import AwsQuery, CurrentCatalog
    from reconciler.desired.settings.layers import Resolved
    from reconciler.model.karpenter.nodeclass import EC2NodeClass
    from reconciler.model.settings import Settings
    from reconciler.ports.cloud import Interruptions


@cache
def connections() -> Connections:
    """Return the connections of this process; fleets of one account share its rate limits."""
    from reconciler.adapters.aws.clients import Connections

    return Connections(SystemClock())


def compute_of(
    settings: Settings,
    catalog: CurrentCatalog,
    environment: Environment,
    *,
    acts: bool = False,
    confirm: Callable[[], None] | None = None,
) -> AwsCompute:
    """Return EC2. Acting commands test node classes; a plan's credentials need not allow that.

    ``confirm`` is called before each attempt of a call, and what it raises ends the call.
    """
    from reconciler.adapters.aws.compute import AwsCompute
    from reconciler.adapters.aws.launch.profiles import is_simulated_account
    from reconciler.adapters.aws.nodeclass.images import types_of

    def find(node_class: EC2NodeClass) -> Types:
        return types_of(catalog.current, settings)(node_class)

    connect = environment.connect
    if connect is None and confirm is not None:
        connect = connections().guarded_connector(settings, confirm)
    return AwsCompute(
        connect or connections().connector(settings),
        settings,
        catalog.get,
        environment.clock,
        types_of=find,
        workers=environment.workers,
        validates=acts and not is_simulated_account(settings),
    )


def node_class_resolver(
    request: FleetRequest, resolved: Resolved
) -> Callable[[EC2NodeClass], EC2NodeClass]:
    """Return the resolver of node classes in the account."""
    from reconciler.assembly.inputs.catalogs import CurrentCatalog

    environment = Environment(clock_of(request))
    query = aws_query_of(request, resolved, environment, by_default=False)
    catalog = CurrentCatalog(request, query, resolved, None)
    return compute_of(resolved.settings, catalog, environment).resolve


def aws_query_of(
    request: FleetRequest,
    resolved: Resolved,
    environment: Environment | None = None,
    *,
    by_default: bool,
    refresh: bool = False,
) -> AwsQuery:
    """Return a query for types and prices in AWS; nothing connects before the first request.

    With ``refresh``, a cached response is used only if AWS does not respond.
    """
    from reconciler.assembly.inputs.catalogs import AwsQuery

    @cache
    def facts() -> AccountFacts:
        from reconciler.adapters.aws.facts.latest import AccountFacts, cache_folder
        from reconciler.assembly.inputs.catalogs import max_age
        from reconciler.catalog.catalog import bundled_data

        settings = resolved.settings
        own = environment.connect if environment is not None else None
        return AccountFacts(
            own or connections().connector(settings),
            settings,
            environment.clock if environment is not None else clock_of(request),
            cache_folder(settings, response_cache_folder(request.path, resolved)),
            max_age=timedelta() if refresh else max_age(settings),
            bundle=bundled_data()[1],
        )

    return AwsQuery(facts, by_default)


@contextmanager
def receive_interruptions(settings: Settings, environment: Environment) -> Iterator[Interruptions]:
    """Receive interruptions while the block runs: from EC2, and from a queue if one is named.

    A simulated EC2 in this process has no events except those that were sent as messages.
    """
    from reconciler.adapters.aws.events.statuses import InterruptionSources

    ways: list[Interruptions] = []
    connect = environment.connect or connections().connector(settings)
    with ExitStack() as listeners:
        if settings.interruption_queue:
            from reconciler.adapters.aws.events.queue import InterruptionQueue

            queue = InterruptionQueue(
                connect,
                settings.interruption_queue,
                environment.clock,
                account=settings.role_arn.split(":")[4] if settings.role_arn else "",
                region=settings.region,
            )
            listeners.enter_context(queue.run_in_background())
            ways.append(queue)
        if environment.connect is None:
            from reconciler.adapters.aws.events.statuses import InstanceStatuses

            statuses = InstanceStatuses(connect, environment.clock)
            listeners.enter_context(statuses.run_in_background())
            ways.append(statuses)
        yield InterruptionSources(*ways)
