"""``reconciler lock``: pin the current images and prices of AWS, so that plans are repeatable.

Without ``--update``, entries that still match are kept, and only missing ones are looked up. With
it, everything is looked up again. The file is replaced atomically, and only if something other
than a time changes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from reconciler import exitcode
from reconciler.adapters.writing import write_file
from reconciler.assembly.inputs.timings import current_time
from reconciler.cli.output.progressline import show_progress
from reconciler.cli.parser import inputs
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.errors import CloudError, InvalidFleetError
from reconciler.model.settings import DataSource
from reconciler.model.text.counting import format_count
from reconciler.options import add_options, part, switch
from reconciler.source.resource import LOCK_FILE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.catalog.catalog import Catalog
    from reconciler.desired.fleet import Fleet, SourceFile
    from reconciler.desired.lock import FactSource, Lock, LockedClass, LockedType
    from reconciler.desired.settings.layers import Resolved
    from reconciler.model.karpenter.nodeclass import EC2NodeClass
    from reconciler.model.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    """The fleet to lock; ``is_check`` writes nothing, ``is_update`` looks up everything again."""

    fleet: FleetRequest = inputs.of_fleet(inputs.RECORDED)
    is_update: bool = switch("--update", "look up every image and price again")
    is_check: bool = switch(
        "--check", "write nothing; exit with 3 if the lock does not match the folder"
    )
    output: str = part(inputs.add_output)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the fleet to lock, and the sources."""
    add_options(LockRequest, parser, then={"is_check": _add_snapshot})


def _add_snapshot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--snapshot",
        metavar="FILE",
        help="read what EC2NodeClasses resolved to from the cluster's objects (- for stdin)",
    )


request_of = partial(inputs.request_from, LockRequest)


def run(request: LockRequest) -> int:
    """Write the lock, or check it; 3 if ``--check`` finds that it does not match.

    Raises:
        InvalidFleetError: the folder, or without ``--update`` its lock, cannot be read.
        CloudError, TransientCloudError: a look-up failed; nothing is written.
    """
    from reconciler.assembly.inputs import sources

    source = sources.read_source(request.fleet)
    file = next((f for f in source.files if f.path == LOCK_FILE), None)
    if request.is_check:
        return _check(request, file)
    others = source._replace(files=[f for f in source.files if f.path != LOCK_FILE])
    fleet, _ = sources.read_desired(others, any_class=False)
    resolved = sources.settings_of(request.fleet, fleet)
    before = _existing_lock(file, resolved.settings, update=request.is_update)
    with show_progress("Looking up images, subnets and prices"):
        existing = None if request.is_update else before
        after = _make_lock(request.fleet, fleet, resolved, existing)
    if before is not None and _without_times(before) == _without_times(after):
        return _print_result(request, f"{LOCK_FILE} is up to date", before, [])
    _write(os.path.join(request.fleet.path or ".", LOCK_FILE), after)
    return _print_result(request, f"{LOCK_FILE} written", after, _describe_changes(before, after))


def _existing_lock(file: SourceFile | None, settings: Settings, *, update: bool) -> Lock | None:
    """Return the existing lock; None if it is for another region or damaged, and is replaced."""
    from reconciler.desired.lock import read_lock

    if file is None:
        return None
    found = read_lock(file.content)
    if isinstance(found, Diagnostic):
        if update:
            return None
        raise InvalidFleetError([found])
    return found if found.region == settings.region else None


def _make_lock(
    request: FleetRequest, fleet: Fleet, resolved: Resolved, existing: Lock | None
) -> Lock:
    """Return the lock of the current facts; matching entries of ``existing`` are kept."""
    from reconciler.catalog.catalog import BundledCatalog, bundled_data
    from reconciler.catalog.locked import allowed_types, locked_catalog, locked_types
    from reconciler.desired.lock import Lock, choices_digest, drop_stale_entries
    from reconciler.desired.objects import node_pools

    now = current_time(request.now).replace(microsecond=0)
    release = bundled_data()
    catalog = _public_catalog(request, resolved)
    assert isinstance(catalog, BundledCatalog)
    fits = None
    if existing is not None and existing.catalog.bundle_digest == release[0].digest[:16]:
        fits, _ = drop_stale_entries(existing, fleet.node_classes, fleet.node_pools)
    if fits is None:
        facts = locked_catalog(catalog, _types_source(catalog, release[0].version), release[0])
        known: Mapping[str, LockedType] = {}
    else:
        facts, known = fits.catalog, fits.types
    names = allowed_types(node_pools(fleet), catalog)
    missing = (name for name in names if name not in known)
    types = {**known, **locked_types(catalog, missing, release[1])}
    return Lock(
        locked_at=now,
        region=resolved.settings.region,
        catalog=facts,
        node_pools={r.name: choices_digest(r.data) for r in fleet.node_pools},
        node_classes=_locked_classes(request, fleet, resolved, fits),
        types={name: types[name] for name in names if name in types},
    )


def _types_source(catalog: Catalog, bundled: str) -> FactSource:
    from reconciler.desired.lock import FactSource

    is_live = catalog.version != bundled
    return FactSource(source="live" if is_live else "bundled", at=_parse_time(catalog.version))


def _parse_time(version: str) -> datetime | None:
    try:
        return datetime.fromisoformat(version).replace(tzinfo=UTC)
    except ValueError:
        return None


def _public_catalog(request: FleetRequest, resolved: Resolved) -> Catalog:
    """Return the catalog without the price book, which is in git itself.

    Raises:
        CloudError: the settings require live data from AWS, and there is none.
    """
    from reconciler.adapters.aws.launch.profiles import is_simulated_account
    from reconciler.assembly.account import aws_query_of
    from reconciler.assembly.inputs.catalogs import unlocked_catalog

    settings = replace(resolved.settings, price_rules=(), price_discount_percent=0.0)
    by_default = request.snapshot is None and not is_simulated_account(settings)
    catalog = unlocked_catalog(
        settings, aws_query_of(request, resolved, by_default=by_default, refresh=True)
    )
    wants_live = DataSource.LIVE in (settings.instance_types_from, settings.prices_from)
    if catalog.warnings and wants_live:
        raise CloudError(
            catalog.warnings[0],
            remedy=(
                "nothing was written; to use the bundled data, set aws.instanceTypes and "
                "aws.prices to bundled"
            ),
        )
    for warning in catalog.warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    return catalog


def _locked_classes(
    request: FleetRequest, fleet: Fleet, resolved: Resolved, existing: Lock | None
) -> dict[str, LockedClass]:
    """Return the resources of each class: the locked ones if they match, else current ones."""
    from reconciler.desired.lock import LockedClass, selectors_digest
    from reconciler.desired.objects import node_classes

    known = existing.node_classes if existing is not None else {}
    classes = {c.name: c for c in node_classes(fleet)}
    missing = [c for name, c in classes.items() if name not in known]
    found = {c.name: c for c in _resolve_classes(request, resolved, missing)} if missing else {}
    locked = dict(known)
    for resource in fleet.node_classes:
        node_class = found.get(resource.name)
        if node_class is None:
            continue
        status = node_class.status
        locked[resource.name] = LockedClass(
            selectors=selectors_digest(resource.data),
            amis=status.amis,
            subnets=tuple(sorted(status.subnets, key=lambda s: s.id)),
            security_groups=tuple(sorted(status.security_groups, key=lambda g: g.id)),
            instance_profile=status.instance_profile,
        )
    return locked


def _resolve_classes(
    request: FleetRequest, resolved: Resolved, classes: list[EC2NodeClass]
) -> list[EC2NodeClass]:
    """Return the classes with the resources that they select in the account.

    Raises:
        CloudError: a class selects nothing.
    """
    if request.snapshot is not None:
        found = _classes_in_snapshot(request, request.snapshot, classes)
    else:
        from reconciler.assembly.account import node_class_resolver

        find = node_class_resolver(request, resolved)
        found = [find(node_class) for node_class in classes]
    for node_class in found:
        _expect_resources(node_class)
    return found


def _expect_resources(node_class: EC2NodeClass) -> None:
    """Refuse a class that selects nothing of some kind.

    Raises:
        CloudError: it does.
    """
    status = node_class.status
    parts = {
        "images": status.amis,
        "subnets": status.subnets,
        "security groups": status.security_groups,
    }
    missing = [what for what, things in parts.items() if not things]
    if missing:
        messages = {c.message for c in status.conditions if c.status == "False" and c.message}
        raise CloudError(
            f"EC2NodeClass {node_class.name} matches no {' and no '.join(missing)}"
            + (f" ({'; '.join(sorted(messages))})" if messages else ""),
            remedy="nothing was written; check its selector terms",
        )


def _classes_in_snapshot(
    request: FleetRequest, snapshot: str, classes: list[EC2NodeClass]
) -> list[EC2NodeClass]:
    from msgspec.structs import replace

    from reconciler.assembly.snapshots import read_snapshot_at
    from reconciler.model.decode import decode
    from reconciler.model.karpenter.nodeclass import EC2NodeClassStatus

    live = {
        o["metadata"]["name"]: o.get("status") or {}
        for o in read_snapshot_at(snapshot, request).live
        if o.get("kind") == "EC2NodeClass"
    }
    return [replace(c, status=decode(live.get(c.name, {}), EC2NodeClassStatus)) for c in classes]


def _without_times(lock: Lock) -> Lock:
    """Return everything in a lock except its time."""
    from msgspec.structs import replace

    facts, epoch = lock.catalog, datetime.fromtimestamp(0, UTC)
    timeless = replace(
        facts,
        instance_types=replace(facts.instance_types, at=None),
        on_demand=replace(facts.on_demand, at=None),
        spot=replace(facts.spot, at=None),
    )
    return replace(lock, digest="", locked_at=epoch, catalog=timeless)


def _class_changes(before: LockedClass | None, after: LockedClass) -> Iterator[str]:
    """Yield the resources that a class lost and got, by their kind."""
    known = _resource_ids(before) if before is not None else {}
    for what, ids in _resource_ids(after).items():
        old = known.get(what, ())
        changes = [f"-{one}" for one in old if one not in ids]
        changes += [f"+{one}" for one in ids if one not in old]
        if changes:
            yield f"{what}: {' '.join(changes)}"


def _describe_changes(before: Lock | None, after: Lock) -> list[str]:
    """Return the changes: the resources of each class, then types and prices in one line."""
    from reconciler.catalog.locked import describe_differences

    lines = []
    old = before.node_classes if before is not None else {}
    for name in sorted(old.keys() | after.node_classes.keys()):
        if name not in after.node_classes:
            lines.append(f"- EC2NodeClass {name}")
            continue
        changes = _class_changes(old.get(name), after.node_classes[name])
        lines += [f"~ EC2NodeClass {name} {change}" for change in changes]
    types = describe_differences(before.types if before is not None else {}, after.types)
    return [*lines, *([f"~ {types}"] if types else [])]


def _resource_ids(entry: LockedClass) -> dict[str, list[str]]:
    return {
        "images": [ami.id for ami in entry.amis],
        "subnets": [subnet.id for subnet in entry.subnets],
        "security groups": [group.id for group in entry.security_groups],
    }


def _summary_line(lock: Lock) -> str:
    from reconciler.render.listing import clock_time

    classes = format_count(len(lock.node_classes), "node class", "node classes")
    return (
        f"{classes}, {format_count(len(lock.types), 'instance type')}, locked at "
        f"{clock_time(lock.locked_at)}"
    )


def _write(path: str, lock: Lock) -> None:
    """Write the file completely or not at all.

    Raises:
        UnreadableError: it cannot be written.
    """
    from reconciler.desired.lock import encode

    write_file(path, encode(lock), remedy="make the folder writable")


def _check(request: LockRequest, file: SourceFile | None) -> int:
    """Check whether the lock matches the folder, without calling AWS."""
    from reconciler.assembly.inputs import sources
    from reconciler.desired.lock import REMEDY, drop_stale_entries, read_lock

    if file is None:
        return _print_refusal(
            f"{LOCK_FILE} does not exist; run `reconciler lock` and commit the file"
        )
    lock = read_lock(file.content)
    if isinstance(lock, Diagnostic):
        return _print_refusal(str(lock))
    fleet = sources.desired_fleet(request.fleet)
    settings = sources.settings_of(request.fleet, fleet).settings
    fits, findings = drop_stale_entries(lock, fleet.node_classes, fleet.node_pools)
    if findings:
        return _print_refusal(str(findings[0]))
    if lock.region != settings.region:
        return _print_refusal(
            f"{LOCK_FILE} is for {lock.region}, but the fleet is in {settings.region}; {REMEDY}"
        )
    from reconciler.assembly.inputs.catalogs import catalog_from_lock

    warnings = catalog_from_lock(settings, lock).warnings
    if warnings:
        return _print_refusal(warnings[0])
    return _print_result(request, f"{LOCK_FILE} matches", fits, [])


def _print_result(request: LockRequest, result: str, lock: Lock, changes: Sequence[str]) -> int:
    """Print the contents of the lock, and what was changed in it."""
    from reconciler.inspection.replies import LockReply
    from reconciler.render.reply import render_reply, sections_of

    reply = LockReply(
        result=result,
        changes=tuple(changes),
        node_classes=len(lock.node_classes),
        instance_types=len(lock.types),
        locked_at=lock.locked_at,
    )
    text = "".join(f"{line}\n" for line in (*changes, f"{result}: {_summary_line(lock)}"))
    page = render_reply(reply, sections_of(reply), request.output, title="Lock", text=text)
    sys.stdout.write(page)
    return exitcode.DONE


def _print_refusal(why: str) -> int:
    print(f"Error: {why}", file=sys.stderr)
    return exitcode.REFUSED
