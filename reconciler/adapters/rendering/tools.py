"""Finds kustomize and helm, and renders one source with them in a private copy of its files."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from reconciler.adapters.processes import private_folder
from reconciler.adapters.rendering.isolation import LIMITS, Finished, RunLimits, run_isolated
from reconciler.desired.sources.requested import Tool
from reconciler.model.text.quoting import quote_value
from reconciler.ports.rendering import RenderBuild, RenderError
from reconciler.source.definitions import DEFINITION, without_schemas

_INSTALL: Final[Mapping[Tool, str]] = {
    Tool.KUSTOMIZE: "install kustomize 5 or kubectl (https://kubectl.docs.kubernetes.io/installation/kustomize/)",
    Tool.HELM: "install Helm 3 (https://helm.sh/docs/intro/install/)",
}
_INSTEAD: Final[Mapping[Tool, str]] = {
    Tool.KUSTOMIZE: "kustomize build",
    Tool.HELM: "helm template",
}
_VERSIONS: Final[Mapping[Tool, tuple[int, int]]] = {Tool.KUSTOMIZE: (4, 5), Tool.HELM: (3, 12)}
"""Templates of older versions of Helm resolve names, which tells a server what they contain."""
_SKIPS_SCHEMAS: Final = (3, 16)
"""Older versions of Helm read any file and server that the schema of a packed dependency names."""
_VERSION: Final = re.compile(r"v(\d+)\.(\d+)(?:\.\d+)?")
_KUSTOMIZE_VERSION: Final = re.compile(r"Kustomize Version: v(\d+)\.(\d+)")
_NO_PROXY: Final = "http://127.0.0.1:1"
"""A proxy that does not exist, on a port that only the administrator can listen on."""
_KUBE_VERSION: Final = "1.33.0"
_API_VERSIONS: Final = (
    "karpenter.sh/v1",
    "karpenter.sh/v1/NodePool",
    "karpenter.k8s.aws/v1",
    "karpenter.k8s.aws/v1/EC2NodeClass",
)
_MESSAGE_MAX: Final = 600

_KUBECTL: Final = ("kustomize",)
_COMMANDS: Final[Mapping[Tool, tuple[str, ...]]] = {
    Tool.KUSTOMIZE: ("build",),
    Tool.HELM: ("template",),
}


class RenderProgram(NamedTuple):
    """A tool of this machine: its absolute path, and the words that select its command."""

    path: str
    words: tuple[str, ...] = ()


def _program_at(path: str, tool: Tool) -> RenderProgram:
    is_kubectl = os.path.basename(path).startswith("kubectl")
    return RenderProgram(path, _KUBECTL if is_kubectl else _COMMANDS[tool])


def _without_schemas(build: RenderBuild) -> dict[str, bytes]:
    """Return the files with definitions, without their schemas."""
    return {
        path: without_schemas(content.decode("utf-8", "surrogateescape")).encode(
            "utf-8", "surrogateescape"
        )
        for path, content in build.files.items()
        if DEFINITION in content
    }


class CommandLineRenderer:
    """Renders the sources of one tree with the kustomize and helm of this machine.

    ``programs`` are paths that the operator named, by tool; the others are searched on PATH.
    ``outside`` is the folder that no program may come from: the repository itself.
    """

    def __init__(
        self,
        programs: Mapping[Tool, str] | None = None,
        outside: str = "",
        limits: RunLimits = LIMITS,
    ) -> None:
        self._programs = programs or {}
        self._outside = os.path.realpath(outside) if outside else ""
        self._limits = limits
        self._found: dict[tuple[Tool, tuple[int, int]], RenderProgram] = {}
        self._spent = 0.0

    def render(self, build: RenderBuild) -> bytes:
        """Return the manifests of one source; see ``Renderer``.

        The schemas of definitions are left out where nothing needs them: they take kustomize most
        of its time, and no plan reads them. A patch of one does need it.
        """
        files = _without_schemas(build) if build.tool is Tool.KUSTOMIZE else {}
        if files:
            with suppress(RenderError):
                return self._run(replace(build, files={**build.files, **files}))
        return self._run(build)

    def _run(self, build: RenderBuild) -> bytes:
        has_archives = build.tool is Tool.HELM and any(p.endswith(".tgz") for p in build.files)
        least = _SKIPS_SCHEMAS if has_archives else _VERSIONS[build.tool]
        program, most = self._program(build.tool, least), self._limits.total_seconds
        if self._spent > most:
            raise RenderError(
                f"all sources together took longer than {most:g} s",
                remedy=f"render it elsewhere: `{_INSTEAD[build.tool]} … | reconciler plan -f -`",
            )
        began = time.monotonic()
        with private_folder() as top:
            tree, home = os.path.join(top, "tree"), os.path.join(top, "home")
            os.mkdir(home)
            os.mkdir(tree)
            _write_files(tree, build.files)
            line = [program.path, *program.words, *_arguments(build, tree)]
            if has_archives:
                line.append("--skip-schema-validation")  # those in archives were not checked
            try:
                done = run_isolated(
                    line, folder=home, environment=_environment(home), limits=self._limits
                )
            finally:
                self._spent += time.monotonic() - began
            if done.code != 0:
                raise RenderError(_failure(done, build.tool, tree))
            return done.output

    def _program(self, tool: Tool, least: tuple[int, int]) -> RenderProgram:
        """Return a program of a tool that has at least this version.

        Raises:
            RenderError: there is none, or it is too old.
        """
        if (tool, least) not in self._found:
            self._found[tool, least] = self._find_program(tool, least)
        return self._found[tool, least]

    def _find_program(self, tool: Tool, least: tuple[int, int]) -> RenderProgram:
        unusable = ""
        for program in self._candidates(tool):
            version = self._version(program, tool)
            if version is not None and version >= least:
                return program
            unusable = f"{program.path} is {'not usable' if version is None else 'too old'}"
        message = unusable or f"{tool.value} is not installed or not on PATH"
        number = ".".join(map(str, least))
        why = " for packed dependencies" if least == _SKIPS_SCHEMAS else ""
        remedy = (
            f"{_INSTALL[tool]}, at least {number}{why}; or render elsewhere: "
            f"`{_INSTEAD[tool]} … | reconciler plan -f -`"
        )
        raise RenderError(message, remedy=remedy, is_missing=True)

    def _candidates(self, tool: Tool) -> list[RenderProgram]:
        """Return the program that the operator names, or those on PATH."""
        named = self._programs.get(tool)
        if named:
            return [_program_at(named, tool)]
        names = ("kustomize", "kubectl") if tool is Tool.KUSTOMIZE else ("helm",)
        return [_program_at(path, tool) for name in names for path in self._on_path(name)]

    def _on_path(self, name: str) -> list[str]:
        """Return the programs of that name on PATH; one of the repository is never used."""
        found = []
        for folder in os.get_exec_path():
            path = os.path.join(folder, name)
            if (
                not os.path.isabs(folder)
                or not os.path.isfile(path)
                or not os.access(path, os.X_OK)
            ):
                continue
            real = os.path.realpath(path)
            if self._outside and (real + os.sep).startswith(self._outside.rstrip(os.sep) + os.sep):
                continue
            found.append(path)
        return found

    def _version(self, program: RenderProgram, tool: Tool) -> tuple[int, int] | None:
        with private_folder() as home:
            is_kubectl = program.words == _KUBECTL
            words = ["version", "--client"] if is_kubectl else ["version"]
            try:
                done = run_isolated(
                    [program.path, *words], folder=home, environment=_environment(home)
                )
            except RenderError:
                return None
        text = done.output.decode("utf-8", "replace")
        match = (_KUSTOMIZE_VERSION if is_kubectl else _VERSION).search(text)
        if done.code != 0 or match is None:
            return (5, 0) if tool is Tool.KUSTOMIZE and "devel" in text else None
        return int(match[1]), int(match[2])


def _write_files(tree: str, files: Mapping[str, bytes]) -> None:
    """Write the copy.

    Raises:
        RenderError: a path leads out of it, or cannot be written, such as one below a file.
    """
    for path, content in files.items():
        target = os.path.normpath(os.path.join(tree, path))
        if not target.startswith(tree + os.sep):
            raise RenderError(f"{quote_value(path)} leads out of the copy of the source")
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(content)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise RenderError(f"{quote_value(path)} cannot be copied: {why}") from error


def _arguments(build: RenderBuild, tree: str) -> list[str]:
    folder = os.path.normpath(os.path.join(tree, build.folder))
    if build.tool is Tool.KUSTOMIZE:
        return [folder, "--load-restrictor", "LoadRestrictionsRootOnly"]
    words = [build.release.name or "release", folder, "--skip-tests"]
    words += ["--kube-version", _KUBE_VERSION]
    words += [word for name in _API_VERSIONS for word in ("--api-versions", name)]
    if build.namespace:
        words += [f"--namespace={build.namespace}"]
    for path in build.release.values_files:
        words += ["--values", _csv_field(os.path.normpath(os.path.join(tree, path)))]
    for name, value in build.release.parameters:
        words += [f"--set={name}={value}"]
    return words


def _csv_field(path: str) -> str:
    """Return a path as helm reads a list of them: a comma would begin another path."""
    return '"' + path.replace('"', '""') + '"'


def _environment(home: str) -> dict[str, str]:
    """Return the complete environment of a tool: it finds no program, no plugin and no setting.

    Nor does it find a server, except for those of this machine, where there are no namespaces.
    """
    return {
        "PATH": home,
        "HOME": home,
        "TMPDIR": home,
        "XDG_CONFIG_HOME": home,
        "XDG_CACHE_HOME": home,
        "XDG_DATA_HOME": home,
        "KUSTOMIZE_PLUGIN_HOME": home,
        "KUBECONFIG": os.devnull,
        "HELM_CACHE_HOME": home,
        "HELM_CONFIG_HOME": home,
        "HELM_DATA_HOME": home,
        "HELM_PLUGINS": home,
        "HELM_NO_PLUGINS": "1",
        "HELM_REGISTRY_CONFIG": os.path.join(home, "registry.json"),
        "HELM_REPOSITORY_CONFIG": os.path.join(home, "repositories.yaml"),
        "HELM_REPOSITORY_CACHE": home,
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), _NO_PROXY),
        "GOMEMLIMIT": "1GiB",
        "GOMAXPROCS": "2",
    }


def _failure(done: Finished, tool: Tool, tree: str) -> str:
    """Return why a tool failed, in one line, with the paths of the repository."""
    lines = [line.strip() for line in done.errors.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("#", "WARNING", "Use --debug"))]
    text = " ".join(kept).replace(f"{tree}/", "").replace(tree, ".")
    text = re.sub(r"^Error: (accumulating resources: )?", "", text)
    if not text:
        killed = done.code < 0 or done.code > 128
        text = "was stopped by a limit of memory or time" if killed else f"exit code {done.code}"
    if "cannot allocate memory" in text or "out of memory" in text:
        text = "needs more memory than the limit"
    return f"{tool.value}: {text[:_MESSAGE_MAX]}"
