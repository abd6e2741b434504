"""``reconciler config``: the effective settings, and where each of them came from."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from reconciler.cli.shared import exitcode, operatorfile

if TYPE_CHECKING:
    import argparse

    from reconciler.desired.settings.layers import Resolved

_WIDTH_MAX = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("path", nargs="?", default=".", metavar="PATH", help="fleet folder")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form")
    parser.add_argument("--state", metavar="DIR|URL", help="state directory or database URL")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
        help="override a setting of reconciler.yaml",
    )  # fmt: skip
    operatorfile.add_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print every setting with its value and origin; passwords are hidden.

    Raises:
        UsageError: a setting is unknown or has a value that it cannot have.
        InvalidFleetError: ``reconciler.yaml`` is not valid.
    """
    from reconciler.desired.settings.layers import resolve

    state = [f"state={args.state}"] if args.state else []
    name = os.path.basename(os.path.realpath(args.path))  # noqa: PTH119 - pathlib costs a start
    operator = operatorfile.read_operator_file(args.config, args.path)
    flags = [*state, *args.settings]
    resolved = resolve(_config(args.path), os.environ, flags, fleet=name, operator=operator)
    if args.output == "json":
        import json

        sys.stdout.write(json.dumps(_as_json(resolved), indent=2) + "\n")
    else:
        _print_table(resolved)
    return exitcode.DONE


def _config(path: str) -> dict[str, Any]:
    """Return the data of the folder's ``reconciler.yaml``, empty where there is none."""
    from reconciler.desired.fleet import SourceFile, read_fleet
    from reconciler.model.errors import InvalidFleetError, UnreadableError
    from reconciler.source.resource import CONFIG_FILES

    if not os.path.isdir(path):  # noqa: PTH112
        raise UnreadableError(
            f'folder "{path}" does not exist', remedy="pass the fleet folder as PATH"
        )
    for name in CONFIG_FILES:
        file = os.path.join(path, name)  # noqa: PTH118
        try:
            with open(file, "rb") as content:  # noqa: PTH123
                source = SourceFile(name, content.read())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UnreadableError(str(error.strerror), where=file) from error
        fleet, findings = read_fleet([source])
        told = [finding for finding in findings if finding.place is not None]
        if told:
            raise InvalidFleetError(told)
        return fleet.config
    return {}


def _as_json(resolved: Resolved) -> dict[str, Any]:
    return {
        key: {"value": _shown(value), "origin": origin.layer.value, "where": origin.where}
        for key, value in resolved.values.items()
        if (origin := resolved.origins[key])
    }


def _shown(value: Any) -> Any:
    from reconciler.model.text.urls import without_secrets

    return without_secrets(value, is_value=True) if isinstance(value, str) else value


def _print_table(resolved: Resolved) -> None:
    rows = [("KEY", "VALUE", "FROM")]
    for key, value in resolved.values.items():
        text = _text(_shown(value))
        short = text if len(text) <= _WIDTH_MAX else text[: _WIDTH_MAX - 1] + "…"
        rows.append((key, short, str(resolved.origins[key])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def _text(value: Any) -> str:
    """Return a value as it would be written in the file; nothing for an empty text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
