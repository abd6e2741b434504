"""What is rendered into objects: a folder of the tree, the tool, and the values it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple

from reconciler.desired.sources.gitops.patterns import is_kept, steps_of
from reconciler.model.diagnostics import Diagnostic, Place
from reconciler.model.json import JsonDict, as_mapping
from reconciler.source.document import parse_documents

_KARPENTER: Final = "karpenter"


class Tool(StrEnum):
    """What turns files into objects; ``FILES`` are objects as they are."""

    FILES = "files"
    KUSTOMIZE = "kustomize"
    HELM = "helm"


@dataclass(frozen=True, slots=True)
class ChartRelease:
    """How a chart is rendered: its release's name, and what sets its values.

    Later ``values_files`` take precedence, and ``parameters`` (paths and values) over all.
    """

    name: str = ""
    values_files: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Rendering:
    """One source of a fleet: a folder of the tree, and how it becomes objects.

    ``tool`` is None where the content of the folder decides. ``place`` is what declares it, and
    ``by`` names that, empty for a folder that was found. ``overlay`` are further fields of a
    kustomization, ``values`` inline values of a chart, ``substitutions`` the variables of Flux
    (None: none are replaced). ``include`` and ``exclude`` are patterns of Argo CD for the files.
    """

    folder: str
    tool: Tool | None = None
    place: Place | None = None
    by: str = ""
    overlay: JsonDict = field(default_factory=dict)
    namespace: str = ""
    release: ChartRelease = ChartRelease()
    values: JsonDict = field(default_factory=dict)
    substitutions: Mapping[str, str] | None = None
    is_recursive: bool = True
    include: str = ""
    exclude: str = ""

    def keeps(self, charge: Callable[[int], None]) -> Callable[[str], bool]:
        """Return whether a file is read, by its path below the folder; ``charge`` counts steps."""
        steps = sum(steps_of(pattern) for pattern in (self.include, self.exclude) if pattern)

        def is_read(path: str) -> bool:
            charge(steps)
            return is_kept(path, self.include, self.exclude)

        return is_read


@dataclass(frozen=True, slots=True)
class Embedded:
    """Objects in the values of a chart from elsewhere, at ``place``.

    ``namespace`` is that of its release. An ``is_installation`` is an Application of Karpenter's
    own chart with the values that it gets, for what takes over its settings.
    """

    objects: tuple[JsonDict, ...]
    place: Place
    namespace: str
    is_installation: bool = False


class UsedFiles(NamedTuple):
    """Files that an object reads, as values or parameters: they contain no objects."""

    paths: tuple[str, ...]


Found = Rendering | Embedded | UsedFiles | Diagnostic


def merge_values(first: JsonDict, second: JsonDict) -> JsonDict:
    """Return the values of a chart with those of ``second`` over them, as Helm merges files."""
    merged = dict(first)
    for key, value in second.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = merge_values(old, value)
        else:
            merged[key] = value
    return merged


def values_of(written: str) -> JsonDict:
    """Return the values in a text, empty if it is not a YAML mapping."""
    documents, findings = parse_documents("values", written.encode())
    data = documents[0].data if documents and not findings else None
    return as_mapping(data)


def is_karpenter_chart(name: str) -> bool:
    """Return whether the name or address of a chart is that of Karpenter's controller."""
    return name.rstrip("/").rpartition("/")[2] == _KARPENTER


class Purpose(Enum):
    """What a fleet is rendered for: a plan, the base of a comparison, or to be taken over."""

    PLAN = auto()
    BASE = auto()
    TAKE_OVER = auto()


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """What is rendered besides the sources that the files name, and what for.

    ``renderings`` are those that something else than the files asks for. Of overlays that share a
    base, the one below a path of ``prefer`` counts. Folders are relative to that of the fleet.
    """

    renderings: Sequence[Rendering] = ()
    prefer: Sequence[str] = ()
    purpose: Purpose = Purpose.PLAN


FOR_A_PLAN: Final = RenderOptions()
