"""Karpenter's own chart, as Argo CD, Flux or Terraform installs it: its values as settings of ours.

Values that are placeholders are left to the user, who is asked for the cluster's name anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from reconciler.desired.migration.controller import (
    VARIABLES,
    ControllerSettings,
    read_settings,
    release_to_follow,
)
from reconciler.desired.sources.gitops.argocd import values_of_source
from reconciler.desired.sources.requested import is_karpenter_chart, merge_values
from reconciler.model.json import (
    JsonDict,
    JsonObject,
    as_list,
    as_mapping,
    as_mappings,
    as_text,
    nest,
)
from reconciler.source.schema import value_at

_SETTINGS: Final = "settings"
_GATES: Final = "featureGates"
_FORMER: Final = {"interruptionQueueName": "interruptionQueue", "driftEnabled": "drift"}
"""Names that values had before Karpenter 0.33."""
_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_FLAGS: Final = ("true", "false")
_PLACEHOLDER: Final = re.compile(r"\$\{|\{\{|\$\(|<")


class ChartInstallation(NamedTuple):
    """The values that Karpenter's chart gets, and the version of the chart if it is stated."""

    values: JsonDict
    version: str = ""


def settings_of_release(data: JsonObject) -> ControllerSettings | None:
    """Return the settings in an object of Argo CD or Flux; None if it installs no Karpenter."""
    found = next(_installations(data), None)
    return None if found is None else settings_of_chart(found)


def settings_of_chart(installation: ChartInstallation) -> ControllerSettings:
    """Return the settings in values of Karpenter's chart, and its release if it is known."""
    settings = as_mapping(installation.values.get(_SETTINGS))
    read = read_settings(dict(_variables(settings)))
    release = release_to_follow([installation.version])
    known = {} if release is None else {"karpenter": release}
    profile = as_text(value_at(settings, ("aws", "defaultInstanceProfile")))
    return read._replace(values={**known, **read.values}, default_profile=profile)


def _installations(data: JsonObject) -> Iterator[ChartInstallation]:
    spec = as_mapping(data.get("spec"))
    match data.get("kind"):
        case "Application":
            yield from _of_application(spec)
        case "ApplicationSet":
            yield from _of_application(as_mapping(value_at(spec, ("template", "spec"))))
        case "HelmRelease":
            chart = as_mapping(value_at(spec, ("chart", "spec")))
            named = as_text(chart.get("chart")) or as_text(value_at(spec, ("chartRef", "name")))
            if is_karpenter_chart(named):
                yield ChartInstallation(
                    as_mapping(spec.get("values")), as_text(chart.get("version"))
                )


def _of_application(spec: JsonDict) -> Iterator[ChartInstallation]:
    for source in (spec.get("source"), *as_list(spec.get("sources"))):
        one = as_mapping(source)
        if not is_karpenter_chart(as_text(one.get("chart"))):
            continue
        helm = as_mapping(one.get("helm"))
        parameters = {
            as_text(item.get("name")): item.get("value")
            for item in as_mappings(helm.get("parameters"))
        }
        values = merge_values(values_of_source(helm), nest(parameters))
        yield ChartInstallation(values, as_text(one.get("targetRevision")))


def _variables(settings: JsonDict) -> Iterator[tuple[str, str]]:
    """Yield the variables of the controller that the chart makes of its settings."""
    gates = as_mapping(settings.get(_GATES))
    flags = {_FORMER.get(name, name): _text_of(value) for name, value in gates.items()}
    stated = [f"{n[:1].upper()}{n[1:]}={flag}" for n, flag in flags.items() if flag in _FLAGS]
    if stated:
        yield "FEATURE_GATES", ",".join(stated)
    for name, value in {**as_mapping(settings.get("aws")), **settings}.items():
        words = _WORDS.sub("_", _FORMER.get(name, name).replace("ENIs", "Enis"))
        text = _text_of(value)
        if words.upper() in VARIABLES and text and not _PLACEHOLDER.search(text):
            yield words.upper(), text


def _text_of(value: object) -> str:
    """Return a scalar as the chart writes it, an empty text for anything else."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else ""
