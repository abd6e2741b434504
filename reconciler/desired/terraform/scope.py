"""What names mean in a Terraform module: its variables, locals, outputs and calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from reconciler.desired.terraform.functions import Value, weigh
from reconciler.desired.terraform.hcl import DEPTH_MAX, HclError

STEPS_MAX: Final = 100_000
WORK_MAX: Final = 1_000_000
TOTAL_MAX: Final = 4 * WORK_MAX
_WEIGHT_MAX: Final = 200_000
_CHARACTERS: Final = 16
"""Characters of an expression that count as one piece of work: some ten microseconds."""

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
class TotalWork:
    """The pieces of work that all modules of a repository have taken."""

    pieces: int = 0

    def scope(self, folder: str, read: ReadFile) -> ModuleScope:
        """Return the scope of a module, whose work counts as well."""
        return ModuleScope(folder, read, effort=EvaluationWork(total=self))


@dataclass
class EvaluationWork:
    """What an evaluation has taken so far: its steps, depth and work.

    Local values are evaluated again for each reference, and functions multiply what they are given,
    so a few lines can stand for more text than fits into memory.
    """

    steps: int = 0
    depth: int = 0
    pieces: int = 0
    total: TotalWork = field(default_factory=TotalWork)

    def allows(self, text: str) -> bool:
        """Count a step, and return whether its expression may be evaluated."""
        self.steps += 1
        is_small = self.depth <= DEPTH_MAX and self.steps <= STEPS_MAX
        return is_small and self._take(1 + len(text) // _CHARACTERS)

    def spend(self, text: str, times: int = 1) -> None:
        """Count the work for a text.

        Raises:
            HclError: it is too much.
        """
        if not self._take(times * (1 + len(text) // _CHARACTERS)):
            raise HclError("the evaluation takes too long")

    def counted(self, value: Value) -> Value:
        """Return a value of an expression, whose size counts as work.

        Raises:
            HclError: it is too large.
        """
        weight = weigh(value, _WEIGHT_MAX)
        if weight > _WEIGHT_MAX or not self._take(weight):
            raise HclError("a value is too large")
        return value

    def _take(self, pieces: int) -> bool:
        self.pieces += pieces
        self.total.pieces += pieces
        return self.pieces <= WORK_MAX and self.total.pieces <= TOTAL_MAX


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

    def without_values(self) -> ModuleScope:
        """Return the scope of a value that may not refer to others."""
        return ModuleScope(self.folder, self.read, effort=self.effort)
