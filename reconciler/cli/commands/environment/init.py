"""``reconciler init``: create a fleet folder, also from Karpenter's YAML or a cluster.

It overwrites nothing: all files are written, or none. It does not execute what it reads.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from reconciler import build, exitcode
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.cli.output.progressline import show_progress
from reconciler.cli.parser import inputs
from reconciler.initialization.writing import NewFile, existing_files, write_new_files
from reconciler.model.diagnostics import Severity
from reconciler.model.errors import ReconcilerError, UsageError
from reconciler.model.settings import NEWEST
from reconciler.model.text.counting import format_list
from reconciler.model.text.quoting import quote_value
from reconciler.options import add_options, argument, option, repeated, switch
from reconciler.source.resource import CONFIG_FILES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reconciler.desired.fleet import SourceFile
    from reconciler.initialization.layout import FleetFile
    from reconciler.initialization.origins import FleetOrigin
    from reconciler.initialization.pipelines import CI, RepositoryFile
    from reconciler.model.diagnostics import Diagnostic

_CI: Final = ("github", "gitlab", "none")
_DEFAULT_REGION: Final = "us-east-1"
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_KARPENTER: Final = re.compile(
    rb"""^[ \t-]*+"?kind"?:[ \t]*+["']?(?:NodePool|EC2NodeClass|Provisioner|AWSNodeTemplate)\b""",
    re.MULTILINE,
)
_CLUSTER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""The name of a cluster, which is none if a template leaves a gap."""

_UNDECIDED: Final = frozenset({"duplicate-name", "migrated", "refused-object"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """The source of a new fleet, and its folder.

    ``folder`` is None if none was named; ``source`` is the folder or file of ``--from``.
    """

    folder: str | None = argument(
        "FOLDER",
        "folder to write (default: this one if there is no YAML in it, else ./fleet)",
        nargs="?",
    )
    source: str | None = option(
        "--from",
        "DIR",
        "take over Karpenter's YAML, rendered if need be, from a folder, a file, or - for stdin",
        exclusive="origin",
    )
    from_cluster: bool = switch(
        "--from-cluster", "take over Karpenter's objects in a cluster", exclusive="origin"
    )
    context: str | None = option(
        "--context", "NAME", "context of the kubeconfig, with --from-cluster"
    )
    name: str | None = option(
        "--name", "NAME", "name of the fleet, and of the cluster if it is unknown"
    )
    region: str | None = option("--region", "REGION", "AWS region, such as eu-central-1")
    ci: str | None = option("--ci", "SERVICE", f"CI service: {', '.join(_CI)}", choices=_CI)
    prefer: tuple[str, ...] = repeated(
        "--prefer",
        "PATH",
        "of several objects with one name, or overlays of one base, take over the one below PATH "
        "(repeatable)",
    )
    values: tuple[str, ...] = repeated(
        "--values",
        "FILE",
        "values of the chart that makes the nodes (repeatable, as with `helm template`)",
    )
    with_lock: bool = switch(
        "--no-lock", "do not look up images and prices for a lock file", default=True
    )

    def __post_init__(self) -> None:
        """Refuse wrong values, and flags without the one that they belong to.

        Raises:
            UsageError: a name or region is not valid, or a flag has no effect.
        """
        from reconciler.desired.settings.readers import read_name, read_region

        for flag, value, read in (
            ("--name", self.name, read_name),
            ("--region", self.region, read_region),
        ):
            try:
                if value is not None:
                    read(value)
            except ValueError as error:
                raise UsageError(str(error), where=flag) from error
        if self.context and not self.from_cluster:
            raise UsageError("is used only with --from-cluster", where="--context")
        if self.values and self.source is None:
            raise UsageError("is used only with --from", where="--values")


add_arguments = partial(add_options, InitRequest)
request_of = partial(inputs.request_from, InitRequest)


def run(request: InitRequest) -> int:
    """Write the fleet and report; 3 if something must be completed by hand.

    Raises:
        ReconcilerError: nothing can be read, or a file to write already exists.
    """
    from reconciler.initialization import layout, pipelines

    is_new = request.source is None and not request.from_cluster
    existing = _files_in(request.folder or ".") if is_new or request.folder is None else []
    folder = _target_folder(request, has_yaml=bool(existing))
    _expect_no_fleet(folder)
    if is_new:
        _expect_no_objects(request.folder or ".", existing)
    origin = _read_origin(request)
    choices: list[str] = []
    settings = _initial_settings(request, folder, origin, choices)
    files = _fleet_files(request, origin, settings)
    repository = pipelines.repository_of(folder)
    if request.ci:
        ci = pipelines.CI(request.ci)
    else:
        ci = pipelines.detect_ci(repository)
        choices.append(f"CI service {ci}: assumed; set it with --ci")
    new, other_files, advice = _new_files(folder, repository, files, ci)
    _expect_no_files([f for f in new if f.path in {file.path for file in files}])
    findings = _validate_files(folder, files)
    write_new_files(new)
    is_valid = not any(d.severity == "error" for d in findings)
    outcome = layout.InitOutcome(
        folder=folder,
        settings=settings,
        files=files,
        other_files=other_files,
        found=origin.found if origin is not None else None,
        findings=findings,
        choices=choices,
        advice=advice,
        lock=_write_lock(request, folder, is_valid=is_valid),
        next_commands=_next_commands(request, folder, is_valid=is_valid),
    )
    sys.stdout.write(layout.render(outcome))
    return exitcode.DONE if is_valid and not _has_undecided(origin) else exitcode.REFUSED


def _fleet_files(
    request: InitRequest, origin: FleetOrigin | None, settings: dict[str, object]
) -> list[FleetFile]:
    """Return the files of a fleet of what was found, or those that start a new one."""
    from reconciler.desired.placeholders import CLUSTER_NAME, REGION
    from reconciler.initialization import layout
    from reconciler.initialization.completion import complete

    name = str(settings["clusterName"])
    if origin is None:
        return layout.starter_files(name, settings)
    is_known = request.name is not None or "clusterName" in origin.found.settings
    known = {REGION: str(settings["aws.region"])}
    known |= {CLUSTER_NAME: name} if is_known else {}
    complete(origin.found, known, name)
    return layout.fleet_files(origin.found, settings)


def _has_undecided(origin: FleetOrigin | None) -> bool:
    """Return whether the user has to decide on the source, although the fleet is valid."""
    noted = () if origin is None else origin.found.notes
    return any(d.code in _UNDECIDED and d.severity == "error" for d in noted)


def _target_folder(request: InitRequest, *, has_yaml: bool) -> str:
    """Return the folder to write; ``has_yaml`` is whether this one has YAML."""
    if request.folder is not None:
        folder = request.folder
    else:
        folder = "fleet" if has_yaml or _is_inside(request.source, ".") else "."
    if _is_inside(request.source, folder):
        raise UsageError(
            f'"{request.source}" is inside the new fleet "{folder}", so every object would be '
            "defined twice",
            where="--from",
            remedy="name another folder, such as `reconciler init fleet`",
        )
    return folder


def _expect_no_objects(folder: str, files: Sequence[SourceFile]) -> None:
    """Refuse to start a new fleet in a fleet, or where ``files`` have Karpenter's objects.

    Raises:
        UsageError: it is one, or a file there has some.
    """
    _expect_no_fleet(folder)
    first = next((file.path for file in files if _KARPENTER.search(file.content)), None)
    if first is None:
        return
    new = "fleet" if folder != "fleet" else "another-folder"
    raise UsageError(
        f"{os.path.normpath(os.path.join(folder, first))} has Karpenter's objects already",
        where="FOLDER",
        remedy=f"nothing was written; take them over with `reconciler init {new} --from "
        f"{shlex.quote(folder)}`, or start a new fleet with `reconciler init {new}`",
    )


def _files_in(folder: str) -> list[SourceFile]:
    from reconciler.adapters.git.folder import read_folder

    return read_folder(folder)[0] if os.path.isdir(folder) else []


def _is_inside(source: str | None, folder: str) -> bool:
    if source in (None, "-"):
        return False
    above, below = os.path.realpath(folder), os.path.realpath(source)
    return below == above or below.startswith(above.rstrip(os.sep) + os.sep)


def _expect_no_fleet(folder: str) -> None:
    """Refuse a folder that is already a fleet, before anything is read.

    Raises:
        UsageError: it is one, or it is a file.
    """
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f'"{folder}" is a file', where="FOLDER", remedy="name a folder")
    for name in CONFIG_FILES:
        path = os.path.join(folder, name)
        if os.path.lexists(path):
            remedy = "nothing was written; name another folder, or remove the file"
            raise UsageError(f'"{path}" exists already', where="FOLDER", remedy=remedy)


def _read_origin(request: InitRequest) -> FleetOrigin | None:
    """Return what there is to take over, None for a new fleet.

    Raises:
        UnreadableError: there is no object of nodes.
    """
    from reconciler.initialization import origins

    if request.source is not None:
        found = origins.from_folder(request.source, request.prefer, request.region, request.values)
    elif request.from_cluster:
        with show_progress("Reading Karpenter's objects from the cluster"):
            found = origins.from_cluster(request.context)
    else:
        return None
    origins.expect_nodes(found, request.source)
    return found


def _initial_settings(
    request: InitRequest, folder: str, origin: FleetOrigin | None, choices: list[str]
) -> dict[str, object]:
    """Return the settings by dotted key: the name, the cluster, the region, and Karpenter's."""
    known = _stated_settings(origin, choices) if origin is not None else {}
    asks = origin is None and sys.stdin.isatty() and sys.stdout.isatty()
    name = request.name or _fleet_name(str(known.get("clusterName") or ""))
    if not name:
        name = _ask_value("fleet name", _default_name(folder), "--name", choices, asks=asks)
    stated = request.region or str(known.get("aws.region") or "")
    region = _known_region(stated, origin.region if origin is not None else "", choices)
    if not region:
        region = _ask_value("AWS region", _DEFAULT_REGION, "--region", choices, asks=asks)
    if "karpenter" not in known:
        choices.append(f"Karpenter {NEWEST}: assumed, the newest release that is known here")
    if "decide" in known:
        choices.append(
            "decide karpenter: Karpenter runs in the cluster, and plans show what it does next"
        )
    first = {
        "fleet": name,
        "clusterName": known.pop("clusterName", name),
        "aws.region": region,
        "karpenter": str(known.get("karpenter", NEWEST)),
    }
    return first | {key: value for key, value in known.items() if key not in first}


def _stated_settings(origin: FleetOrigin, choices: list[str]) -> dict[str, object]:
    """Return the settings of the source, without names in which templates leave a gap."""
    from reconciler.desired.settings.readers import is_region

    stated = origin.found.settings
    for key, is_name in (("clusterName", _CLUSTER.fullmatch), ("aws.region", is_region)):
        if key in stated and not is_name(str(stated[key])):
            choices.append(f"{key} {quote_value(stated.pop(key), 80)}: not a name, so not used")
    return dict(stated)


def _fleet_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")[:63].strip("-")


def _default_name(folder: str) -> str:
    name = os.path.basename(os.path.realpath(folder))
    if name in ("fleet", "."):
        name = os.path.basename(os.path.dirname(os.path.realpath(folder)))
    return _fleet_name(name) or "fleet"


def _known_region(stated: str, of_zones: str, choices: list[str]) -> str:
    """Return the region that is stated, else that of the zones in use or of the environment."""
    if stated:
        if of_zones not in ("", stated):
            choices.append(f"region {stated}, although the zones in use are those of {of_zones}")
        return stated
    if of_zones:
        choices.append(f"region {of_zones}: of the zones in use")
        return of_zones
    for variable in _REGION_VARIABLES:
        if os.environ.get(variable):
            choices.append(f"region {os.environ[variable]}: from {variable}")
            return os.environ[variable]
    return ""


def _ask_value(what: str, default: str, flag: str, choices: list[str], *, asks: bool) -> str:
    """Ask for a value, or record the choice of the default without a terminal."""
    from reconciler.desired.settings.readers import read_name, read_region

    read = read_name if flag == "--name" else read_region
    while asks:
        print(f"{what[:1].upper()}{what[1:]} [{default}]: ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            break
        try:
            return read(line.strip() or default)
        except ValueError as error:
            print(error)
    choices.append(f"{what} {default}: assumed; set it with {flag}")
    return default


def _new_files(
    folder: str, repository: str | None, files: Sequence[FleetFile], ci: CI
) -> tuple[list[NewFile], list[str], list[str]]:
    """Return the files to write, the names of those outside the fleet, and manual steps."""
    from reconciler.initialization import layout, pipelines

    top = repository or os.path.realpath(folder)
    within = os.path.relpath(os.path.realpath(folder), top)
    new = [NewFile(folder, file.path, file.content) for file in files]
    names: list[str] = []
    advice: list[str] = []
    ignore = NewFile(folder, layout.IGNORE, layout.ignore_file())
    if os.path.lexists(ignore.full_path):
        shown = os.path.normpath(os.path.join(folder, layout.IGNORE))
        advice.append(f"{shown} exists; add {', '.join(layout.IGNORED)}")
    else:
        new.append(ignore)
        names.append(os.path.normpath(os.path.join(folder, layout.IGNORE)))
    wanted: list[RepositoryFile] = [
        *pipelines.ci_files(ci, within.replace(os.sep, "/"), build.ref()),
        pipelines.pre_commit_file(within.replace(os.sep, "/")),
    ]
    for file_outside in wanted:
        file = NewFile(top, file_outside.path, file_outside.content.encode())
        if os.path.lexists(file.full_path):
            advice.append(f"{file_outside.path} exists; {file_outside.why_not}")
        else:
            new.append(file)
            full = os.path.realpath(file.full_path)
            names.append(full if os.path.isabs(folder) else os.path.relpath(full))
    return new, names, advice


def _expect_no_files(files: Sequence[NewFile]) -> None:
    found = existing_files(files)
    if found:
        raise UsageError(
            f"{format_list(found)} {'exists' if len(found) == 1 else 'exist'} already",
            where="FOLDER",
            remedy="nothing was written; name another folder, or remove what is there",
        )


def _validate_files(folder: str, files: Sequence[FleetFile]) -> list[Diagnostic]:
    """Return the findings of `validate` on the new and the existing files of the folder."""
    from reconciler.adapters.git.folder import is_fleet_file, read_folder
    from reconciler.desired.fleet import SourceFile, read_fleet

    existing: list[SourceFile] = []
    refused: list[Diagnostic] = []
    if os.path.isdir(folder):
        existing, refused = read_folder(folder)
    new = [SourceFile(f.path, f.content) for f in files if is_fleet_file(f.path)]
    _, findings = read_fleet([*existing, *new], unread=refused)
    return [d for d in findings if d.severity is not Severity.INFO and not _is_noted(d)]


def _is_noted(finding: Diagnostic) -> bool:
    """Return whether a finding repeats what the report lists for completion by hand."""
    from reconciler.desired.placeholders import CODE

    return finding.code == CODE and finding.severity == "warning"


def _write_lock(request: InitRequest, folder: str, *, is_valid: bool) -> str:
    """Write the lock file if AWS can be queried; return one line about it."""
    if not request.with_lock:
        return "reconciler.lock was not created (--no-lock)"
    remedy = f"run `reconciler lock {folder}` with access to AWS"
    if not is_valid:
        return "reconciler.lock was not created: the fleet has errors"
    if not _has_credentials():
        return f"reconciler.lock was not created: no AWS credentials; {remedy}"
    from reconciler.cli.commands.desired import lock

    try:
        lock.run(lock.LockRequest(fleet=FleetRequest(path=folder), output="text"))
    except ReconcilerError as error:
        return f"reconciler.lock was not created: {error}; {remedy}"
    return "reconciler.lock"


def _has_credentials() -> bool:
    """Return whether boto3 finds credentials without asking the instance's metadata service."""
    try:
        import boto3
    except ImportError:
        return False
    session = boto3.session.Session()
    providers = session._session.get_component("credential_provider")  # noqa: SLF001 - boto3 gives no other way to its botocore session
    providers.remove("iam-role")
    from botocore.exceptions import BotoCoreError

    try:
        return session.get_credentials() is not None
    except BotoCoreError:
        return False


def _next_commands(request: InitRequest, folder: str, *, is_valid: bool) -> list[str]:
    """Return the next commands: each works as printed."""
    path = "" if folder == "." else f" {shlex.quote(folder)}"
    if not is_valid:
        return [f"reconciler validate{path}"]
    if not request.from_cluster:
        return [f"reconciler plan{path} --set cluster=none" if _names_cluster() else
                f"reconciler plan{path}"]  # fmt: skip
    context = f" --context {shlex.quote(request.context)}" if request.context else ""
    return [
        f"reconciler snapshot{context} --out cluster.json",
        f"reconciler plan{path} --snapshot cluster.json",
    ]


def _names_cluster() -> bool:
    """Return whether the environment names a cluster, which `plan` would observe."""
    names: Mapping[str, str] = os.environ
    return any(names.get(name) for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"))
