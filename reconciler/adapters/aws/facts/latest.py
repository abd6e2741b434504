"""What AWS last said about types and prices: renewed when it is old, kept where it was complete.

Three reads stand for themselves: instance types with their zones, the price list, spot prices. A
read that failed, or came back much smaller than the one before, replaces nothing: what was known
before holds, and its age and the reason are told. A type or price that is gone has to be missing
in two answers. Between processes the answers are kept as files.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.errors import translated
from reconciler.adapters.aws.facts.prices import has_price_list, on_demand_prices, spot_prices
from reconciler.adapters.nofollow import open_file, refuse_link
from reconciler.catalog.aws.bundle import Bundle
from reconciler.catalog.aws.live import Zones, live_machines
from reconciler.catalog.aws.machine import MachineType
from reconciler.model.errors import CloudError, ReconcilerError, StateError
from reconciler.model.settings import Settings
from reconciler.ports.clock import Clock

# Files that keep what AWS said, beside the state: losing them costs a few calls, nothing else.


FOLDER: Final = "cache"
_LEVELS: Final = 2
"""How many folders above its own a ``Folder`` has made: that of the fleet, and ``cache``."""


class Folder:
    """A folder of small files, each written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> bytes | None:
        """Return what was last written under a name, None where nothing can be read."""
        try:
            self._refuse_links()
            with os.fdopen(open_file(self.path / name, os.O_RDONLY), "rb") as file:
                return file.read()
        except (OSError, StateError):
            return None

    def write(self, name: str, content: bytes) -> None:
        """Keep content under a name; a disk that is full or read-only keeps nothing."""
        draft = self.path / f"{name}.{os.getpid()}.tmp"
        try:
            self._refuse_links()
            self.path.mkdir(parents=True, exist_ok=True)
            _write(self.path / ".gitignore", b"*\n")
            _write(draft, content)
            draft.replace(self.path / name)
        except (OSError, StateError):
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    def _refuse_links(self) -> None:
        """Refuse folders that are links: what they lead to was not written by us."""
        for folder in (self.path, *list(self.path.parents)[:_LEVELS]):
            refuse_link(folder)


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content)


def folder_of(settings: Settings, place: str) -> Folder:
    """Return where the facts of a fleet are kept, below ``place``.

    Another region or endpoint is another market, and two fleets may be in two accounts.
    """
    market = sha256(f"{settings.region} {settings.endpoint_url}".encode()).hexdigest()[:8]
    return Folder(Path(place) / FOLDER / settings.fleet / f"{settings.region}-{market}")


# Which instance types EC2 has in a region, and in which zones: all pages, or an error.


_TYPES_A_PAGE: Final = 100
_OFFERINGS_A_PAGE: Final = 1000
_FILTERS: Final = [
    {"Name": "supported-virtualization-type", "Values": ["hvm"]},
    {"Name": "processor-info.supported-architecture", "Values": ["x86_64", "arm64"]},
]


def describe_types(ec2: Any) -> list[dict[str, Any]]:
    """Return the types on which a node can run, as EC2 describes them.

    Raises:
        TransientCloudError, CloudError: a page failed, or there was nothing on any.
    """
    call = "ec2:DescribeInstanceTypes"
    with translated(call):
        pages = ec2.get_paginator("describe_instance_types").paginate(
            Filters=_FILTERS, PaginationConfig={"PageSize": _TYPES_A_PAGE}
        )
        bodies = [body for page in pages for body in page["InstanceTypes"]]
    if not bodies:
        raise CloudError("EC2 returned no instance types", where=call)
    return bodies


def describe_offerings(ec2: Any) -> Zones:
    """Return the types that each zone offers.

    Raises:
        TransientCloudError, CloudError: a page failed, or there was nothing on any.
    """
    call = "ec2:DescribeInstanceTypeOfferings"
    zones: dict[str, set[str]] = {}
    with translated(call):
        pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone", PaginationConfig={"PageSize": _OFFERINGS_A_PAGE}
        )
        for page in pages:
            for row in page["InstanceTypeOfferings"]:
                zones.setdefault(row["Location"], set()).add(row["InstanceType"])
    if not zones:
        raise CloudError("EC2 returned no instance type offerings", where=call)
    return {zone: frozenset(names) for zone, names in sorted(zones.items())}


ATTEMPTS: Final = 3
RETRY_AFTER: Final = timedelta(minutes=10)
_FORMAT: Final = "1"
_T = TypeVar("_T")


class Keep(Protocol):
    """Where answers are kept between processes."""

    def read(self, name: str) -> bytes | None:
        """Return what was last written under a name."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Keep it, whole or not at all; a failure to do so is no failure of the read."""
        ...


class Types(msgspec.Struct, frozen=True):
    """The machines of a region, and those that each zone offers by name."""

    machines: tuple[MachineType, ...]
    zones: dict[str, frozenset[str]]


OnDemand = dict[str, float]
Spot = dict[str, dict[str, float]]


class Known(msgspec.Struct, Generic[_T], frozen=True):
    """What is known, None where nothing ever was; ``problem`` is why it could not be renewed."""

    value: _T | None
    at: datetime | None = None
    problem: str = ""


class _Kept(msgspec.Struct, Generic[_T], frozen=True):
    at: datetime
    value: _T


class AccountFacts:
    """The facts of one account and region.

    ``max_age`` is how old an answer may be and still go unasked.
    """

    def __init__(
        self,
        connect: Connect,
        settings: Settings,
        clock: Clock,
        keep: Keep,
        *,
        max_age: timedelta,
        bundle: Bundle,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._clock = clock
        self._keep = keep
        self._max_age = max_age
        self._bundle = bundle
        self._failed: dict[str, tuple[datetime, str]] = {}

    def instance_types(self) -> Known[Types]:
        """Return the instance types of the region and where they are offered."""

        def read() -> Types:
            ec2 = self._connect("ec2", ATTEMPTS)
            machines = live_machines(describe_types(ec2), self._bundle)
            zones = {zone: frozenset(names) for zone, names in describe_offerings(ec2).items()}
            return Types(machines, zones)

        def names(types: Types) -> frozenset[str]:
            offered = (f"{zone}/{n}" for zone, known in types.zones.items() for n in known)
            return frozenset((*(machine.name for machine in types.machines), *offered))

        def size(types: Types) -> int:
            return len(types.machines)

        return self._known("types", _Kept[Types], _read_twice(read, names), size)

    def on_demand(self) -> Known[OnDemand]:
        """Return the price list of the region."""
        region = self._settings.region
        if self._settings.isolated_vpc or not has_price_list(region):
            is_isolated = self._settings.isolated_vpc
            why = "isolatedVPC is set" if is_isolated else "the partition has no public price list"
            return Known(None, problem=f"cannot read the price list of {region}: {why}")

        def read() -> OnDemand:
            return on_demand_prices(self._connect("pricing", ATTEMPTS), region)

        return self._known("on-demand", _Kept[OnDemand], _read_twice(read, frozenset), len)

    def spot(self) -> Known[Spot]:
        """Return what spot capacity costs in the region."""

        def read(_: Spot | None) -> Spot:
            return spot_prices(self._connect("ec2", ATTEMPTS), self._clock.now())

        def size(prices: Spot) -> int:
            return sum(map(len, prices.values()))

        return self._known("spot", _Kept[Spot], read, size)

    def _known(
        self, name: str, form: Any, read: Callable[[_T | None], _T], size: Callable[[_T], int]
    ) -> Known[_T]:
        """Return what is kept if it is young enough, else what AWS says now, else what is kept.

        ``read`` is told what is kept.
        """
        now = self._clock.now().replace(microsecond=0)
        kept: _Kept[_T] | None = self._kept(name, form)
        if kept is not None and timedelta(0) <= now - kept.at < self._max_age:
            return Known(kept.value, kept.at)
        failed = self._failed.get(name)
        if failed is None or now - failed[0] >= RETRY_AFTER:
            try:
                fresh = read(kept.value if kept is not None else None)
                if kept is not None:
                    _check(name, size(fresh), size(kept.value))
            except ReconcilerError as error:
                failed = self._failed[name] = (now, str(error))
            else:
                self._failed.pop(name, None)
                self._keep.write(self._file(name), _packed(_Kept(now, fresh)))
                return Known(fresh, now)
        if kept is None:
            return Known(None, problem=failed[1])
        return Known(kept.value, kept.at, failed[1])

    def _kept(self, name: str, form: Any) -> Any:
        """Return what was kept; a file that cannot be read is as none, since AWS can be asked."""
        content = self._keep.read(self._file(name))
        if content is None:
            return None
        try:
            return msgspec.msgpack.decode(zlib.decompress(content), type=form)
        except (zlib.error, msgspec.MsgspecError):
            return None

    def _file(self, name: str) -> str:
        return f"{name}.{_FORMAT}"


class _Dated(msgspec.Struct, frozen=True):
    at: datetime


def kept_at(keep: Keep) -> dict[str, datetime]:
    """Return when each read that is kept was made, by its name."""
    found = {}
    for name in ("types", "on-demand", "spot"):
        content = keep.read(f"{name}.{_FORMAT}")
        if content is None:
            continue
        try:
            found[name] = msgspec.msgpack.decode(zlib.decompress(content), type=_Dated).at
        except (zlib.error, msgspec.MsgspecError):
            continue
    return found


def _packed(kept: _Kept[Any]) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(kept, order="deterministic"), 1)


def _read_twice(
    read: Callable[[], _T], names: Callable[[_T], frozenset[str]]
) -> Callable[[_T | None], _T]:
    """Return a read that asks again where something is missing that was there before.

    A type that EC2 does not list any more makes its nodes drift: two answers have to say so.
    """

    def again(before: _T | None) -> _T:
        fresh = read()
        if before is None or not names(before) - names(fresh):
            return fresh
        second = read()
        if names(second) != names(fresh):
            raise CloudError(
                "two consecutive answers differ, so neither was used",
                remedy="it will be retried later",
            )
        return second

    return again


def _check(name: str, fresh: int, before: int) -> None:
    """Refuse an answer that has lost most of what was there: it was cut short.

    Raises:
        CloudError: less than half is left.
    """
    if fresh * 2 < before:
        raise CloudError(
            f"the answer for {name} has {fresh} entries, but had {before} before; it was not used",
            remedy=(
                "it will be retried later; if the new answer is right, delete the cache in "
                "the state directory"
            ),
        )
