"""The files of a new fleet folder, and the report of what ``init`` took over or left out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from reconciler._resources import resource_path
from reconciler.initialization.collection import Collection, sorted_objects
from reconciler.initialization.objects import SourceObject
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.json import nest
from reconciler.model.text.counting import format_count
from reconciler.model.text.visible import one_line
from reconciler.source.resource import VALIDATED_KINDS, schema_name

SCHEMAS: Final = ".schemas"
"""The folder with the schemas for editors; it is hidden, so no object is read there."""

CONFIG: Final = "reconciler.yaml"
IGNORE: Final = ".gitignore"
IGNORED: Final = (".reconciler/", "cluster.json", "plan.json")

_MODELINE: Final = "# yaml-language-server: $schema="
_SETTINGS_SCHEMA: Final = "reconciler.v1"
_SLUG: Final = re.compile(r"[^a-z0-9-]+")
_COMMENTS: Final[Mapping[str, str]] = {
    "fleet": "The name of this fleet: it is in the tags of every instance.",
    "clusterName": "The name of the EKS cluster, as in Karpenter's settings.",
    "aws": "The account is that of the credentials; only the region belongs in git.",
    "karpenter": "The release of Karpenter whose API and rules this fleet follows.",
    "featureGates": "Karpenter's feature gates; the others have Karpenter's defaults.",
    "interruptionQueue": "The SQS queue with EC2's interruption events.",
    "clusterEndpoint": "The API server that new nodes connect to.",
}
_MORE: Final = """\

# Further settings, each with its default:
# packing: default # cheapest packs for dollars instead of few large nodes
# consolidation: {search: default} # thorough also searches for larger sets of nodes
# interruptionQueue: "" # the SQS queue with EC2's interruption events
# maximumPerDay: "" # voluntary disruptions of a NodePool within 24 hours, such as 10%
"""
_HEAD: Final = """\
# The settings of this fleet. `reconciler config` shows all of them and where each comes from.
apiVersion: reconciler/v1
kind: Configuration
"""

_POOL: Final = """\
# The nodes that pods may be scheduled on. Every field: https://karpenter.sh/docs/concepts/nodepools/
apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: general
spec:
  template:
    spec:
      nodeClassRef:
        group: karpenter.k8s.aws
        kind: EC2NodeClass
        name: default
      requirements:
        - key: karpenter.sh/capacity-type
          operator: In
          values: [spot, on-demand]
        - key: kubernetes.io/arch
          operator: In
          values: [amd64, arm64]
        - key: kubernetes.io/os
          operator: In
          values: [linux]
        - key: karpenter.k8s.aws/instance-category
          operator: In
          values: [c, m, r]
        - key: karpenter.k8s.aws/instance-generation
          operator: Gt
          values: ["4"]
      expireAfter: 720h
  limits:
    cpu: 100
  disruption:
    consolidationPolicy: WhenEmptyOrUnderutilized
    consolidateAfter: 1m
    budgets:
      - nodes: 10%
"""
_CLASS: Final = """\
# How nodes are launched. Subnets and security groups are selected by their tags.
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata:
  name: default
spec:
  role: "KarpenterNodeRole-{name}"
  amiSelectorTerms:
    - alias: al2023@latest
  subnetSelectorTerms:
    - tags:
        karpenter.sh/discovery: "{name}"
  securityGroupSelectorTerms:
    - tags:
        karpenter.sh/discovery: "{name}"
"""
_WORKLOAD: Final = """\
# An example, so that the first plan shows something. A plan without a cluster is made from the
# workloads in this folder; replace this one by yours, or plan with a snapshot of your cluster.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: example
  namespace: default
spec:
  replicas: 6
  selector:
    matchLabels: {app: example}
  template:
    metadata:
      labels: {app: example}
    spec:
      containers:
        - name: example
          image: public.ecr.aws/eks-distro/kubernetes/pause:3.7
          resources:
            requests: {cpu: "1", memory: 1536Mi}
"""

_KINDS_MAX: Final = 8
_FILES_MAX: Final = 3
_ALIKE_MAX: Final = 3
_SUBJECTS_MAX: Final = 6
_KIND_AND_NAME: Final = 2

_FAILED: Final = " failed: "


class FleetFile(NamedTuple):
    """A file to write, relative to the fleet folder; ``item`` is the object in it."""

    path: str
    content: bytes
    item: SourceObject | None = None


def fleet_files(found: Collection, settings: Mapping[str, object]) -> list[FleetFile]:
    """Return the files of a fleet with the objects that were found."""
    files = [FleetFile(CONFIG, settings_file(settings))]
    used = {CONFIG}
    schemas = {_SETTINGS_SCHEMA}
    for item in sorted_objects(found):
        path = _unique_path(_path_of(item), used)
        used.add(path)
        text = _without_modeline(item.to_yaml())
        if item.kind in VALIDATED_KINDS:
            schemas.add(schema_name(item.kind))
            text = f"{_MODELINE}../{SCHEMAS}/{schema_name(item.kind)}.json\n{text}"
        files.append(FleetFile(path, text.encode(), item))
    return [*files, *_schema_files(sorted(schemas))]


def starter_files(name: str, settings: Mapping[str, object]) -> list[FleetFile]:
    """Return the files of a new fleet: a NodePool, its class, and an example workload."""
    schemas = ("ec2nodeclass.v1", "nodepool.v1")
    texts = (("class", schemas[0], _CLASS.format(name=name)), ("pool", schemas[1], _POOL))
    nodes = [
        FleetFile(f"nodes/{file}.yaml", f"{_MODELINE}../{SCHEMAS}/{schema}.json\n{text}".encode())
        for file, schema, text in texts
    ]
    workload = FleetFile("workloads/example.yaml", _WORKLOAD.encode())
    config = FleetFile(CONFIG, settings_file(settings))
    return [config, *nodes, workload, *_schema_files((*schemas, _SETTINGS_SCHEMA))]


def settings_file(settings: Mapping[str, object]) -> bytes:
    """Return ``reconciler.yaml`` with settings by dotted key, each explained."""
    from reconciler.source.plainyaml import dump

    parts = [f"{_MODELINE}{SCHEMAS}/{_SETTINGS_SCHEMA}.json\n", _HEAD]
    for key, value in nest(settings).items():
        comment = _COMMENTS.get(key)
        parts += [f"\n# {comment}\n"] if comment else ["\n"]
        parts.append(dump({key: value}))
    return "".join([*parts, _MORE]).encode()


def ignore_file() -> bytes:
    """Return the ``.gitignore`` of a fleet folder."""
    lines = ("# The recorded state, and what commands write", *IGNORED)
    return ("\n".join(lines) + "\n").encode()


def _schema_files(schemas: Sequence[str]) -> list[FleetFile]:
    from pathlib import Path

    return [
        FleetFile(
            f"{SCHEMAS}/{name}.json", Path(resource_path("schemas", f"{name}.json")).read_bytes()
        )
        for name in schemas
    ]


def _path_of(item: SourceObject) -> str:
    kind = item.kind.lower()
    name = _slug(item.name)
    if item.kind in VALIDATED_KINDS and item.kind != "CapacityBuffer":
        return f"nodes/{kind}-{name}.yaml"
    space = item.entry.namespace
    return f"workloads/{'' if space == 'default' else f'{_slug(space)}-'}{kind}-{name}.yaml"


def _slug(name: str) -> str:
    """Return a name in a form that is safe in a file name."""
    return _SLUG.sub("-", name.lower()).strip("-")[:100] or "unnamed"


def _unique_path(path: str, used: set[str]) -> str:
    number, stem = 2, path.removesuffix(".yaml")
    while path in used:
        path, number = f"{stem}-{number}.yaml", number + 1
    return path


def _without_modeline(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(_MODELINE))


_SHOWN_MAX = 200


class InitOutcome(NamedTuple):
    """The result of `init`, ready to be printed.

    ``choices`` are assumed values, ``advice`` are manual additions to existing files, ``lock`` is
    one line about the lock file, ``next_commands`` are the commands to run next.
    """

    folder: str
    settings: Mapping[str, object]
    files: Sequence[FleetFile]
    other_files: Sequence[str]
    found: Collection | None
    findings: Sequence[Diagnostic]
    choices: Sequence[str]
    advice: Sequence[str]
    lock: str
    next_commands: Sequence[str]

    @property
    def is_valid(self) -> bool:
        """Whether nothing has to be completed by hand before the fleet can be planned."""
        return not any(d.severity is Severity.ERROR for d in self.findings)


def render(outcome: InitOutcome) -> str:
    """Return the report as text."""
    name, region = outcome.settings["fleet"], outcome.settings["aws.region"]
    lines = [one_line(f"Fleet {name} ({region}) in {outcome.folder}")]
    lines += [f"  {one_line(choice)}" for choice in outcome.choices]
    lines += _taken_over_lines(outcome)
    if outcome.found is not None:
        undone = [d for d in outcome.found.notes if d.severity is not Severity.INFO]
        lines += _section("Complete by hand", undone)
    lines += _section("Findings", outcome.findings)
    if outcome.found is not None:
        lines += _left_out_lines(outcome.found)
    lines += _written_lines(outcome)
    lines += ["", *_next_lines(outcome)]
    return "\n".join(lines) + "\n"


def _line(indent: int, text: str) -> str:
    return " " * indent + one_line(text)


def _changes_by_object(notes: Iterable[Diagnostic]) -> dict[str, list[str]]:
    """Return what was changed in each object, by its kind and name."""
    changes: dict[str, list[str]] = {}
    for note in notes:
        if note.severity is Severity.INFO:
            head, _, what = note.message.partition(": ")
            path = f"{note.path}: " if note.path else ""
            changes.setdefault(head, []).append(f"{path}{what}")
    return changes


def _taken_over_lines(outcome: InitOutcome) -> Iterator[str]:
    if outcome.found is None:
        return
    changes = _changes_by_object(outcome.found.notes)
    items = [(file.path, file.item) for file in outcome.files if file.item is not None]
    yield ""
    yield f"Taken over ({len(items)})"
    for path, item in items[:_SHOWN_MAX]:
        name = f"{item.kind} {item.name}"
        yield _line(2, f"{path}: {name}, from {item.place}")
        for change in changes.get(name, ()):
            yield _line(6, change)
    if len(items) > _SHOWN_MAX:
        yield f"  … and {len(items) - _SHOWN_MAX} more"
    taken = sorted(outcome.found.settings)
    if taken:
        yield _line(2, f"reconciler.yaml: settings of Karpenter: {', '.join(taken)}")


def _left_out_lines(found: Collection) -> Iterator[str]:
    """Yield what was left out: what concerns nodes one by one, the rest by reason."""
    kinds, files = found.other_kinds, found.other_files
    count = len(found.left_out) + kinds.total() + len(files)
    if not count:
        return
    yield from _section("Left out", found.left_out) if found.left_out else ("", "Left out")
    if kinds:
        listed = ", ".join(f"{kind} ({n:,})" for kind, n in kinds.most_common(_KINDS_MAX))
        more = f" and {len(kinds) - _KINDS_MAX} more kinds" if len(kinds) > _KINDS_MAX else ""
        objects = format_count(kinds.total(), "object")
        yield _line(2, f"{objects} that no plan depends on: {listed}{more}")
    if files:
        shown = ", ".join(sorted(files)[:_FILES_MAX])
        more = ", …" if len(files) > _FILES_MAX else ""
        found_files = format_count(len(files), "file")
        yield _line(2, f"{found_files} that no plan depends on: {shown}{more}")


def _section(title: str, findings: Sequence[Diagnostic]) -> Iterator[str]:
    """Yield the findings; of many with one reason, the first and the names of the others."""
    if not findings:
        return
    yield ""
    yield f"{title} ({len(findings)})"
    groups: dict[tuple[str, str], list[Diagnostic]] = {}
    for finding in findings:
        reason = finding.hint if finding.code == "remote-source" else _failure(finding)
        groups.setdefault((finding.code, reason or str(len(groups))), []).append(finding)
    lines = [line for group in groups.values() for line in _group_lines(group)]
    yield from lines[:_SHOWN_MAX]
    if len(lines) > _SHOWN_MAX:
        yield f"  … and {len(lines) - _SHOWN_MAX} more"


def _group_lines(findings: Sequence[Diagnostic]) -> Iterator[str]:
    shown = findings if len(findings) <= _ALIKE_MAX else findings[:1]
    for finding in shown:
        where = f"{finding.place}: " if finding.place else ""
        path = f"{finding.path}: " if finding.path else ""
        hint = f" ({finding.hint})" if finding.hint else ""
        severity = "" if finding.code == "left-out" else f"{finding.severity}: "
        yield _line(2, f"{where}{severity}{path}{finding.message}{hint}")
    others = findings[len(shown) :]
    if others:
        names = [_subject(finding) for finding in others]
        more = ", …" if len(names) > _SUBJECTS_MAX else ""
        listed = ", ".join(names[:_SUBJECTS_MAX])
        yield _line(6, f"and {len(others)} more with this reason: {listed}{more}")


def _failure(finding: Diagnostic) -> str:
    """Return why a source could not be rendered; a chart of many releases fails in each of them."""
    return finding.message.partition(_FAILED)[2] if finding.code == "render-failed" else ""


def _subject(finding: Diagnostic) -> str:
    """Return what a finding concerns: what its message begins with, else its place."""
    if finding.code == "render-failed":
        return finding.message.partition(_FAILED)[0]
    subject, colon, _ = finding.message.partition(": ")
    return subject if colon and len(subject.split()) == _KIND_AND_NAME else str(finding.place)


def _written_lines(outcome: InitOutcome) -> Iterator[str]:
    shown = [f.path for f in outcome.files if f.item is None and not f.path.startswith(".schemas")]
    yield ""
    yield "Written"
    inside = (os.path.normpath(os.path.join(outcome.folder, path)) for path in shown)
    for path in (*inside, *outcome.other_files):
        yield _line(2, path)
    for line in outcome.advice:
        yield _line(2, f"not changed: {line}")
    yield _line(2, outcome.lock)


def _next_lines(outcome: InitOutcome) -> Iterator[str]:
    if not outcome.is_valid:
        yield "Correct the errors above in the new files, then run:"
    label = "Next: "
    for command in outcome.next_commands:
        yield f"{label}{one_line(command)}"
        label = "      "
