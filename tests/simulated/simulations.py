"""Small fleets in files, and the simulated world that the command line builds from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from reconciler.assembly.inputs.request import FleetRequest
from reconciler.plan.make.decide import ignore_phase
from reconciler.simulate.building import (
    SimulatedFleet,
    SimulationSetup,
    build_simulation,
    read_simulated_fleet,
    read_simulation,
)
from reconciler.simulate.script import Script
from tests.cli.commandlines import request_of
from tests.engine.world import a_node_class, catalog_file
from tests.yamltext import dump_all

START = "2026-03-02T09:00:00Z"


def write_fleet(folder: Path, objects: Sequence[Mapping[str, Any]]) -> None:
    """Write a fleet with the default node class, and its catalog next to it."""
    fleet = folder / "fleet"
    fleet.mkdir(exist_ok=True)
    text = dump_all([a_node_class(), *objects])
    (fleet / "fleet.yaml").write_text(text, encoding="utf-8")
    (folder / "catalog.json").write_bytes(catalog_file())


def words(folder: Path, *more: str) -> list[str]:
    """Return the arguments of ``simulate`` for the fleet in a folder."""
    catalog = str(folder / "catalog.json")
    return [str(folder / "fleet"), "--catalog", catalog, "--now", START, *more]


@dataclass
class Parsed:
    """Builds worlds in a separate folder."""

    folder: Path

    def setting(
        self, objects: Sequence[Mapping[str, Any]], script: Mapping[str, Any], seed: int = 0
    ) -> SimulationSetup:
        """Return the world of a fleet under a script."""
        inputs = read_simulation(self._request(objects), ignore_phase)
        return build_simulation(inputs, msgspec.convert(script, Script), seed)

    def fleet(self, objects: Sequence[Mapping[str, Any]]) -> SimulatedFleet:
        """Return another revision of the fleet."""
        return read_simulated_fleet(self._request(objects), None, ignore_phase)

    def _request(self, objects: Sequence[Mapping[str, Any]]) -> FleetRequest:
        write_fleet(self.folder, objects)
        fleet: FleetRequest = request_of(["simulate", *words(self.folder)]).fleet
        return fleet


def in_a_folder() -> Iterator[Parsed]:
    """Yield a builder whose folder is removed afterwards."""
    with TemporaryDirectory() as name:
        yield Parsed(Path(name))
