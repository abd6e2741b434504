"""What names mean in a Terraform module: its variables, locals, outputs and calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from reconciler.desired.terraform.functions import Value

ReadFile = Callable[[str], str | None]
"""Returns the text of a file, whose path is relative to the top of the tree; None if it is none."""

ListFiles = Callable[[str], Sequence[str]]
"""Returns the files below a folder at any depth, relative to it; the folder is as in a path."""


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A call of a module: the text of its arguments, and what they mean.

    ``target`` is the module if it is in the repository and is called only once. ``is_common`` is
    true of the modules of terraform-aws-modules, whose outputs are known.
    """

    arguments: Mapping[str, str]
    target: ModuleScope | None = None
    is_common: bool = False


@dataclass
class EvaluationWork:
    """The steps that an evaluation has taken so far, and how deep it is at the moment."""

    steps: int = 0
    depth: int = 0


@dataclass
class ModuleScope:
    """What names mean in one module: its folder, variables, locals, and the files it reads.

    ``types`` are the types of variables as they are written, ``manifests`` the text of the objects
    of each resource by its type and name, ``templates`` the template and the arguments of each data
    source ``template_file``, ``applied`` the expressions of which resources take their objects.
    ``outputs`` are the texts of its outputs, ``calls`` those of other
    modules by name. ``zones`` returns the availability zones of its region, none if that is not
    known, and ``takes_disabled`` reads resources as well that have no instances with these values.
    ``unset`` are variables whose default is empty or null: it counts in comparisons, and elsewhere
    they are unknown, because they are there to be set. ``left_out`` are the conditions in templates
    that are not known, whose parts are left out.
    """

    folder: str
    read: ReadFile
    variables: dict[str, Value] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    unset: dict[str, Value] = field(default_factory=dict)
    locals: dict[str, str] = field(default_factory=dict)
    manifests: dict[tuple[str, str], str] = field(default_factory=dict)
    templates: dict[str, tuple[str, str]] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    calls: dict[str, ModuleCall] = field(default_factory=dict)
    zones: Callable[[], Sequence[str]] = tuple
    list_files: ListFiles = lambda _: ()
    takes_disabled: bool = False
    names: Mapping[str, Value] = field(default_factory=dict)
    used_files: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    resolving: tuple[str, ...] = ()
    effort: EvaluationWork = field(default_factory=EvaluationWork)

    def with_names(self, names: Mapping[str, Value]) -> ModuleScope:
        """Return the scope with further names, such as the arguments of a template."""
        return replace(self, names={**self.names, **names})
