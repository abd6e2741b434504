"""The files of a new fleet folder: one for each object, the settings, the schemas of editors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from reconciler.cli.initialization.collection import Collection, ordered
from reconciler.cli.initialization.items import SourceObject
from reconciler.desired.migration.controller import nested
from reconciler.source.resource import OURS, schema_of

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


class FleetFile(NamedTuple):
    """A file to write, relative to the fleet folder; ``item`` is the object in it."""

    path: str
    content: bytes
    item: SourceObject | None = None


def files_of(found: Collection, settings: Mapping[str, object]) -> list[FleetFile]:
    """Return the files of a fleet that takes over what was found."""
    files = [FleetFile(CONFIG, settings_file(settings))]
    taken = {CONFIG}
    schemas = {_SETTINGS_SCHEMA}
    for item in ordered(found):
        path = _unused(_path_of(item), taken)
        taken.add(path)
        text = _without_modeline(item.written())
        if item.kind in OURS:
            schemas.add(schema_of(item.kind))
            text = f"{_MODELINE}../{SCHEMAS}/{schema_of(item.kind)}.json\n{text}"
        files.append(FleetFile(path, text.encode(), item))
    return [*files, *_beside(sorted(schemas))]


def files_from_nothing(name: str, settings: Mapping[str, object]) -> list[FleetFile]:
    """Return the files of a fleet to start with: a NodePool, its class, an example of pods."""
    schemas = ("ec2nodeclass.v1", "nodepool.v1")
    texts = (("class", schemas[0], _CLASS.format(name=name)), ("pool", schemas[1], _POOL))
    nodes = [
        FleetFile(f"nodes/{file}.yaml", f"{_MODELINE}../{SCHEMAS}/{schema}.json\n{text}".encode())
        for file, schema, text in texts
    ]
    workload = FleetFile("workloads/example.yaml", _WORKLOAD.encode())
    config = FleetFile(CONFIG, settings_file(settings))
    return [config, *nodes, workload, *_beside((*schemas, _SETTINGS_SCHEMA))]


def settings_file(settings: Mapping[str, object]) -> bytes:
    """Return ``reconciler.yaml`` with settings by dotted key, each explained."""
    from reconciler.source.plainyaml import dump

    parts = [f"{_MODELINE}{SCHEMAS}/{_SETTINGS_SCHEMA}.json\n", _HEAD]
    for key, value in nested(settings).items():
        comment = _COMMENTS.get(key)
        parts += [f"\n# {comment}\n"] if comment else ["\n"]
        parts.append(dump({key: value}))
    return "".join([*parts, _MORE]).encode()


def ignore_file() -> bytes:
    """Return the ``.gitignore`` of a fleet folder."""
    lines = ("# The recorded state, and what commands write", *IGNORED)
    return ("\n".join(lines) + "\n").encode()


def _beside(schemas: Sequence[str]) -> list[FleetFile]:
    from pathlib import Path

    from reconciler._resources import resource

    return [
        FleetFile(f"{SCHEMAS}/{name}.json", Path(resource("schemas", f"{name}.json")).read_bytes())
        for name in schemas
    ]


def _path_of(item: SourceObject) -> str:
    kind = item.kind.lower()
    name = _slug(item.name)
    if item.kind in OURS and item.kind != "CapacityBuffer":
        return f"nodes/{kind}-{name}.yaml"
    space = item.entry.namespace
    return f"workloads/{'' if space == 'default' else f'{_slug(space)}-'}{kind}-{name}.yaml"


def _slug(name: str) -> str:
    """Return a name as part of a file name, whatever it contains."""
    return _SLUG.sub("-", name.lower()).strip("-")[:100] or "unnamed"


def _unused(path: str, taken: set[str]) -> str:
    number, stem = 2, path.removesuffix(".yaml")
    while path in taken:
        path, number = f"{stem}-{number}.yaml", number + 1
    return path


def _without_modeline(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(_MODELINE))
