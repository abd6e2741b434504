"""``reconciler resume``: let disruption go on that stopped by itself after failures.

It writes one record beside whatever engine runs, whose next pass goes on from there. What somebody
suspended in ``reconciler.yaml`` is taken out of that file instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reconciler.cli.shared import exitcode, records

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from reconciler.model.history import Rollout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which NodePools go on."""
    records.add_path(parser)
    parser.add_argument(
        "--node-pool",
        action="append",
        default=[],
        metavar="NAME",
        help="only this NodePool (default: every halted NodePool)",
    )
    records.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Resume, and say what goes on."""
    from reconciler.engine.steps.rollouts import resumed

    with records.recorded(args, needs_lease=False) as recorded:
        store = recorded.state.store
        meant = _meant(store.rollouts(), args.node_pool)
        for rollout in meant:
            store.put_rollout(resumed(rollout))
    for rollout in meant:
        print(
            f"Resumed disruption of NodePool {rollout.node_pool}. It was halted at "
            f"{rollout.stopped_at:%Y-%m-%d %H:%M} UTC after {rollout.failures} failures; the "
            f"last one: {rollout.stopped_why}."
        )
    if not meant:
        print("No NodePool is halted.")
    return exitcode.DONE


def _meant(rollouts: Sequence[Rollout], names: Sequence[str]) -> list[Rollout]:
    """Return the stopped rollouts of these NodePools, of all where none is named.

    Raises:
        UsageError: one that is named is not stopped.
    """
    stopped = [rollout for rollout in rollouts if rollout.stopped_at is not None]
    unknown = sorted(set(names) - {rollout.node_pool for rollout in stopped})
    if unknown:
        from reconciler.model.errors import UsageError

        known = ", ".join(rollout.node_pool for rollout in stopped) or "none"
        raise UsageError(
            f"NodePool {unknown[0]} is not halted",
            where="--node-pool",
            remedy=f"halted NodePools: {known}",
        )
    return [rollout for rollout in stopped if not names or rollout.node_pool in names]
