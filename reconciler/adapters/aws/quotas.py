"""How many vCPUs an account may run, by the classes of instances that EC2 counts together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from reconciler.model.labels import SPOT


class Quota(NamedTuple):
    """A class of instances: how its families are named, and its quotas' codes."""

    name: str
    on_demand: str
    spot: str

    def code(self, capacity_type: str) -> str:
        """Return the code of Service Quotas; reserved capacity counts as on-demand."""
        return self.spot if capacity_type == SPOT else self.on_demand


STANDARD: Final = Quota("Standard (A, C, D, H, I, M, R, T, Z)", "L-1216C47A", "L-34B43A08")
_BY_PREFIX: Final[Mapping[str, Quota]] = {
    "dl": Quota("DL", "L-6E869C2A", "L-85EED4F7"),
    "f": Quota("F", "L-74FC7D96", "L-88CF9481"),
    "g": Quota("G and VT", "L-DB2E81BA", "L-3819A6DF"),
    "vt": Quota("G and VT", "L-DB2E81BA", "L-3819A6DF"),
    "hpc": Quota("HPC", "L-F7808C92", "L-F7808C92"),
    "inf": Quota("Inf", "L-1945791B", "L-B5D1601B"),
    "p": Quota("P", "L-417A185B", "L-7212CCBC"),
    "trn": Quota("Trn", "L-2C3B7624", "L-6B0D517C"),
    "u": Quota("High Memory", "L-43DA4232", "L-43DA4232"),
    "x": Quota("X", "L-7295265B", "L-E3A00192"),
}
_SERVICE: Final = "ec2"


def quota_of(instance_type: str) -> Quota:
    """Return the class that an instance type counts towards; most are Standard."""
    letters = re.match(r"[a-z]+", instance_type)
    return _BY_PREFIX.get(letters.group() if letters else "", STANDARD)


def limit_of(quotas: Any, code: str) -> float:
    """Return how many vCPUs the account may run; ``quotas`` is a client of Service Quotas."""
    answer = quotas.get_service_quota(ServiceCode=_SERVICE, QuotaCode=code)
    value: float = answer["Quota"]["Value"]
    return value
