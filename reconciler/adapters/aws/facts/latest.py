"""The latest AWS data about types and prices: refreshed when old, retained if complete.

There are three independent reads: instance types with their zones, the price list, and spot prices.
A read that failed, or returned much less than the previous one, replaces nothing. The previous data
remains valid, and its age and the reason are reported. A type or price is removed only after it was
missing in two responses. Responses are stored as files beside the state; losing them only costs a
few calls.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import msgspec

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.errors import translate_errors
from reconciler.adapters.aws.facts.prices import has_price_list, on_demand_prices, spot_prices
from reconciler.adapters.nofollow import open_file, refuse_link
from reconciler.catalog.aws.bundle import Bundle
from reconciler.catalog.aws.live import Zones, live_machines
from reconciler.catalog.aws.machine import MachineType
from reconciler.model.errors import CloudError, ReconcilerError, StateError
from reconciler.model.settings import Settings
from reconciler.ports.clock import Clock

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef, InstanceTypeInfoTypeDef


FOLDER: Final = "cache"
_LEVELS: Final = 2
"""How many folder levels a ``Folder`` created above its own: that of the fleet, and ``cache``."""

_TYPES_A_PAGE: Final = 100
_OFFERINGS_A_PAGE: Final = 1000

ATTEMPTS: Final = 3
RETRY_AFTER: Final = timedelta(minutes=10)
_FORMAT: Final = "1"


class Folder:
    """A folder of small files, each written atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> bytes | None:
        """Return what was last written under a name, None if it cannot be read."""
        try:
            self._refuse_links()
            with os.fdopen(open_file(self.path / name, os.O_RDONLY), "rb") as file:
                return file.read()
        except (OSError, StateError):
            return None

    def write(self, name: str, content: bytes) -> None:
        """Store content under a name; nothing is stored if the disk is full or read-only."""
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
        """Reject folders that are symbolic links: their content was not written by us."""
        for folder in (self.path, *list(self.path.parents)[:_LEVELS]):
            refuse_link(folder)


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content)


def cache_folder(settings: Settings, place: str) -> Folder:
    """Return the folder of a fleet's facts, below ``place``.

    Regions and endpoints have separate folders because their markets differ, and fleets because
    they may be in different accounts.
    """
    market = sha256(f"{settings.region} {settings.endpoint_url}".encode()).hexdigest()[:8]
    return Folder(Path(place) / FOLDER / settings.fleet / f"{settings.region}-{market}")


# Instance types in a region and their zones: all pages, or an error.


_FILTERS: Final[Sequence[FilterTypeDef]] = [
    {"Name": "supported-virtualization-type", "Values": ["hvm"]},
    {"Name": "processor-info.supported-architecture", "Values": ["x86_64", "arm64"]},
]


def describe_types(ec2: EC2Client) -> list[InstanceTypeInfoTypeDef]:
    """Return the types on which a node can run, as EC2 describes them.

    Raises:
        TransientCloudError, CloudError: a page failed, or all were empty.
    """
    call = "ec2:DescribeInstanceTypes"
    with translate_errors(call):
        pages = ec2.get_paginator("describe_instance_types").paginate(
            Filters=_FILTERS, PaginationConfig={"PageSize": _TYPES_A_PAGE}
        )
        bodies = [body for page in pages for body in page["InstanceTypes"]]
    if not bodies:
        raise CloudError("EC2 returned no instance types", where=call)
    return bodies


def describe_offerings(ec2: EC2Client) -> Zones:
    """Return the types that each zone offers.

    Raises:
        TransientCloudError, CloudError: a page failed, or all were empty.
    """
    call = "ec2:DescribeInstanceTypeOfferings"
    zones: dict[str, set[str]] = {}
    with translate_errors(call):
        pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone", PaginationConfig={"PageSize": _OFFERINGS_A_PAGE}
        )
        for page in pages:
            for row in page["InstanceTypeOfferings"]:
                zones.setdefault(row["Location"], set()).add(row["InstanceType"])
    if not zones:
        raise CloudError("EC2 returned no instance type offerings", where=call)
    return {zone: frozenset(names) for zone, names in sorted(zones.items())}


_T = TypeVar("_T")


class ResponseCache(Protocol):
    """Where responses are stored between processes."""

    def read(self, name: str) -> bytes | None:
        """Return what was last written under a name."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Store it atomically; a failure to do so is not a failure of the read."""
        ...


class Types(msgspec.Struct, frozen=True):
    """The machines of a region, and the names offered in each zone."""

    machines: tuple[MachineType, ...]
    zones: dict[str, frozenset[str]]


OnDemand = dict[str, float]
Spot = dict[str, dict[str, float]]


class LatestFact(msgspec.Struct, Generic[_T], frozen=True):
    """The known data, None if there never was any; ``problem`` is why it could not be refreshed."""

    value: _T | None
    at: datetime | None = None
    problem: str = ""


class _CachedFact(msgspec.Struct, Generic[_T], frozen=True):
    at: datetime
    value: _T


class AccountFacts:
    """The facts of one account and region.

    ``max_age`` is how old a response may be before it is refreshed.
    """

    def __init__(
        self,
        connect: Connect,
        settings: Settings,
        clock: Clock,
        cache: ResponseCache,
        *,
        max_age: timedelta,
        bundle: Bundle,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._clock = clock
        self._cache = cache
        self._max_age = max_age
        self._bundle = bundle
        self._failed: dict[str, tuple[datetime, str]] = {}

    def instance_types(self) -> LatestFact[Types]:
        """Return the instance types of the region and the zones that offer them."""

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

        return self._latest("types", _CachedFact[Types], _confirm_removals(read, names), size)

    def on_demand(self) -> LatestFact[OnDemand]:
        """Return the price list of the region."""
        region = self._settings.region
        if self._settings.isolated_vpc or not has_price_list(region):
            is_isolated = self._settings.isolated_vpc
            why = "isolatedVPC is set" if is_isolated else "the partition has no public price list"
            return LatestFact(None, problem=f"cannot read the price list of {region}: {why}")

        def read() -> OnDemand:
            return on_demand_prices(self._connect("pricing", ATTEMPTS), region)

        return self._latest(
            "on-demand", _CachedFact[OnDemand], _confirm_removals(read, frozenset), len
        )

    def spot(self) -> LatestFact[Spot]:
        """Return the spot prices of the region."""

        def read(_: Spot | None) -> Spot:
            return spot_prices(self._connect("ec2", ATTEMPTS), self._clock.now())

        def size(prices: Spot) -> int:
            return sum(map(len, prices.values()))

        return self._latest("spot", _CachedFact[Spot], read, size)

    def _latest(
        self,
        name: str,
        form: type[_CachedFact[_T]],
        read: Callable[[_T | None], _T],
        size: Callable[[_T], int],
    ) -> LatestFact[_T]:
        """Return stored data if it is recent enough, else fresh data, else the stored data.

        ``read`` is called with the stored data.
        """
        now = self._clock.now().replace(microsecond=0)
        cached = self._read_cached(name, form)
        if cached is not None and timedelta(0) <= now - cached.at < self._max_age:
            return LatestFact(cached.value, cached.at)
        failed = self._failed.get(name)
        if failed is None or now - failed[0] >= RETRY_AFTER:
            try:
                fresh = read(cached.value if cached is not None else None)
                if cached is not None:
                    _expect_no_large_loss(name, size(fresh), size(cached.value))
            except ReconcilerError as error:
                failed = self._failed[name] = (now, str(error))
            else:
                self._failed.pop(name, None)
                self._cache.write(self._file_name(name), _pack(_CachedFact(now, fresh)))
                return LatestFact(fresh, now)
        if cached is None:
            return LatestFact(None, problem=failed[1])
        return LatestFact(cached.value, cached.at, failed[1])

    def _read_cached(self, name: str, form: type[_CachedFact[_T]]) -> _CachedFact[_T] | None:
        """Return the stored data; an unreadable file counts as missing, so that AWS is asked."""
        content = self._cache.read(self._file_name(name))
        if content is None:
            return None
        try:
            return msgspec.msgpack.decode(zlib.decompress(content), type=form)
        except (zlib.error, msgspec.MsgspecError):
            return None

    def _file_name(self, name: str) -> str:
        return f"{name}.{_FORMAT}"


class _CacheTime(msgspec.Struct, frozen=True):
    at: datetime


def cache_times(cache: ResponseCache) -> dict[str, datetime]:
    """Return when each stored read was made, by its name."""
    found = {}
    for name in ("types", "on-demand", "spot"):
        content = cache.read(f"{name}.{_FORMAT}")
        if content is None:
            continue
        try:
            found[name] = msgspec.msgpack.decode(zlib.decompress(content), type=_CacheTime).at
        except (zlib.error, msgspec.MsgspecError):
            continue
    return found


def _pack(cached: _CachedFact[_T]) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(cached, order="deterministic"), 1)


def _confirm_removals(
    read: Callable[[], _T], names: Callable[[_T], frozenset[str]]
) -> Callable[[_T | None], _T]:
    """Return a read that repeats the call if something that existed before is missing.

    A type that EC2 no longer lists makes its nodes drift, so two responses have to agree.
    """

    def again(before: _T | None) -> _T:
        fresh = read()
        if before is None or not names(before) - names(fresh):
            return fresh
        second = read()
        if names(second) != names(fresh):
            raise CloudError(
                "two consecutive responses differ, so neither was used",
                remedy="it will be retried later",
            )
        return second

    return again


def _expect_no_large_loss(name: str, fresh: int, before: int) -> None:
    """Reject a response that has lost most of the earlier content: it was cut short.

    Raises:
        CloudError: less than half is left.
    """
    if fresh * 2 < before:
        raise CloudError(
            f"the response for {name} has {fresh} entries, but had {before} before; it is not used",
            remedy=(
                "it will be retried later; if the new response is correct, delete the cache in "
                "the state directory"
            ),
        )
