"""The plays of a backtest: each replays the trace against one side with one seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final, NamedTuple

from reconciler.cli.backtest.replay import Replay
from reconciler.cli.backtest.sides import PlayedSide, karpenter_defaults, play_side
from reconciler.cli.backtest.trace import Trace
from reconciler.cli.simulation.building import Setting, SimulatedFleet, SimulationInputs, built
from reconciler.cli.simulation.script import Script
from reconciler.cli.sweeps.evaluation import address_of
from reconciler.plan.value.backtest import BASE, HEAD, KARPENTER


class Play(NamedTuple):
    """Which side, and its random seed."""

    side: str
    seed: int


@dataclass(frozen=True)
class Replays:
    """What all plays share: the fleets, and the trace to the ``end`` of the period.

    They are evaluated by their plays (``sweeps.evaluation.Evaluations``).
    """

    inputs: SimulationInputs
    script: Script
    trace: Trace
    end: datetime

    @property
    def result(self) -> type[PlayedSide]:
        """The type of the results."""
        return PlayedSide

    def evaluate(self, key: Play) -> PlayedSide:
        """Replay the trace against a side.

        Raises:
            EndlessError: it takes too many passes.
        """

        def build(replay: Replay) -> Setting:
            return built(self.inputs, self.script, key.seed, replay, replay.market)

        return play_side(build, _SIDES[key.side], self.trace, self.inputs.start, self.end)

    def address(self, key: Play) -> str:
        """Return the address of the result of a play."""
        return address_of("play", key, self._facts)

    @cached_property
    def _facts(self) -> tuple[object, ...]:
        return (self.inputs.address, self.script, self.trace.digest, self.end)


def _head(setting: Setting) -> SimulatedFleet:
    return setting.head


def _base(setting: Setting) -> SimulatedFleet:
    assert setting.base is not None, "there is a base where one is asked for"
    return setting.base


def _karpenter(setting: Setting) -> SimulatedFleet:
    return karpenter_defaults(setting.head)


_SIDES: Final[Mapping[str, Callable[[Setting], SimulatedFleet]]] = {
    HEAD: _head,
    BASE: _base,
    KARPENTER: _karpenter,
}
