"""One command sees one revision, even if somebody commits while it reads the account."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from reconciler.adapters.aws.clients import connector
from reconciler.assembly.assembly import assemble_world, live_inputs
from reconciler.assembly.inputs import sources
from reconciler.assembly.inputs.request import Environment
from reconciler.assembly.inputs.watching import NullNotifier
from reconciler.model.settings import Settings
from tests.cli.commandlines import request_of
from tests.cli.test_end_to_end import Shop


def an_environment(shop: Shop, first_call: Callable[[], None]) -> Environment:
    """Return an environment in which something happens before the first call to AWS."""
    connect, done = cache(connector(Settings(endpoint_url=shop.url))), list[bool]()

    def watched(service: str, *more: Any) -> Any:
        if not done:
            done.append(True)
            first_call()
        return connect(service, *more)

    return Environment(shop.clock, watched, workers=1)


@pytest.mark.parametrize("is_read_before", [True, False])
def test_a_plan_of_the_running_fleet_has_one_revision(shop: Shop, is_read_before: bool) -> None:
    request = request_of(shop.words("plan")).fleet
    source = sources.read_source(request) if is_read_before else None
    inputs = live_inputs(request, an_environment(shop, lambda: shop.commit(5)), source)
    assert len(inputs.cluster.pending) == 2
    assert len(live_inputs(request, an_environment(shop, lambda: None)).cluster.pending) == 5


def test_an_application_has_one_revision(shop: Shop) -> None:
    request = request_of(shop.words("apply", "--auto-approve")).fleet
    environment = an_environment(shop, lambda: shop.commit(5))
    with assemble_world(request, NullNotifier(), environment) as assembly:
        assembly.source.read()
        assert len(assembly.source.workloads.pods) == 2
        assembly.source.read()
        assert len(assembly.source.workloads.pods) == 5
