"""``reconciler config``: the effective settings, and the source of each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from reconciler import exitcode
from reconciler.cli.parser import inputs

if TYPE_CHECKING:
    import argparse

    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.desired.settings.layers import Resolved

_WIDTH_MAX = 60


@dataclass(frozen=True, slots=True)
class ConfigRequest:
    """The fleet whose settings are shown, and the output format."""

    fleet: StateRequest
    output: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    inputs.add_path(parser)
    inputs.add_output(parser)
    inputs.add_flags(parser, ("state", "settings", "config"))


request_of = partial(inputs.request_from, ConfigRequest)


def run(request: ConfigRequest) -> int:
    """Print every setting with its value and origin; passwords are hidden.

    Raises:
        UsageError: a setting is unknown or has an invalid value.
        InvalidFleetError: ``reconciler.yaml`` is not valid.
    """
    from reconciler.assembly.inputs.records import settings_of

    resolved = settings_of(request.fleet)
    if request.output == "text":
        _print_table(resolved)
    else:
        from reconciler.render.listing import format_document

        sys.stdout.write(format_document(_as_document(resolved), request.output, sort_keys=False))
    return exitcode.DONE


def _as_document(resolved: Resolved) -> dict[str, object]:
    return {
        key: {
            "value": _without_password(value),
            "origin": origin.layer.value,
            "where": origin.where,
        }
        for key, value in resolved.values.items()
        if (origin := resolved.origins[key])
    }


def _without_password(value: object) -> object:
    from reconciler.model.text.urls import without_secrets

    return without_secrets(value, is_value=True) if isinstance(value, str) else value


def _print_table(resolved: Resolved) -> None:
    rows = [("KEY", "VALUE", "FROM")]
    for key, value in resolved.values.items():
        text = _format_value(_without_password(value))
        short = text if len(text) <= _WIDTH_MAX else text[: _WIDTH_MAX - 1] + "…"
        rows.append((key, short, str(resolved.origins[key])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def _format_value(value: object) -> str:
    """Return a value in the notation of the file, empty for an empty text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
