"""A commit that changes a setting takes effect, or is refused with a message: for every setting."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import reconciler
from reconciler.adapters.aws.clients import connector
from reconciler.assembly.fleetsource import IDENTITY, PROCESS_SETTINGS, FleetSource, follow_commits
from reconciler.assembly.inputs.request import Environment
from reconciler.daemon import daemon
from reconciler.desired.settings.keys import KEYS
from reconciler.model.duration import Duration
from reconciler.model.errors import InvalidFleetError, SettingsChangedError, UsageError
from reconciler.model.settings import FeatureGate, Settings
from reconciler.source.plainyaml import dump
from tests.cli.commandlines import request_of
from tests.cli.test_end_to_end import CONFIG, Shop
from tests.cli.test_kubernetes_end_to_end import EventRecorder
from tests.repositories import commit_all, init

ATTRIBUTES = tuple(f.name for f in fields(Settings) if not f.name.startswith("_"))
CODE = Path(reconciler.__file__).parent


def other_value(value: Any) -> Any:
    """Return another value of the same type."""
    match value:
        case bool():
            return not value
        case Enum():
            return next(member for member in type(value) if member is not value)
        case Duration():
            return Duration("7m")
        case timedelta():
            return value + timedelta(seconds=1)
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case tuple():
            return (*value, object())
        case dict() if value:
            return {**value, FeatureGate.NODE_REPAIR: not value.get(FeatureGate.NODE_REPAIR)}
        case dict():
            return {"other": 1}
        case _:
            return object()


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_every_setting_is_read_with_the_revision_or_ends_what_was_made_with_it(
    name: str, shop: Shop
) -> None:
    """The process was started with another value than the one that is committed now."""
    source = a_source(shop, acts=True)
    committed = source.read().settings
    before = getattr(committed, name)
    other = {"web": {}} if name == "node_pools" else other_value(before)
    source.settings = replace(committed, **{name: other})
    if name in IDENTITY:
        with pytest.raises(UsageError, match="but this process acts for"):
            source.read()
    elif name in PROCESS_SETTINGS:
        with pytest.raises(SettingsChangedError) as caught:
            source.read()
        assert caught.value.keys
    else:
        assert getattr(source.read().settings, name) == before


def a_source(shop: Shop, *, acts: bool) -> FleetSource:
    from reconciler.assembly.account import compute_of
    from reconciler.assembly.context import context_of

    environment = Environment(shop.clock, cache(connector(Settings(endpoint_url=shop.url))))
    request = request_of(shop.words("run")).fleet
    context = context_of(request, environment)
    compute = compute_of(context.settings, context.catalog, environment)
    return FleetSource(request, compute, context.catalog, context.settings, acts=acts)


def test_an_invalid_commit_can_be_named_unless_files_differ_from_it(shop: Shop) -> None:
    init(shop.folder)
    source = a_source(shop, acts=True)
    (shop.folder / "broken.yaml").write_text("apiVersion: karpenter.sh/v1\nkind: NodePool\n")
    head = commit_all(shop.folder, "Break it")
    source.request = follow_commits(source.request)
    with pytest.raises(InvalidFleetError):
        source.read()
    assert source.last_read() == (head, "Break it (a@example.com)")
    (shop.folder / "broken.yaml").write_text("apiVersion: karpenter.sh/v1\n")
    source.request = replace(source.request, ref=None, is_watched=False)
    with pytest.raises(InvalidFleetError):
        source.read()
    assert source.last_read() == ("", "")


def settings_read_in(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield the attributes of settings that modules read, with the module."""
    for path in sorted(paths):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or node.attr not in {*ATTRIBUTES, "gate"}:
                continue
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if name in ("settings", "_settings"):
                attribute = "feature_gates" if node.attr == "gate" else node.attr
                yield attribute, str(path.relative_to(CODE))


def test_what_adapters_and_their_assembly_read_is_among_the_settings_of_a_process() -> None:
    adapters, assembly = (CODE / "adapters").rglob("*.py"), (CODE / "assembly").glob("*.py")
    read = [*settings_read_in(adapters), *settings_read_in(assembly)]
    assert len(read) > 50, "the code is read as it is written"
    with_each_plan = {"decide"}
    known = PROCESS_SETTINGS | {*IDENTITY} | with_each_plan
    assert [row for row in read if row[0] not in known] == []


def test_the_settings_of_a_process_have_keys_that_messages_can_name() -> None:
    named = {definition.attribute for definition in KEYS.values()}
    named |= {"feature_gates", "subnet_free_addresses"}  # groups of keys
    assert PROCESS_SETTINGS | {*IDENTITY} <= named


def test_a_daemon_begins_again_with_the_settings_of_a_commit(shop: Shop) -> None:
    """It reads the queue that a commit names, without a restart by a person."""
    without = {key: value for key, value in CONFIG.items() if key != "interruptionQueue"}
    (shop.folder / "reconciler.yaml").write_text(dump(without))
    warned: list[str] = []
    recorder = EventRecorder()

    def name_queue() -> None:
        (shop.folder / "reconciler.yaml").write_text(dump(CONFIG))

    def warn() -> None:
        warned.append(min(shop.cloud.running_instances()))
        shop.warn(warned[0], waits=False)

    def has_begun_again() -> bool:
        return bool(changes())

    def changes() -> list[str]:
        return [m for m in recorder.messages("Revision") if "settings have changed" in m]

    chapters = [
        (lambda: shop.rests(2), name_queue),
        (has_begun_again, warn),
        (lambda: warned[0] not in shop.cloud.running_instances(), lambda: None),
    ]
    looks = iter(range(3000))

    def stop() -> bool:
        assert next(looks, None) is not None, f"{len(chapters)} chapters are left"
        if chapters and chapters[0][0]():
            chapters.pop(0)[1]()
        return not chapters

    request = replace(request_of(shop.words("run")), waits=False)
    connect = cache(connector(Settings(endpoint_url=shop.url)))
    daemon.FleetDaemon(request, recorder, stop, Environment(shop.clock, connect, workers=1)).run()
    (change,) = changes()
    assert change == "settings have changed: interruptionQueue; starting again with the new values"
