"""Reads the inputs of a plan: the fleet, the cluster, the catalog, the settings.

Shared by every command that plans. Anything unreadable stops the command: unknown is not empty.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reconciler.assembly.emptyfolder import migration_advice, read_fleet_source, with_place_of_nodes
from reconciler.assembly.inputs import operatorfile
from reconciler.assembly.inputs.files import clones_folder
from reconciler.assembly.inputs.manifests import leaving_objects, with_manifests
from reconciler.desired.fleet import read_fleet
from reconciler.desired.placeholders import CLUSTER_NAME, CODE, REGION
from reconciler.desired.settings.keys import environment_name
from reconciler.desired.settings.layers import Layer, resolve, setting_variables
from reconciler.desired.sources.requested import Purpose, RenderOptions
from reconciler.desired.sources.unread import LEFT_OUT, ReadBefore, read_before
from reconciler.model.decision.policy import PolicySource
from reconciler.model.diagnostics import Severity
from reconciler.model.errors import InvalidFleetError, MissingFleetError, UsageError
from reconciler.model.text.paths import is_below
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.visible import encodable
from reconciler.source.resource import CONFIG_FILES

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from reconciler.adapters.git.revision import GitRevision
    from reconciler.adapters.git.source import Source, SourceContent
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.catalog.catalog import Catalog
    from reconciler.desired.fleet import Fleet, SourceFile
    from reconciler.desired.settings.layers import OperatorFile, Resolved
    from reconciler.model.decision.policy import Policy
    from reconciler.model.diagnostics import Diagnostic
    from reconciler.model.settings import KarpenterVersion
    from reconciler.plan.value.plan import InputDigests, Revision

_ACCESS_SETTINGS: Final = frozenset(
    {
        "state",
        "fleet",  # compared by its name
        "kubernetes.kubeconfig",
        "kubernetes.context",
        "kubernetes.timeout",
        "kubernetes.watch",
        "kubernetes.allowKarpenter",
        "kubernetes.resyncInterval",
        "kubernetes.staleAfter",
        "aws.endpointUrl",
        "aws.roleArn",
        "aws.externalId",
        "aws.sessionName",
    }
)


class SourceFiles(NamedTuple):
    """The files of a revision, what was refused among them, and which revision it is.

    ``karpenter`` is the release of Karpenter that the user states in place of the files, and
    ``manifests`` are the files that the user passed by name. ``folder`` is that on disk, if any.
    ``known`` are the values of placeholders that the operator's settings give. ``committed_at`` is
    the time of the commit, None unless the request takes its time from there. ``title`` is its
    subject with its author, empty where the commit was not read.
    """

    files: Sequence[SourceFile]
    findings: tuple[Diagnostic, ...]
    revision: Revision
    karpenter: KarpenterVersion | None = None
    known: Mapping[str, str] | None = None
    committed_at: datetime | None = None
    title: str = ""
    manifests: tuple[str, ...] = ()
    folder: str = ""


def read_source(request: FleetRequest) -> SourceFiles:
    """Return the files of the fleet.

    Raises:
        UsageError: a ref does not exist.
        UnreadableError: there is nothing to read.
    """
    from reconciler.adapters.git.source import WorkingTree, expand_folder, read_working_tree
    from reconciler.assembly.inputs.rendering import expansion
    from reconciler.plan.value.plan import Revision

    source = source_of(request)
    purpose = Purpose.BASE if request.is_base else Purpose.PLAN
    expand = expansion(source, RenderOptions(purpose=purpose))
    is_partial = request.may_be_empty or request.is_instead
    if request.is_removed:
        found = _remains_of_removed(request)
    elif is_partial and isinstance(source, WorkingTree):
        found = read_working_tree(source.path)
        if not request.is_instead:
            found = expand_folder(found, source.path, expand)
    else:
        found = read_fleet_source(source, expand)
    inputs = with_manifests(
        found.files, found.diagnostics, request.manifests, is_instead=request.is_instead
    )
    files = _read_as_base(request, inputs[0]).files if request.is_base else inputs[0]
    at = found.revision
    repo, path = at.repo and encodable(at.repo), at.path and encodable(at.path)
    revision = Revision(head=at.head, repo=repo, path=path, dirty=at.dirty)
    known = known_values(layers_of(request))
    karpenter = stated_karpenter(request.settings)
    return SourceFiles(
        files,
        tuple(inputs[1]),
        revision,
        karpenter,
        known,
        _commit_time(request, at),
        at.title,
        tuple(request.manifests),
        source.path if isinstance(source, WorkingTree) else "",
    )


def _commit_time(request: FleetRequest, at: GitRevision) -> datetime | None:
    """Return the time of the planned commit, if the plan takes its time from there."""
    if not request.is_at_commit_time or at.head is None:
        return None
    if at.committed_at is not None:
        return at.committed_at
    from reconciler.adapters.git.revision import commit_time

    return commit_time(request.path or ".", at.head)


def stated_karpenter(flags: Sequence[str]) -> KarpenterVersion | None:
    """Return the release of Karpenter that flags or the environment state, None if they do not.

    Raises:
        UsageError: a setting among them is wrong.
    """
    variable = environment_name("karpenter")
    stated = {variable: os.environ[variable]} if variable in os.environ else {}
    resolved = resolve({}, stated, flags)
    is_stated = resolved.origins["karpenter"].layer != Layer.DEFAULT
    return resolved.settings.karpenter if is_stated else None


def _remains_of_removed(request: FleetRequest) -> SourceContent:
    """Return the settings of the base, as all that is left of a fleet whose folder is gone."""
    from reconciler.adapters.git.revision import working_revision
    from reconciler.adapters.git.source import SourceContent, read

    found = read(source_of(request.at_base))
    files = tuple(file for file in found.files if file.path in CONFIG_FILES)
    return SourceContent(files, (), working_revision(request.path or ".", ()))


def known_values(layers: SettingLayers) -> dict[str, str]:
    """Return the values of placeholders that settings outside the repository give."""
    resolved = resolve(
        {}, layers.environment, layers.flags, fleet=layers.fleet, operator=layers.operator
    )
    values = {CLUSTER_NAME: resolved.settings.cluster_name, REGION: resolved.settings.region}
    keys = {CLUSTER_NAME: "clusterName", REGION: "aws.region"}
    return {
        name: value
        for name, value in values.items()
        if value and resolved.origins[keys[name]].layer is not Layer.DEFAULT
    }


def source_of(request: FleetRequest, ref: str | None = None) -> Source:
    """Return the source of the desired state; ``ref`` overrides the one of the request."""
    from reconciler.adapters.git.source import AtRef, Remote, WorkingTree

    ref = ref or request.ref
    if request.repo is not None:
        return Remote(
            request.repo, clones_folder(request.state), ref or "HEAD", request.below or "."
        )
    path = request.path or "."
    if request.below:
        path = os.path.join(path, request.below)
    return AtRef(path, ref) if ref else WorkingTree(path)


def stated_durations(request: FleetRequest, fleet: Fleet) -> dict[str, timedelta]:
    """Return the durations of CronJobs that ``--duration`` states.

    Raises:
        UsageError: one names no CronJob.
    """
    from reconciler.desired.workloads.cronjobs import cron_jobs

    known = dict(request.durations)
    names = {name for cron in cron_jobs(fleet, {}) for name in (cron.key, cron.resource.name)}
    for name in known.keys() - names:
        what = f"CronJob {quote_value(name)} not found in this folder"
        raise UsageError(what, where="--duration", remedy="name a CronJob that is not suspended")
    return known


class Base(NamedTuple):
    """The commit of ``--base``, its objects and policies, and its fleet, or what is wrong there.

    ``is_missing`` is whether it has no file of the fleet, ``read`` what it was read from, and
    ``migrated_from`` the older versions of the API that it has.
    """

    head: str | None
    objects: tuple[dict[str, Any], ...]
    fleet: Fleet | None
    policies: tuple[Policy, ...] = ()
    errors: tuple[Diagnostic, ...] = ()
    is_missing: bool = False
    read: ReadBefore | None = None
    migrated_from: tuple[str, ...] = ()


def read_base(request: FleetRequest) -> Base | None:
    """Return what is at ``--base``, None without it.

    An invalid base can still be compared with: the parts that cannot be read are missing.
    """
    if request.base is None:
        return None
    from reconciler.adapters.git.source import head_of, read
    from reconciler.assembly.inputs.rendering import expansion
    from reconciler.desired.objects import file_objects
    from reconciler.desired.sources.rendered import RenderedFile

    source = source_of(request.at_base)
    try:
        found = read(source, expansion(source, RenderOptions(purpose=Purpose.BASE)))
    except MissingFleetError:
        return Base(head_of(source), (), None, is_missing=True)
    files, _ = with_manifests(found.files, (), request.manifests, is_instead=request.is_instead)
    base = _read_as_base(request, files)
    fleet = base.fleet
    both = (*found.diagnostics, *base.findings)
    errors = tuple(finding for finding in both if finding.severity is Severity.ERROR)
    rendered = [file.path for file in files if isinstance(file, RenderedFile)]
    return Base(
        found.revision.head,
        (*(r.data for r in fleet.resources), *file_objects(fleet)),
        None if errors else fleet,
        tuple(replace(policy, source=PolicySource.BASE) for policy in fleet.policies),
        errors,
        read=None if errors else read_before(rendered, fleet.workloads, both),
        migrated_from=base.migrated_from,
    )


class _ReadBase(NamedTuple):
    """The fleet in the files of a base, with ``migrated_from`` that of their migration."""

    files: Sequence[SourceFile]
    fleet: Fleet
    findings: tuple[Diagnostic, ...]
    migrated_from: tuple[str, ...] = ()


def _read_as_base(request: FleetRequest, files: Sequence[SourceFile]) -> _ReadBase:
    """Return the fleet in the files of a base; those of a former API only, as their migration."""
    fleet, findings = _read_files(request, files)
    codes = {d.code for d in findings if d.severity is Severity.ERROR}
    if codes.isdisjoint(("old-version", "old-spelling")):
        return _ReadBase(files, fleet, findings)
    from reconciler.desired.migration.revision import migrate_files

    migrated = migrate_files(files)
    versions = migrated.versions or ("v1 with former spellings",)
    return _ReadBase(migrated.files, *_read_files(request, migrated.files), versions)


def _read_files(
    request: FleetRequest, files: Sequence[SourceFile]
) -> tuple[Fleet, tuple[Diagnostic, ...]]:
    return read_fleet(
        files,
        any_class=True,
        allow_empty=True,
        karpenter=stated_karpenter(request.settings),
        known=known_values(layers_of(request)),
        leaving=leaving_objects(files, request.manifests),
    )


def read_desired(
    source: SourceFiles, *, any_class: bool, allow_empty: bool = False
) -> tuple[Fleet, tuple[Diagnostic, ...]]:
    """Return the fleet of a revision and its findings that are not errors.

    Raises:
        InvalidFleetError: there is an error among them.
    """
    fleet, findings = read_fleet(
        source.files,
        unread=source.findings,
        any_class=any_class,
        allow_empty=allow_empty,
        karpenter=source.karpenter,
        known=source.known,
        leaving=leaving_objects(source.files, source.manifests),
    )
    if source.folder:
        findings = with_place_of_nodes(findings, source.folder)
    return fleet, without_errors(findings, _advice(source, fleet, findings))


def _advice(source: SourceFiles, fleet: Fleet, findings: Sequence[Diagnostic]) -> str:
    """Return what may be behind the errors of a fleet, else ``""``.

    An empty value in a chart is an error of the API, which names only the field.
    """
    unset = next((found for found in findings if found.code == "unset-values"), None)
    if unset is not None:
        return f"{unset.message}: {unset.hint}"
    return _folder_advice(source, fleet, findings) or migration_advice(
        source.files, source.folder, findings
    )


def _folder_of_pools(source: SourceFiles, fleet: Fleet) -> str:
    """Return the folder that has every NodePool, ``""`` if that is the complete one."""
    paths = {file.path for file in source.files}
    folder = os.path.commonpath([_source_folder(pool.file, paths) for pool in fleet.node_pools])
    others = (f.path for f in source.files if b"kind: NodePool" in f.content)
    return folder if all(is_below(path, folder) for path in others) else ""


def _folder_advice(source: SourceFiles, fleet: Fleet, findings: Sequence[Diagnostic]) -> str:
    """Return which folder can be planned alone if all errors are outside of it, else ``""``.

    A repository of many applications often has something in one of them that cannot be read.
    """
    places = [d.place for d in findings if d.severity is Severity.ERROR]
    if not places or not fleet.node_pools:
        return ""
    folder = _folder_of_pools(source, fleet)
    if not folder or any(p is None or is_below(p.file, folder) for p in places):
        return ""
    return f"all NodePools are in {folder}, which can be passed as PATH"


def _source_folder(file: str, paths: Collection[str]) -> str:
    """Return the folder that a file is read from: its own, or that of its chart.

    It is ``""`` for the base of an overlay, which is another fleet without the overlay.
    """
    if file in paths:
        return os.path.dirname(file)
    return max((path for path in paths if file.startswith(f"{path}/")), key=len, default="")


def desired_fleet(
    request: FleetRequest, *, any_class: bool = False, allow_empty: bool = False
) -> Fleet:
    """Return the fleet that a request names, for what needs no more of its revision.

    Raises:
        InvalidFleetError: there is an error in its files.
        UsageError: a ref does not exist.
        UnreadableError: there is nothing to read.
    """
    source = read_source(request)
    return read_desired(source, any_class=any_class, allow_empty=allow_empty)[0]


def expect_complete(findings: Iterable[Diagnostic]) -> None:
    """Refuse a fleet with placeholders, or without some sources or workloads that it may have.

    It can be planned, but not acted on.

    Raises:
        InvalidFleetError: it has some.
    """
    codes = {CODE, *LEFT_OUT}
    left = [replace(d, severity=Severity.ERROR) for d in findings if d.code in codes]
    if left:
        raise InvalidFleetError(left)


def without_errors(findings: Iterable[Diagnostic], advice: str = "") -> tuple[Diagnostic, ...]:
    """Return the findings in order, if none of them is an error.

    Raises:
        InvalidFleetError: one is; it carries them all, and the advice.
    """
    every = tuple(sorted(findings, key=lambda d: d.order))
    if any(d.severity is Severity.ERROR for d in every):
        raise InvalidFleetError(every, advice)
    return every


class SettingLayers(NamedTuple):
    """The sources of settings besides the fleet's own file, the same for all its revisions.

    ``environment`` contains only settings. ``fleet`` is the default name of the fleet.
    """

    environment: dict[str, str]
    flags: tuple[str, ...]
    fleet: str
    operator: OperatorFile | None

    def resolve(self, fleet: Fleet) -> Resolved:
        """Return the effective settings of a fleet."""
        from reconciler.catalog.regions import region_of_pools

        return resolve(
            fleet.config,
            self.environment,
            self.flags,
            fleet=self.fleet,
            region=region_of_pools(pool.data for pool in fleet.node_pools),
            operator=self.operator,
        )


def layers_of(request: FleetRequest) -> SettingLayers:
    """Return the layers of a request; ``--state`` counts as a flag of the same name."""
    state = [f"state={request.state}"] if request.state else []
    folder = None if request.repo is not None else request.path or "."
    return SettingLayers(
        setting_variables(os.environ),
        (*state, *request.settings),
        fleet_name(request),
        operatorfile.read_operator_file(request.config, folder),
    )


def settings_of(request: FleetRequest, fleet: Fleet) -> Resolved:
    """Return the effective settings."""
    return layers_of(request).resolve(fleet)


def fleet_name(request: FleetRequest) -> str:
    """Return the default name of a fleet: that of its folder, or of its repository."""
    if request.repo is not None:
        address: str = request.below or request.repo
        return encodable(address.rstrip("/").rpartition("/")[2].removesuffix(".git"))
    folder = os.path.realpath(os.path.join(request.path or ".", request.below or "."))
    return encodable(os.path.basename(folder))


def digests_of(fleet: Fleet, observed: bytes, catalog: Catalog, resolved: Resolved) -> InputDigests:
    """Return a digest of each input; comments and the order of files do not change it.

    Settings for access to the account, the cluster and the state are not an input: the user who
    applies a plan often has other credentials than the one who made it. The input ``engine`` is
    the release: with the commit, names and choices among equals would change each time.
    """
    import msgspec

    from reconciler import build
    from reconciler.plan.value.plan import InputDigests, input_digest

    objects = [(r.kind, r.namespace, r.name, r.data) for r in fleet.resources]
    kinds = fleet.config.get("workloadKinds")
    values = {k: v for k, v in resolved.values.items() if k not in _ACCESS_SETTINGS}
    return InputDigests(
        git=input_digest(
            msgspec.json.encode(objects, order="sorted"),
            *((fleet.lock.digest.encode(),) if fleet.lock is not None else ()),
            *((msgspec.json.encode(kinds, order="sorted"),) if kinds else ()),
        ),
        snapshot=input_digest(observed),
        catalog=input_digest(catalog.digest.encode()),
        settings=input_digest(msgspec.json.encode(values, order="sorted")),
        engine=build.release(),
    )
