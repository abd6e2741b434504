"""The sources of the objects of a new fleet: a folder, a file, or a cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.git.folder import read_folder
from reconciler.adapters.kubernetes.kinds import Kind
from reconciler.assembly.inputs.files import read_start
from reconciler.assembly.inputs.manifests import read_manifests, shown_states
from reconciler.assembly.inputs.rendering import expanded_folder
from reconciler.catalog.regions import region_of_pools
from reconciler.desired.contents import seems_to_have_workload
from reconciler.desired.fleet import SourceFile
from reconciler.desired.migration import controller
from reconciler.desired.migration.controller import CONFIG_MAP
from reconciler.desired.sources.detection import AMBIGUOUS, UNLISTED, folder_of_one
from reconciler.desired.sources.requested import Purpose, RenderOptions
from reconciler.desired.sources.unread import AMBIGUOUS_WORKLOADS
from reconciler.desired.templated import has_control_flow
from reconciler.desired.terraform.environments import ASSUMED
from reconciler.desired.terraform.modules import DISABLED, FoundText
from reconciler.desired.terraform.rendered import CONDITION
from reconciler.desired.terraform.variables import SEVERAL
from reconciler.initialization.charts import (
    NO_CHARTS,
    ChartRenderings,
    charts_with_found_values,
    charts_with_values,
    read_values,
)
from reconciler.initialization.collection import Collection, collect
from reconciler.initialization.objects import SourceObject, objects_from_cluster, objects_in_file
from reconciler.initialization.templates import (
    TemplateObjects,
    read_templates,
    template_text,
    without_made,
)
from reconciler.model.decode import decode_json
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.model.json import JsonDict, as_text
from reconciler.model.settings import DecisionRules, Settings
from reconciler.model.text.counting import format_count
from reconciler.source.document import LIMITS
from reconciler.source.resource import CONFIG_FILES, LOCK_FILE
from reconciler.source.schema import value_at

if TYPE_CHECKING:
    from reconciler.adapters.kubernetes.api import Api

_TEMPLATED: Final = b"{{"
_UNQUOTED: Final = re.compile(rb"^[ \t-]*+(?:(?<=[ \t])\{\{|[^\s#\"']++[ \t]++\{\{)", re.MULTILINE)
_RENDER: Final = "render the template first, such as with `helm template` or `envsubst`"
_REGION: Final = "topology.kubernetes.io/region"
_NODES: Final = "/api/v1/nodes"

_CAUSES: Final = frozenset(
    {
        "empty-chart",
        "left-out",
        "missing-tool",
        "render-failed",
        "remote-source",
        "template",
        "missing-source",
        "outside-source",
        "plugin-source",
    }
)
"""Findings that can be the reason why no node was found."""
_OF_NODES: Final = re.compile(
    r"node ?-?(?:pool|class|template)|provisioner|karpenter", re.IGNORECASE
)

_TO_COMPLETE: Final = ("name-reference", ASSUMED, CONDITION, DISABLED, SEVERAL)
_RELEVANT: Final = (
    b"NodePool",
    b"EC2NodeClass",
    b"NodeClass",
    b"Provisioner",
    b"AWSNodeTemplate",
    b"NodeOverlay",
)


class FleetOrigin(NamedTuple):
    """The objects from one source: the number of files or kinds read, and the region, if known.

    ``has_disabled`` is whether a resource of Terraform has no instances, or a file of nodes is in
    no kustomization.
    """

    found: Collection
    sources: int
    region: str = ""
    has_disabled: bool = False


def from_folder(
    path: str, prefer: Sequence[str] = (), region: str | None = None, values: Sequence[str] = ()
) -> FleetOrigin:
    """Return the objects of a folder of YAML and JSON files, of one file, or of stdin (``-``).

    Kustomizations, charts, and what Flux and Argo CD point at are rendered. ``region`` is the
    fleet's if it is not the one that the files state, ``values`` are files with the values of
    charts of nodes. Only if nothing else makes nodes, resources of Terraform that are switched off
    by default and files that no kustomization lists are taken over, and charts are rendered with
    values that are found elsewhere.

    Raises:
        UnreadableError: it cannot be read.
        UsageError: one of several overlays, of several objects of one name, or of several files
            with values has to be named.
    """
    is_folder = path != "-" and os.path.isdir(path)
    if values:
        if not is_folder:
            raise UsageError("is used only with a folder", where="--values")
        charts = charts_with_values(path, _read_files(path)[0], read_values(values))
        return _read_folder(path, prefer, region, charts=charts)
    origin = _read_folder(path, prefer, region)
    if origin.found.of_kind("NodePool"):
        return origin
    if origin.has_disabled:
        disabled = _read_folder(path, prefer, region, takes_disabled=True)
        if disabled.found.of_kind("NodePool"):
            return disabled
    charts = charts_with_found_values(path, _read_files(path)[0]) if is_folder else NO_CHARTS
    return _read_folder(path, prefer, region, charts=charts) if charts.renderings else origin


def _read_folder(
    path: str,
    prefer: Sequence[str],
    region: str | None,
    *,
    takes_disabled: bool = False,
    charts: ChartRenderings = NO_CHARTS,
) -> FleetOrigin:
    files, refused = _read_files(path)
    files, shown = shown_states(files)
    expanded = _Expanded(files, refused, shown)
    if path != "-" and os.path.isdir(path):
        templates = read_templates(path, prefer, region, takes_disabled=takes_disabled)
        wanted = RenderOptions((*templates.releases, *charts.renderings), prefer, Purpose.TAKE_OVER)
        expanded = _expand(path, expanded, templates, wanted, takes_disabled=takes_disabled)
    items, unread, other_files = _read_objects(expanded.files)
    notes = [finding for finding in expanded.refused if finding.code in _TO_COMPLETE]
    notes += [_to_prefer(f) for f in expanded.refused if f.code == AMBIGUOUS_WORKLOADS]
    handled = (*_TO_COMPLETE, AMBIGUOUS_WORKLOADS)
    refused = [finding for finding in expanded.refused if finding.code not in handled]
    found = collect(items, prefer)
    found.left_out[:0] = dict.fromkeys(map(_as_warning, [*refused, *unread]))
    found.notes += [*charts.notes, *notes]
    found.settings = {**expanded.settings, **found.settings}
    found.other_files |= other_files - {item.place.file for item in found.items}
    return FleetOrigin(found, len(files), _region_of(found), expanded.has_disabled)


class _Expanded(NamedTuple):
    """The files of a source with what they render to, findings, and settings that they state."""

    files: Sequence[SourceFile]
    refused: Sequence[Diagnostic]
    settings: Mapping[str, object]
    has_disabled: bool = False


def _expand(
    path: str,
    given: _Expanded,
    templates: TemplateObjects,
    wanted: RenderOptions,
    *,
    takes_disabled: bool,
) -> _Expanded:
    """Return the files of a folder with those that its sources and ``templates`` make."""
    files, refused = expanded_folder(path, given.files, given.refused, wanted)
    _expect_one_overlay(path, refused)
    unlisted = {f.place.file for f in refused if f.code == UNLISTED and f.place is not None}
    if takes_disabled:
        files = [*files, *(f for f in given.files if f.path in unlisted)]
        refused = [_taken_over(f) if f.code == UNLISTED else f for f in refused]
    files = [f for f in files if f.path not in templates.used] + templates.files
    unused, left = without_made(templates.unused, files)
    return _Expanded(
        [*files, *unused],
        [*refused, *templates.findings, *left],
        {**given.settings, **templates.settings},
        templates.has_disabled or bool(unlisted),
    )


def _read_objects(
    files: Iterable[SourceFile],
) -> tuple[list[SourceObject], list[Diagnostic], set[str]]:
    """Return the objects of files, findings, and the files that are not about nodes."""
    items: list[SourceObject] = []
    unread: list[Diagnostic] = []
    other_files: set[str] = set()
    for file in files:
        if file.path in (LOCK_FILE, *CONFIG_FILES):
            continue
        objects, findings = _objects_with_placeholders(file)
        items += objects
        if any(word in file.content for word in _RELEVANT):
            unread += [_explain_template(file, finding) for finding in findings]
        elif findings and seems_to_have_workload(file.content):
            unread.append(_explain_template(file, findings[0]))
        elif findings:
            other_files.add(file.path)
    return items, unread, other_files


def _likely_cause(findings: Sequence[Diagnostic]) -> Diagnostic | None:
    """Return the finding that explains best why objects of nodes are missing."""
    causes = [finding for finding in findings if finding.code in _CAUSES] or findings
    of_nodes = (finding for finding in causes if _OF_NODES.search(str(finding)))
    return next(of_nodes, causes[0] if causes else None)


def expect_nodes(origin: FleetOrigin, path: str | None) -> None:
    """Refuse a source without an object of nodes; ``path`` is None for a cluster.

    Raises:
        UnreadableError: there is none, with the most likely reason.
    """
    if origin.found.of_kind("NodePool", "EC2NodeClass"):
        return
    count = format_count(origin.sources, "file" if path else "kind")
    likely = _likely_cause(origin.found.left_out)
    first = f"; the first finding is: {likely}" if likely is not None else ""
    raise UnreadableError(
        f"no NodePool, EC2NodeClass, Provisioner or AWSNodeTemplate in {count}{first}",
        where=path or "the cluster",
        remedy="nothing was written; without --from, `reconciler init` starts a new fleet",
    )


def _objects_with_placeholders(file: SourceFile) -> tuple[list[SourceObject], list[Diagnostic]]:
    """Return the objects of a file, in which placeholders without quotes may stand.

    YAML alone reads ``{{ name }}`` as a mapping of a mapping, without an error.
    """
    objects, findings = objects_in_file(file)
    is_plain = type(file) is SourceFile and not has_control_flow(file.content)
    if not is_plain or not (findings or _UNQUOTED.search(file.content)):
        return objects, findings
    text = file.content.decode("utf-8", "replace")
    retried, left = objects_in_file(template_text(FoundText(file.path, 1, text)))
    return (retried, []) if retried and not left else (objects, findings)


def _taken_over(finding: Diagnostic) -> Diagnostic:
    """Return the finding on a file that no kustomization lists, where it is read all the same."""
    message = "is not listed in the kustomization.yaml of its folder; it is taken over all the same"
    return replace(finding, code=DISABLED, message=message, hint="list it there, or remove it")


def _expect_one_overlay(path: str, findings: Sequence[Diagnostic]) -> None:
    for finding in findings:
        if finding.code == AMBIGUOUS:
            first = folder_of_one(finding.folders)
            raise UsageError(
                finding.message,
                where="--from",
                remedy="nothing was written; pass one of them, such as --from "
                f"{os.path.join(path, first)}, or keep the rest of the folder and choose one, such "
                f"as --prefer {first}",
            )


def _to_prefer(finding: Diagnostic) -> Diagnostic:
    """Return the finding on overlays of workloads with the option that chooses one."""
    first = folder_of_one(finding.folders)
    hint = f"none is taken over; name one, such as --prefer {first}"
    return replace(finding, severity=Severity.WARNING, hint=hint)


def _read_files(path: str) -> tuple[list[SourceFile], list[Diagnostic]]:
    if path == "-":
        return list(read_manifests((path,))), []
    if os.path.isfile(path):
        return [SourceFile(os.path.basename(path), read_start(path, LIMITS.bytes_max))], []
    if not os.path.exists(path):
        remedy = "pass the folder with Karpenter's YAML"
        raise UnreadableError(f'folder "{path}" does not exist', where="--from", remedy=remedy)
    return read_folder(path)


def _as_warning(finding: Diagnostic) -> Diagnostic:
    """Return the finding on an omitted file as a warning: it does not make the fleet invalid."""
    return Diagnostic(
        Severity.WARNING, finding.code, finding.message, finding.place, finding.path, finding.hint
    )


def _explain_template(file: SourceFile, finding: Diagnostic) -> Diagnostic:
    if _TEMPLATED not in file.content or finding.code == "merge-conflict":
        return finding
    message = f"is a template ({{{{ … }}}}) and not YAML: {finding.message}"
    return Diagnostic(finding.severity, "template", message, finding.place, hint=_RENDER)


def _region_of(found: Collection) -> str:
    """Return the region of the zones that NodePools require, empty if it is none or several."""
    return region_of_pools(pool.data for pool in found.of_kind("NodePool"))


def from_cluster(context: str | None) -> FleetOrigin:
    """Return Karpenter's objects in the cluster that the kubeconfig names, and its settings.

    Raises:
        ClusterError, UsageError: the cluster cannot be found or read.
    """
    from reconciler.assembly.cluster import api_of

    api = api_of(Settings(kube_context=context or ""), SystemClock())
    objects, kinds, unread = _list_objects(api)
    runs = any(controller.is_running(item) for item in objects)
    found = collect(objects_from_cluster(objects), any_provider=runs)
    if runs:
        found.settings["decide"] = DecisionRules.KARPENTER.value
    for message in unread:
        found.leave_out(None, message, "settings that it holds have to be written by hand")
    return FleetOrigin(found, kinds, _region_of(found) or _region_of_nodes(api))


def _list_objects(api: Api) -> tuple[list[JsonDict], int, list[str]]:
    """Return the objects, the number of kinds that were read, and the kinds that RBAC forbids."""
    from reconciler.adapters.kubernetes.api import FORBIDDEN, ApiError

    objects: list[JsonDict] = []
    unread: list[str] = []
    count = 0
    for alternatives in _kinds():
        for kind in alternatives:
            count += 1
            found = _objects_of(api, kind)
            objects += found
            if found:
                break
    for kind, name in _settings_kinds():
        try:
            objects += _objects_of(api, kind, f"metadata.name={name}")
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            unread.append(f"{kind.kind} {name} may not be read: {error.message}")
    return objects, count, unread


def _kinds() -> tuple[tuple[Kind, ...], ...]:
    """Return the kinds to take over, each in the newest version that has objects."""
    ours, aws = "karpenter.sh", "karpenter.k8s.aws"

    def versions(kind: str, resource: str, group: str, *names: str) -> tuple[Kind, ...]:
        return tuple(Kind(kind, resource, group, name, optional=True) for name in names)

    return (
        versions("EC2NodeClass", "ec2nodeclasses", aws, "v1", "v1beta1"),
        versions("AWSNodeTemplate", "awsnodetemplates", aws, "v1alpha1"),
        versions("NodePool", "nodepools", ours, "v1", "v1beta1"),
        versions("Provisioner", "provisioners", ours, "v1alpha5"),
        versions("NodeOverlay", "nodeoverlays", ours, "v1alpha1"),
    )


def _settings_kinds() -> tuple[tuple[Kind, str], ...]:
    return (
        (Kind("Deployment", "deployments", "apps"), "karpenter"),
        (Kind("ConfigMap", "configmaps"), CONFIG_MAP),
    )


def _objects_of(api: Api, kind: Kind, selector: str = "") -> list[JsonDict]:
    from reconciler.adapters.kubernetes.api import list_items

    header = {"apiVersion": kind.api_version, "kind": kind.kind}
    return [{**header, **kind.decode(raw)} for raw in list_items(api, kind, selector)]


def _region_of_nodes(api: Api) -> str:
    """Return the region in the labels of a node, empty if no node can be read."""
    import msgspec

    from reconciler.adapters.kubernetes.api import ApiError

    try:
        page = decode_json(api.call("GET", _NODES, {"limit": "1"}))
    except (ApiError, msgspec.MsgspecError):
        return ""
    return as_text(value_at(page, ("items", 0, "metadata", "labels", _REGION)))
