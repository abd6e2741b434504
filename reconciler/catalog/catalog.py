"""A catalog: the instance types of one region, or those listed in a file.

Types are created on access and cached. A catalog is a value: a node class or NodeOverlays produce a
new one, and ``digest`` identifies its content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Final, overload

from reconciler.catalog.aws import bundle as bundled_file
from reconciler.catalog.aws.bundle import Bundle, Header, Region
from reconciler.catalog.aws.prices import Pricer, Pricing
from reconciler.catalog.aws.rows import AwsRows
from reconciler.catalog.classfacts import ClassFacts
from reconciler.catalog.columns import Columns, Rows
from reconciler.catalog.regions import REGIONS, YUAN_FOR_A_DOLLAR, has_yuan_prices
from reconciler.model.errors import UsageError
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.instancetype import InstanceType, PriceOrigin
from reconciler.model.karpenter.labels import WELL_KNOWN_AWS
from reconciler.model.text.counting import format_count
from reconciler.model.text.nearest import did_you_mean
from reconciler.model.text.quoting import quote_value

DEFAULT_FACTS: Final = ClassFacts()

RESOLVED_MAX: Final = 16
"""Maximum number of node class facts for which types are cached: up to 7 MB each, 30 ms to build.

Facts change while a daemon runs, with each capacity reservation and each node whose memory is
measured. Without a limit the cache would retain every state that ever existed.
"""


class LazyTypes(Sequence[InstanceType]):
    """The types of a catalog in order, each created on first use."""

    __slots__ = ("_made", "_rows")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._made: list[InstanceType | None] = [None] * len(rows.names)

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> InstanceType: ...
    @overload
    def __getitem__(self, index: slice) -> list[InstanceType]: ...
    def __getitem__(self, index: int | slice) -> InstanceType | list[InstanceType]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self._made)))]
        made = self._made[index]
        if made is None:
            made = self._made[index] = self._rows.instance_type(index % len(self._made))
        return made

    def __iter__(self) -> Iterator[InstanceType]:
        return (self[index] for index in range(len(self._made)))


class Catalog:
    """Instance types in a fixed order: by name if bundled, as written if from a file.

    ``version`` and ``source`` are for people; ``digest`` is the SHA-256 of the data from which the
    types are computed. ``well_known`` are the label keys that a pod may use without a NodePool
    defining them. ``notes`` list what is estimated or missing, ``warnings`` what should be
    corrected. ``price_overlaid`` and ``capacity_overlaid`` name the types that NodeOverlays
    changed.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        version: str,
        digest: str,
        source: str,
        region: str = "",
        well_known: frozenset[str] = WELL_KNOWN_AWS,
        spot_is_estimated: bool = False,
        notes: tuple[str, ...] = (),
        warnings: tuple[str, ...] = (),
        price_overlaid: frozenset[str] = frozenset(),
        capacity_overlaid: frozenset[str] = frozenset(),
    ) -> None:
        self.rows: Final = rows
        self.types: Final[Sequence[InstanceType]] = LazyTypes(rows)
        self.names: Final = rows.names
        self.version: Final = version
        self.digest: Final = digest
        self.source: Final = source
        self.region: Final = region
        self.well_known: Final = well_known
        self.spot_is_estimated: Final = spot_is_estimated
        self.notes: Final = notes
        self.warnings: Final = warnings
        self.price_overlaid: Final = price_overlaid
        self.capacity_overlaid: Final = capacity_overlaid

    def traits(self) -> JsonDict:
        """Return the fields that a derived catalog inherits: all but its rows and digest."""
        return {
            "version": self.version,
            "source": self.source,
            "region": self.region,
            "well_known": self.well_known,
            "spot_is_estimated": self.spot_is_estimated,
            "notes": self.notes,
            "warnings": self.warnings,
            "price_overlaid": self.price_overlaid,
            "capacity_overlaid": self.capacity_overlaid,
        }

    @cached_property
    def columns(self) -> Columns:
        """The types by column, for operations on all of them."""
        return self.rows.columns()

    @cached_property
    def _index(self) -> dict[str, int]:
        index: dict[str, int] = {}
        for position, name in enumerate(self.names):
            index.setdefault(name, position)
        return index

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def get(self, name: str) -> InstanceType | None:
        """Return the type with that name (the first if a file repeats it), or None."""
        index = self._index.get(name)
        return None if index is None else self.types[index]

    @property
    def listed(self) -> Catalog:
        """The catalog at the prices before overlays and commitments."""
        return self

    def for_node_class(self, facts: ClassFacts) -> Catalog:
        """Return the types resolved for a node class.

        A file lists types that are already resolved, so the result is the same catalog.
        """
        del facts
        return self

    def launch_rejection(self, name: str) -> str | None:
        """Return why a type can never be launched, or None."""
        del name
        return None


class BundledCatalog(Catalog):
    """A region of the bundled data, or of data in that format, resolved for a node class.

    ``pricing`` overrides the bundle's prices and ``source`` names the origin of the data. ``notes``
    are added to those about prices; ``warnings`` list substitutions.
    """

    def __init__(
        self,
        header: Header,
        bundle: Bundle,
        region: str,
        facts: ClassFacts,
        *,
        pricing: Pricing | None = None,
        source: str = "",
        notes: tuple[str, ...] = (),
        warnings: tuple[str, ...] = (),
    ) -> None:
        pricing = pricing or None
        self._origin = origin = PriceOrigin(
            "bundled", _publication_time(header, bundle.regions[region])
        )
        pricer = None
        key = f"{header.digest} {region} {facts}"
        if pricing is not None:
            pricer = Pricer(region, pricing)
            key += f" {pricing.digest}"
        rows = AwsRows(bundle, region, facts, origin, pricer)
        super().__init__(
            rows,
            version=header.version,
            digest=sha256(key.encode()).hexdigest(),
            source=source or f"bundled aws {header.version} {region}",
            region=region,
            spot_is_estimated=pricing is None or pricing.spot is None,
            notes=(*notes, *_notes(rows, bundle, region, pricing)),
            warnings=warnings,
        )
        self._header, self._bundle, self._rows = header, bundle, rows
        self.pricing: Final = pricing
        self._descriptions = (source, notes, warnings)
        self._facts = facts
        self._resolve: Callable[[ClassFacts], BundledCatalog] = lru_cache(RESOLVED_MAX)(
            self._resolved_for
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the catalog: what it is built from, without the bundled data."""
        source, notes, warnings = self._descriptions
        data = None if self._bundle is _load()[1] else self.data
        described = {"source": source, "notes": notes, "warnings": warnings}
        return _restore, (data, self.region, self._facts, self.pricing, described)

    @property
    def data(self) -> tuple[Header, Bundle]:
        """The data from which the types are computed."""
        return self._header, self._bundle

    @property
    def price_origin(self) -> PriceOrigin:
        """The source of the data's on-demand prices."""
        home = self._bundle.regions[self.region]
        return self._origin if home.prices else PriceOrigin("estimate")

    def for_node_class(self, facts: ClassFacts) -> Catalog:
        """Return the types resolved for a node class, cached for facts in use."""
        return self if facts == self._facts else self._resolve(facts)

    def _resolved_for(self, facts: ClassFacts) -> BundledCatalog:
        if facts == self._facts:
            return self
        source, notes, warnings = self._descriptions
        made = BundledCatalog(
            self._header,
            self._bundle,
            self.region,
            facts,
            pricing=self.pricing,
            source=source,
            notes=notes,
            warnings=warnings,
        )
        made._resolve = self._resolve
        return made

    def launch_rejection(self, name: str) -> str | None:
        """Return why a type can never be launched, or None."""
        return self._refusals.get(name)

    @cached_property
    def _refusals(self) -> dict[str, str]:
        return self._rows.refusals


def _restore(
    data: tuple[Header, Bundle] | None,
    region: str,
    facts: ClassFacts,
    pricing: Pricing | None,
    described: JsonDict,
) -> BundledCatalog:
    return BundledCatalog(*(data or _load()), region, facts, pricing=pricing, **described)


def _publication_time(header: Header, region: Region) -> datetime | None:
    """Return the publication time of the on-demand price list of a region."""
    text = region.priced_at or header.priced_at or header.version
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


def _notes(rows: AwsRows, bundle: Bundle, region: str, pricing: Pricing | None) -> tuple[str, ...]:
    quotes_spot = pricing is not None and pricing.spot is not None
    quotes_on_demand = pricing is not None and pricing.on_demand is not None
    home = bundle.regions[region]
    notes = [] if quotes_spot else ["spot prices are estimates"]
    notes += _region_notes(region, home, quotes_on_demand=quotes_on_demand)
    if rows.estimated and not home.like and not quotes_on_demand:
        what = format_count(rows.estimated, "instance type", "instance types")
        notes.append(f"on-demand prices of {what} are estimates from {bundle.price_region}")
    if rows.unpriced:
        what = format_count(rows.unpriced, "instance type", "instance types")
        verb = "is" if rows.unpriced == 1 else "are"
        notes.append(f"{what} without a known price {verb} excluded")
    return tuple(notes)


def _region_notes(name: str, region: Region, *, quotes_on_demand: bool) -> Iterator[str]:
    """Yield what is assumed about a region."""
    if region.like and not quotes_on_demand:
        yield (
            f"no list of {name} is bundled: the instance types and prices of {region.like} are "
            "assumed (plan with access to its account, --set aws.instanceTypes=live and "
            "--set aws.prices=live)"
        )
    if has_yuan_prices(name):
        yield f"prices of {name} are converted at {YUAN_FOR_A_DOLLAR} yuan for a dollar"
    if region.assumes_zones:
        yield (
            f"which zones of {name} offer a type is not known: every zone is assumed (plan with "
            "access to its account and --set aws.instanceTypes=live)"
        )
    if region.priced_at and not quotes_on_demand:
        yield f"on-demand prices of {name} are those of {region.priced_at}"


@lru_cache(maxsize=1)
def _load() -> tuple[Header, Bundle]:
    return bundled_file.load()


def bundled_data() -> tuple[Header, Bundle]:
    """Return the bundled data of this release.

    Raises:
        UnreadableError: the file is damaged.
    """
    return _load()


@lru_cache(maxsize=8)
def bundled_catalog(region: str = "us-east-1", facts: ClassFacts = DEFAULT_FACTS) -> Catalog:
    """Return the bundled AWS catalog of a region, for a node class with default settings.

    Raises:
        UsageError: the bundled data does not contain the region.
        UnreadableError: the bundled file is damaged.
    """
    header, bundle = _load()
    if region not in bundle.regions:
        raise UsageError(
            f"the bundled catalog does not know the region {quote_value(region)}",
            where="aws.region",
            remedy=_region_remedy(region, sorted(bundle.regions)),
        )
    return BundledCatalog(header, bundle, region, facts)


def _region_remedy(region: str, bundled: Sequence[str]) -> str:
    """Return how to plan in a region that is not bundled."""
    live = (
        "plan with access to its account and --set aws.instanceTypes=live --set aws.prices=live, "
        "or give --catalog FILE"
    )
    if region in REGIONS:
        return live
    return did_you_mean(region, bundled, f"use one of {', '.join(bundled)}; or {live}", cutoff=0.85)
