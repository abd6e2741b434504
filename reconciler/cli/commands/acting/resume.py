"""``reconciler resume``: resume disruption that was halted after failures.

It writes one record, which the next pass of a running engine reads. Disruption that was suspended
in ``reconciler.yaml`` is resumed by changing that file instead.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from reconciler import exitcode
from reconciler.assembly.inputs import records
from reconciler.cli.parser import inputs
from reconciler.inspection.replies import ResumedPool, ResumeReply
from reconciler.model.errors import UsageError
from reconciler.model.text.times import format_time
from reconciler.options import add_options, part, repeated
from reconciler.render.reply import render_reply, sections_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.model.history import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    """The NodePools whose disruption is resumed, all halted ones if none is named."""

    fleet: StateRequest = inputs.of_fleet(inputs.RECORDED)
    node_pools: tuple[str, ...] = repeated(
        "--node-pool", "NAME", "only this NodePool (repeatable; default: every halted NodePool)"
    )
    output: str = part(inputs.add_output)


add_arguments = partial(add_options, ResumeRequest)
request_of = partial(inputs.request_from, ResumeRequest)


def run(request: ResumeRequest) -> int:
    """Resume disruption, and print which NodePools were resumed."""
    from reconciler.engine.steps.rollouts import resume

    with records.open_recorded(request.fleet, needs_lease=False) as recorded:
        store = recorded.state.store
        halted = _halted_rollouts(store.rollouts(), request.node_pools)
        for rollout in halted:
            store.put_rollout(resume(rollout))
    pools = tuple(
        ResumedPool(
            node_pool=rollout.node_pool,
            halted_at=rollout.stopped_at,
            failures=rollout.failures,
            reason=rollout.stopped_why,
        )
        for rollout in halted
    )
    reply = ResumeReply(resumed=pools)
    text = "".join(map(_describe, pools)) or "No NodePool is halted.\n"
    title = f"Resumed NodePools of {recorded.fleet}"
    sys.stdout.write(
        render_reply(reply, sections_of(reply), request.output, title=title, text=text)
    )
    return exitcode.DONE


def _describe(pool: ResumedPool) -> str:
    assert pool.halted_at is not None
    return (
        f"Resumed disruption of NodePool {pool.node_pool}. It was halted at "
        f"{format_time(pool.halted_at)} after {pool.failures} failures; the "
        f"last one: {pool.reason}.\n"
    )


def _halted_rollouts(rollouts: Sequence[Rollout], names: Sequence[str]) -> list[Rollout]:
    """Return the halted rollouts of these NodePools, of all if none is named.

    Raises:
        UsageError: a named one is not halted.
    """
    stopped = [rollout for rollout in rollouts if rollout.stopped_at is not None]
    unknown = sorted(set(names) - {rollout.node_pool for rollout in stopped})
    if unknown:
        known = ", ".join(rollout.node_pool for rollout in stopped) or "none"
        raise UsageError(
            f"NodePool {unknown[0]} is not halted",
            where="--node-pool",
            remedy=f"halted NodePools: {known}",
        )
    return [rollout for rollout in stopped if not names or rollout.node_pool in names]
