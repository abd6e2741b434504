"""What ``reconciler check`` looks with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconciler.cli.wiring.account import compute_of, connections
from reconciler.cli.wiring.ground import ground_of
from reconciler.cli.wiring.imitation import Imitation

if TYPE_CHECKING:
    import argparse

    from reconciler.adapters.aws.checks import Checks
    from reconciler.adapters.aws.validation import Validation
    from reconciler.cli.catalogs import CatalogInForce
    from reconciler.model.nodeclass import EC2NodeClass
    from reconciler.model.settings import Settings
    from reconciler.ports import Compute


@dataclass(frozen=True)
class CheckBench:
    """What ``reconciler check`` looks with: a fleet's classes, and AWS as it is found there."""

    settings: Settings
    classes: Sequence[EC2NodeClass]
    checks: Checks
    validation: Validation
    compute: Compute
    catalog: CatalogInForce

    def cpus_of(self, instance_type: str) -> float:
        """Return the vCPUs of an instance type, 0 where the catalogue does not know it."""
        kind = self.catalog.get(instance_type)
        return 0.0 if kind is None else kind.capacity.get("cpu", 0) / 1000


def check_bench(args: argparse.Namespace, imitation: Imitation | None = None) -> CheckBench:
    """Return what the checks of a fleet need; nothing of it writes."""
    from reconciler.adapters.aws.checks import Checks
    from reconciler.adapters.aws.images import types_of
    from reconciler.adapters.aws.validation import Validation
    from reconciler.cli import inputs
    from reconciler.desired.objects import node_classes

    ground = ground_of(args, imitation)
    settings, catalog, imitation = ground.settings, ground.catalog, ground.imitation
    clock = imitation.clock
    connect = imitation.connect or connections().of(settings)
    fleet, _ = inputs.read_desired(inputs.read_source(args), any_class=False)
    return CheckBench(
        settings,
        node_classes(fleet),
        Checks(connect, settings, clock),
        Validation(connect("ec2", 1), settings, types_of(catalog.current, settings), clock),
        compute_of(settings, catalog, imitation),
        catalog,
    )
