"""Chooses instance types and prices: from the lock, from AWS, or from the bundled data.

A lock is used wherever there is one. Without it, AWS is queried if the settings require it, or if
the command reads the account anyway. If AWS does not respond, bundled data is used, and the catalog
has a note or a warning about it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from reconciler.assembly.inputs.files import CATALOG_BYTES_MAX, read_bytes
from reconciler.catalog.aws.bundle import Bundle, Header
from reconciler.catalog.aws.live import live_bundle
from reconciler.catalog.aws.prices import OnDemandQuotes, Pricing, SpotQuotes
from reconciler.catalog.catalog import DEFAULT_FACTS, BundledCatalog, bundled_catalog, bundled_data
from reconciler.catalog.locked import locked_data, locked_pricing
from reconciler.model.karpenter.instancetype import PriceOrigin
from reconciler.model.settings import DataSource, Settings
from reconciler.model.text.times import format_time

if TYPE_CHECKING:
    from reconciler.adapters.aws.facts.latest import AccountFacts
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.catalog.catalog import Catalog
    from reconciler.desired.lock import Lock
    from reconciler.desired.settings.layers import Resolved
    from reconciler.model.karpenter.instancetype import InstanceType


class AwsQuery(NamedTuple):
    """How AWS is queried: ``facts`` connects; ``by_default`` applies without a setting."""

    facts: Callable[[], AccountFacts]
    by_default: bool


def read_types(
    request: FleetRequest, resolved: Resolved, lock: Lock | None, query: AwsQuery | None
) -> Catalog:
    """Return the catalog of ``--catalog``, else that of the region.

    ``query`` gets data from AWS, if the settings require it or the command reads the account.

    Raises:
        UnreadableError: the file of ``--catalog`` cannot be read.
    """
    if request.catalog is not None:
        from reconciler.catalog.file import read_catalog

        return read_catalog(read_bytes(request.catalog, CATALOG_BYTES_MAX), request.catalog)
    return catalog_of(resolved.settings, lock, query)


def catalog_of(
    settings: Settings, lock: Lock | None = None, query: AwsQuery | None = None
) -> Catalog:
    """Return the catalog of the region.

    Raises:
        UsageError: nothing is known of the region.
        UnreadableError: the lock holds facts that this release cannot read.
    """
    warnings: tuple[str, ...] = ()
    if lock is not None and lock.region != settings.region:
        ignored = f"reconciler.lock is for {lock.region} and is ignored in {settings.region}"
        warnings = (f"{ignored}; run `reconciler lock --update`",)
    elif lock is not None:
        return catalog_from_lock(settings, lock)
    return unlocked_catalog(settings, query, warnings)


def catalog_from_lock(settings: Settings, lock: Lock) -> BundledCatalog:
    """Return the catalog that the lock pins."""
    release = bundled_data()
    header, bundle = locked_data(lock, release)
    warnings = []
    if lock.catalog.bundle_digest != release[0].digest[:16]:
        warnings.append(
            f"reconciler.lock was written with catalog {lock.catalog.bundle}, but this release "
            f"has {release[0].version}; instance types that are not locked may differ; run "
            "`reconciler lock --update`"
        )
    return BundledCatalog(
        header,
        bundle,
        settings.region,
        DEFAULT_FACTS,
        pricing=locked_pricing(lock, settings.price_book),
        source=f"locked aws {header.version} {settings.region}",
        warnings=tuple(warnings),
    )


def unlocked_catalog(
    settings: Settings, query: AwsQuery | None = None, warnings: tuple[str, ...] = ()
) -> Catalog:
    """Return the catalog from AWS if AWS is queried, otherwise the bundled one."""
    reader = _FactReader(settings, query)
    reader.warnings += warnings
    header, bundle = reader.data()
    pricing = reader.pricing()
    plain = bundled_catalog(settings.region) if not reader.source else None
    if plain is not None and not pricing and not reader.warnings and not reader.notes:
        return plain
    return BundledCatalog(
        header,
        bundle,
        settings.region,
        DEFAULT_FACTS,
        pricing=pricing or None,
        source=reader.source,
        notes=tuple(reader.notes),
        warnings=tuple(reader.warnings),
    )


class _FactReader:
    """Chooses and reads the facts, and records their source, notes and warnings."""

    def __init__(self, settings: Settings, query: AwsQuery | None) -> None:
        self._settings = settings
        self._query = query
        self.source = ""
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def _facts(self, source: DataSource) -> AccountFacts | None:
        """Return the facts of the account, None to use the bundled data."""
        if self._query is None:
            return None
        by_default = source == DataSource.AUTO and self._query.by_default
        is_live = source == DataSource.LIVE or by_default
        return self._query.facts() if is_live else None

    def data(self) -> tuple[Header, Bundle]:
        """Return the instance types of the region."""
        release = bundled_data()
        facts = self._facts(self._settings.instance_types_from)
        if facts is None:
            return release
        known = facts.instance_types()
        if known.value is None or known.at is None:
            self._note_fallback("using the bundled instance types", known.problem)
            return release
        self._warn_if_stale("instance types", known.at, known.problem)
        region = self._settings.region
        self.source = f"live aws {region}, read {format_time(known.at)}"
        return live_bundle(region, known.value.machines, known.value.zones, known.at, release)

    def pricing(self) -> Pricing:
        """Return the prices of the region under the user's book."""
        on_demand, spot = None, None
        facts = self._facts(self._settings.prices_from)
        if facts is not None:
            listed = facts.on_demand()
            if listed.value is not None and listed.at is not None:
                self._warn_if_stale("on-demand prices", listed.at, listed.problem)
                self.notes.append(
                    f"on-demand prices: AWS price list, read {format_time(listed.at)}"
                )
                on_demand = OnDemandQuotes(listed.value, PriceOrigin("live", listed.at))
            else:
                self._note_fallback("using the bundled on-demand prices", listed.problem)
            quoted = facts.spot()
            if quoted.value is not None and quoted.at is not None:
                self._warn_if_stale("spot prices", quoted.at, quoted.problem)
                self.notes.append(
                    f"spot prices: EC2 spot price history, read {format_time(quoted.at)}"
                )
                spot = SpotQuotes(quoted.value, PriceOrigin("spot-history", quoted.at))
            else:
                self._note_fallback("spot prices are estimated", quoted.problem)
        return Pricing(on_demand, spot, self._settings.price_book)

    def _warn_if_stale(self, what: str, at: datetime, problem: str) -> None:
        if problem:
            self.warnings.append(f"{what} are from {format_time(at)}; the update failed: {problem}")

    def _note_fallback(self, what: str, problem: str) -> None:
        message = f"{what}: {problem}"
        if self._settings.isolated_vpc and "isolatedVPC" in problem:
            self.notes.append(message)
        else:
            self.warnings.append(message)


def max_age(settings: Settings) -> timedelta:
    """Return the maximum age of cached AWS responses."""
    return settings.refresh_interval


class CurrentCatalog:
    """The catalog that a process plans and launches with; every read may bring a newer one."""

    def __init__(
        self, request: FleetRequest, query: AwsQuery, resolved: Resolved, lock: Lock | None
    ) -> None:
        self._request = request
        self._query = query
        self.current: Catalog = self._read_catalog(resolved, lock)

    def read(self, resolved: Resolved, lock: Lock | None) -> Catalog:
        """Return the current catalog, the same value until something changes."""
        fresh, known = self._read_catalog(resolved, lock), self.current
        if (fresh.digest, fresh.source, fresh.notes) != (known.digest, known.source, known.notes):
            self.current = fresh
        return self.current

    def get(self, name: str) -> InstanceType | None:
        """Return the instance type with that name, None if there is none."""
        return self.current.get(name)

    def _read_catalog(self, resolved: Resolved, lock: Lock | None) -> Catalog:
        return read_types(self._request, resolved, lock, self._query)
