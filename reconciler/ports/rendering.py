"""What is needed of the programs that render a repository: kustomize and helm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from reconciler.desired.sources.requested import ChartRelease, Tool
from reconciler.model.errors import ReconcilerError


@dataclass(frozen=True, slots=True)
class RenderBuild:
    """One run of a tool: the copy of the tree that it sees, and the folder in it to render.

    ``release`` and ``namespace`` are those of a chart; its values files are paths of the copy.
    """

    tool: Tool
    files: Mapping[str, bytes]
    folder: str
    release: ChartRelease = field(default_factory=ChartRelease)
    namespace: str = ""


class RenderError(ReconcilerError):
    """The tool is missing, failed, or exceeded a limit; the message is one line.

    ``is_missing`` is whether this machine does not have the tool.
    """

    def __init__(self, message: str, *, remedy: str = "", is_missing: bool = False) -> None:
        self.is_missing = is_missing
        super().__init__(message, remedy=remedy)


class Renderer(Protocol):
    """Renders sources with the tools that own them."""

    def render(self, build: RenderBuild) -> bytes:
        """Return the manifests.

        Raises:
            RenderError: there are none, because the tool is missing, failed or exceeded a limit.
        """
        ...
