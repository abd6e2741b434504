"""``reconciler config``: the effective settings, and the source of each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

from reconciler import exitcode
from reconciler.assembly.inputs.request import FleetRequest, StateRequest
from reconciler.cli.parser import inputs
from reconciler.model.text.urls import without_secrets
from reconciler.options import add_options, part

_WIDTH_MAX = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRequest:
    """The fleet whose settings are shown, and the output format."""

    fleet: StateRequest = inputs.of_fleet(("state", "settings", "config"))
    output: str = part(inputs.add_output)


add_arguments = partial(add_options, ConfigRequest)
request_of = partial(inputs.request_from, ConfigRequest)


def run(request: ConfigRequest) -> int:
    """Print every setting with its value and origin; passwords are hidden.

    Raises:
        UsageError: a setting is unknown or has an invalid value.
        InvalidFleetError: ``reconciler.yaml`` is not valid.
    """
    from reconciler.assembly.inputs.records import settings_of
    from reconciler.inspection.replies import SettingReply
    from reconciler.render.listing import truncate
    from reconciler.render.reply import render_reply, table_section

    resolved = settings_of(request.fleet, _region_of_zones(request.fleet.path))
    reply = {
        key: SettingReply(
            value=_without_password(value), origin=origin.layer.value, where=origin.where
        )
        for key, value in resolved.values.items()
        if (origin := resolved.origins[key])
    }
    rows = [
        (key, truncate(_format_value(setting.value), _WIDTH_MAX), str(resolved.origins[key]))
        for key, setting in reply.items()
    ]
    sections = [table_section("settings", ("key", "value", "from"), rows)]
    sys.stdout.write(
        render_reply(reply, sections, request.output, title="Settings", sort_keys=False)
    )
    return exitcode.DONE


def _region_of_zones(path: str | None) -> str:
    """Return the region of the zones that the NodePools require, whatever else is wrong there."""
    from reconciler.assembly.inputs.sources import read_source
    from reconciler.catalog.regions import region_of_pools
    from reconciler.desired.fleet import read_fleet

    source = read_source(FleetRequest(path=path, is_emptied=True))
    fleet, _ = read_fleet(source.files, any_class=True, allow_empty=True)
    return region_of_pools(pool.data for pool in fleet.node_pools)


def _without_password(value: object) -> object:
    return without_secrets(value, is_value=True) if isinstance(value, str) else value


def _format_value(value: object) -> str:
    """Return a value in the notation of the file, empty for an empty text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
