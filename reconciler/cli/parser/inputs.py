"""The arguments that several commands share: declared once, and read into a request once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reconciler.assembly.inputs.folder import fleet_folder
from reconciler.assembly.inputs.request import (
    WORKERS_MAX,
    FleetRequest,
    ReplayRequest,
    StateRequest,
    SweepRequest,
)
from reconciler.assembly.inputs.timings import read_time
from reconciler.model.errors import UsageError
from reconciler.model.text.quoting import quote_value
from reconciler.options import Groups, RequestField, declare, flag_of, part

if TYPE_CHECKING:
    from reconciler.model.grouping import Grouping

_Request = TypeVar("_Request")

PLANNING: Final = (
    *("repo", "ref", "below", "manifests", "base", "snapshot", "snapshot_max_age", "catalog"),
    *("replicas_percent", "now"),
    *("state", "settings", "config", "allow_removal"),
)
"""The flags of a command that plans a fleet from any inputs."""

_NOT_OF_ACTING: Final = ("manifests", "base", "snapshot", "snapshot_max_age", "replicas_percent")

ACTING: Final = tuple(name for name in PLANNING if name not in _NOT_OF_ACTING)
"""The flags of a command that acts on the running fleet: git as it is, the cluster as it is."""

RECORDED: Final = ("now", "state", "settings", "config")
"""The flags of a command that reads the recorded state."""


def add_path(parser: argparse.ArgumentParser) -> None:
    """Declare the fleet folder."""
    parser.add_argument(
        "path",
        nargs="?",
        default=None,
        metavar="PATH",
        help="fleet folder (default: this one, or the nearest above with a reconciler.yaml)",
    )


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Declare fleet folders, or folders of fleets."""
    parser.add_argument(
        "paths",
        nargs="*",
        default=None,
        metavar="PATH",
        help="fleet folders, or folders of fleets (default: this one, or the nearest above with a "
        "reconciler.yaml)",
    )


def add_flags(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Declare the shared flags with these destinations, grouped as the help shows them."""
    groups: Groups = {}
    shared = {field.name: field for field in fields(FleetRequest)}
    for name in PLANNING:
        if name in names:
            declare(parser, shared[name], groups)


def of_fleet(names: Sequence[str]) -> RequestField:
    """Return a field with the fleet: its folder, and the shared flags with these destinations."""
    return part(add_path, partial(add_flags, names=names))


def add_output(
    parser: argparse.ArgumentParser, formats: Sequence[str] = (), more: Sequence[str] = ()
) -> None:
    """Declare the output format: text by default, JSON, YAML and pages everywhere.

    ``formats`` precede those in the help, and ``more`` follow them.
    """
    every = ("text", *formats, "json", "yaml", "markdown", "html", *more)
    parser.add_argument(
        "-o",
        "--output",
        choices=every,
        default="text",
        metavar="FORMAT",
        help=f"output format: {', '.join(every)} (default: text)",
    )


def add_grouping(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare ``--by``: how cost is divided among workloads; ``what`` begins its help."""
    parser.add_argument(
        "--by",
        dest="cost_by",
        metavar="GROUP",
        type=_parse_grouping,
        help=f"{what}: namespace, workload, or label=KEY",
    )


def _parse_grouping(text: str) -> Grouping:
    from reconciler.model.grouping import Grouping

    try:
        return Grouping.from_text(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_sweep(add: Callable[..., object], what: str) -> None:
    """Declare where evaluations run and where their results are cached, with ``add_argument``."""
    add(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help=f"{what} in N processes, with the same result (default: 1)",
    )
    add(
        "--scheduler",
        metavar="URL",
        help=f"{what} on the workers of a Dask cluster, with the same result (tls://HOST:PORT)",
    )
    add(
        "--cache",
        metavar="PLACE",
        help="keep and reuse results in a folder or at s3://BUCKET/FOLDER; needs --now",
    )


def sweep_request(args: argparse.Namespace) -> SweepRequest:
    """Return where evaluations run.

    Raises:
        UsageError: the number of processes is not allowed, the flags do not go together, or
            results would be cached for a time that does not recur.
    """
    if not 1 <= args.workers <= WORKERS_MAX:
        remedy = f"use 1 to {WORKERS_MAX}"
        raise UsageError(f"{args.workers} is not allowed", where="--workers", remedy=remedy)
    if args.scheduler is not None and args.workers > 1:
        remedy = "leave one of them out"
        raise UsageError("cannot be used with --workers", where="--scheduler", remedy=remedy)
    if args.cache is not None and args.now is None:
        why = "results depend on the time, so keeping them needs a fixed one"
        remedy = "add --now TIME, such as --now 2026-01-05T09:00:00Z"
        raise UsageError(why, where="--cache", remedy=remedy)
    return SweepRequest(args.workers, args.scheduler, args.cache)


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Declare the flag that shows a view again after each change."""
    parser.add_argument(
        "-w",
        "--watch",
        dest="watches",
        action="store_true",
        help="show it again whenever it changes, until interrupted",
    )


def request_from(kind: type[_Request], args: argparse.Namespace, **given: object) -> _Request:
    """Return a request (a dataclass): each field has the value of the argument of the same name.

    ``given`` are the fields that are decided elsewhere. A field that is a request itself is read
    from its own arguments, and a duration or a time from its text. A field whose argument is not
    declared, or not set, keeps its default.

    Raises:
        UsageError: an argument is wrong.
    """
    values = dict(given)
    for field in fields(kind):  # type: ignore[arg-type]
        name, declared = field.name, str(field.type)
        if name in values:
            continue
        if declared in _PARTS:
            values[name] = _PARTS[declared](args)
            continue
        value = getattr(args, name, None)
        if value is not None:
            read = _READERS.get(declared.partition("[")[0])
            values[name] = value if read is None else read(value, flag_of(field))
        elif field.default is MISSING and field.default_factory is MISSING:
            values[name] = None
    return kind(**values)


def state_request(args: argparse.Namespace, path: str | None) -> StateRequest:
    """Return the fleet on this machine, and its state, that the arguments name.

    Raises:
        UsageError: an argument is wrong, or ``path`` is a folder inside a fleet.
    """
    return request_from(StateRequest, args, path=fleet_folder(path), settings=_settings_of(args))


def _settings_of(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the settings of the command line, with the context of ``add_context``."""
    context = getattr(args, "kubeconfig_context", None)
    return (*args.settings, *([f"kubernetes.context={context}"] if context else ()))


def add_context(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Declare the context of the kubeconfig; ``more`` follows its help."""
    parser.add_argument(
        "--context",
        dest="kubeconfig_context",
        metavar="NAME",
        help=f"context of the kubeconfig to use{more}",
    )


def add_durations(parser: argparse.ArgumentParser) -> None:
    """Declare how long the pods of CronJobs run."""
    parser.add_argument(
        "--duration",
        action="append",
        default=[],
        metavar="cronjob/NAME=DURATION",
        help="how long the pods of this CronJob run (default: as recorded, or 10m; repeatable)",
    )


def fleet_request(args: argparse.Namespace, path: str | None) -> FleetRequest:
    """Return the fleet and the inputs that the arguments name.

    A flag that the command does not declare has its default.

    Raises:
        UsageError: an argument is wrong, or ``path`` is a folder inside a fleet.
    """
    repo, below = getattr(args, "repo", None), getattr(args, "below", None)
    if repo is not None and path is not None:
        remedy = "pass the folder with --path DIR"
        raise UsageError("PATH and --repo cannot be used together", where=path, remedy=remedy)
    manifests = tuple(getattr(args, "manifests", ()))
    if manifests.count("-") + (getattr(args, "snapshot", None) == "-") > 1:
        raise UsageError("standard input can be read only once", where="-f", remedy="use files")
    return request_from(
        FleetRequest,
        args,
        path=path if repo is not None else fleet_folder(path, below),
        settings=_settings_of(args),
        replicas_percent=_replicas_percent(getattr(args, "replicas_percent", None) or "present"),
        is_instead=bool(manifests) and path is None and repo is None and below is None,
        cost_by=str(getattr(args, "cost_by", None) or ""),
        durations=tuple(map(_duration_of, getattr(args, "duration", ()))),
    )


def _duration_of(text: str) -> tuple[str, timedelta]:
    """Return the name of a CronJob and the duration of its pods.

    Raises:
        UsageError: it is not of the form ``cronjob/NAME=20m``.
    """
    from reconciler.model.duration import parse_duration

    name, _, span = text.partition("=")
    kind, slash, rest = name.partition("/")
    try:
        duration = parse_duration(span)
    except ValueError as error:
        raise UsageError(str(error), where="--duration") from error
    if kind.lower() != "cronjob" or not slash or not rest or duration <= timedelta(0):
        what = f"{quote_value(text)} is not a duration of a CronJob"
        raise UsageError(what, where="--duration", remedy="write cronjob/NAME=20m")
    return rest, duration


def _replicas_percent(text: str) -> int | None:
    """Return the share of the range of replicas that ``--replicas`` names, None for the present.

    Raises:
        UsageError: it is not one of its forms.
    """
    known = {"present": None, "min": 0, "max": 100}
    if text in known:
        return known[text]
    number = text.removesuffix("%")
    if number != text and number.isascii() and number.isdigit() and int(number[:4]) <= 100:
        return int(number)
    what = f"{quote_value(text)} is not a number of replicas"
    raise UsageError(what, where="--replicas", remedy="use present, min, max, or 0% to 100%")


def read_duration(text: str, flag: str) -> timedelta:
    """Return the duration in the value of ``flag``.

    Raises:
        UsageError: the text is not a duration.
    """
    from reconciler.model.duration import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(str(error), where=flag) from error


_PARTS: Final[dict[str, Callable[[argparse.Namespace], object]]] = {
    "StateRequest": lambda args: state_request(args, args.path),
    "FleetRequest": lambda args: fleet_request(args, args.path),
    "SweepRequest": sweep_request,
    "ReplayRequest": lambda args: request_from(ReplayRequest, args),
}
"""Type of a field, as it is written → the part of a request that has arguments of its own."""

_READERS: Final[dict[str, Callable[[Any, str], object]]] = {
    "tuple": lambda values, _: tuple(values),
    "frozenset": lambda values, _: frozenset(values),
    "timedelta": read_duration,
    "timedelta | None": read_duration,
    "datetime | None": read_time,
}
"""Type of a field, as it is written → what reads the argument; it is given its flag as well."""
