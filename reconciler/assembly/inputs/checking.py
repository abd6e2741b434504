"""Every finding on the files of a fleet, for `validate`, `ci` and editors alike."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from reconciler.assembly.inputs.sources import SettingLayers, known_values, stated_karpenter
from reconciler.catalog import names
from reconciler.desired.fleet import Fleet, FolderEntries, SourceFile, read_fleet
from reconciler.desired.settings.layers import Layer, resolve, setting_variables
from reconciler.desired.sources.unread import LeftOutObjects
from reconciler.model.decision.policy import Policy
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.json import JsonDict
from reconciler.model.settings import KarpenterVersion
from reconciler.source.finding import Finding
from reconciler.source.objects import Entry
from reconciler.source.schema import value_at


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What the user states beside the files: settings, the release of Karpenter, placeholders."""

    settings: tuple[str, ...]
    karpenter: KarpenterVersion | None
    known: Mapping[str, str]


def check_context(settings: Sequence[str]) -> CheckContext:
    """Return the context that settings of the command line and the environment give.

    Raises:
        UsageError: a setting among them is wrong.
    """
    sets = tuple(settings)
    karpenter = stated_karpenter(sets)
    known = known_values(SettingLayers(setting_variables(os.environ), sets, "fleet", None))
    return CheckContext(sets, karpenter, known)


def check_files(
    context: CheckContext,
    files: Sequence[SourceFile],
    unread: Iterable[Diagnostic] = (),
    *,
    allow_empty: bool = False,
    any_class: bool = False,
    leaving: LeftOutObjects | None = None,
) -> tuple[Fleet, tuple[Diagnostic, ...]]:
    """Return the fleet that files describe, and every finding on them, in order of place.

    ``unread`` are the findings on files that were not read. With ``any_class`` objects may be
    missing: every node class counts as known. ``leaving`` is that of ``read_fleet``.
    """
    fleet, diagnostics = read_fleet(
        files,
        any_class=any_class,
        allow_empty=allow_empty,
        unread=unread,
        advise=_Advice(context.settings),
        karpenter=context.karpenter,
        is_complete=not any_class,
        known=context.known,
        leaving=leaving,
    )
    if fleet.policies:
        from reconciler.assembly.inputs.policies import field_findings

        sources = {file.path: file.content for file in files}
        found = (
            *diagnostics,
            *_compile_findings(fleet.policies),
            *field_findings(fleet.policies, sources),
        )
        diagnostics = tuple(sorted(found, key=lambda d: d.order))
    return fleet, diagnostics


@lru_cache(maxsize=4)
def _compile_findings(policies: tuple[Policy, ...]) -> tuple[Diagnostic, ...]:
    """Return what does not compile; cached, because it is compiled in a process of its own."""
    from reconciler.assembly.inputs.policies import compile_findings

    return tuple(compile_findings(policies))


@dataclass(frozen=True, slots=True)
class _Advice:
    """Findings that require the catalog or the effective settings; see ``Advice``."""

    sets: tuple[str, ...]

    def __call__(self, entries: FolderEntries) -> Iterator[tuple[Entry, Finding]]:
        if entries.config_file is not None:
            from reconciler.catalog.regions import unknown_regions

            for finding in unknown_regions(entries.config_file.pruned_data):
                yield entries.config_file, finding
        yield from self._object_findings(entries.config, entries.objects)

    def _object_findings(
        self, config: JsonDict, entries: Sequence[Entry]
    ) -> Iterator[tuple[Entry, Finding]]:
        from reconciler.desired.rules.crd import static_pools_without_gate

        if not any(e.kind in ("NodePool", "NodeClaim", "NodeOverlay") for e in entries):
            return
        if any(value_at(e.data, ("spec", "replicas")) is not None for e in entries):
            yield from static_pools_without_gate(
                entries, resolve(config, os.environ, self.sets).settings
            )

        yield from names.unknown_label_values(entries)
        if not names.has_named_values(entries):
            return
        resolved = resolve(config, {}, self.sets)
        stated = resolved.origins["aws.region"].layer != Layer.DEFAULT
        region = resolved.settings.region if stated else ""
        yield from names.unknown_names(entries, names.bundled_names(), region)
