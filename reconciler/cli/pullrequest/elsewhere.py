"""Files with workloads beside a fleet folder that has none: a plan with them has a cost."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from msgspec.structs import replace

from reconciler.adapters.git.repository import find_repository
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.errors import ReconcilerError
from reconciler.model.text.counting import format_list
from reconciler.model.text.identifiers import short_commit
from reconciler.model.text.quoting import quote_value
from reconciler.plan.value.plan import Plan
from reconciler.source.resource import CONFIG_FILES

_KIND: Final = re.compile(
    rb"""^ ?"?kind"?: *["']?"""  # also in JSON, which is YAML
    rb"""(?:Deployment|StatefulSet|DaemonSet|ReplicaSet|Job|CronJob|Pod)["']?,? *\r?$""",
    re.MULTILINE,
)
_TEMPLATE: Final = b"{{"
"""In a file that Helm or another tool renders first."""
_SKIPPED: Final = frozenset({"node_modules", "vendor", "venv", "charts", "testdata"})
_FOLDERS_MAX: Final = 2_000
_FILES_MAX: Final = 2_000
_BYTES_MAX: Final = 256 * 1024
_NAMED: Final = 3


def with_workloads_elsewhere(plan: Plan, request: FleetRequest) -> Plan:
    """Return a plan without workloads with a hint on those of the rest of the repository."""
    if not plan.findings_of("workloads-unknown") or not request.reads_folder:
        return plan
    fleet = request.path or "."
    found = _files_in_repository_of(fleet)
    if not found:
        return plan
    finding = _elsewhere_finding(fleet, plan.revision.base, found)
    return replace(plan, diagnostics=(*plan.diagnostics, finding))


def _files_in_repository_of(fleet: str) -> list[str]:
    """Return the files with workloads of the repository that a fleet is in."""
    try:
        repository = find_repository(fleet)
    except ReconcilerError:
        return []  # what is wrong with it is reported where it is read
    if repository is None or not repository.top or not os.path.isdir(fleet):
        return []
    return sorted(_files_with_workloads(repository.top))


def _elsewhere_finding(fleet: str, against: str | None, found: Sequence[str]) -> PlanFinding:
    paths = [os.path.relpath(path, os.path.realpath(os.curdir)) for path in found]
    words = [word for path in paths[:_NAMED] for word in ("-f", path)]
    base = ("--base", short_commit(against)) if against else ()
    command = f"`{shlex.join(['reconciler', 'plan', fleet, *base, *words])}`"
    more = ", with -f for each other file" if len(paths) > _NAMED else ""
    return PlanFinding(
        severity="info",
        code="workloads-elsewhere",
        message="workloads of the repository that are not in this folder are not planned: "
        f"{format_list(map(quote_value, paths), _NAMED)}",
        hint=f"plan with those of this cluster: {command}{more}",
    )


def _files_with_workloads(top: str) -> Iterator[str]:
    """Yield the files below ``top`` with workloads, without those of fleets and templates."""
    for path in islice(_yaml_files(top), _FILES_MAX):
        try:
            if os.path.getsize(path) > _BYTES_MAX:
                continue
            with open(path, "rb") as file:
                content = file.read(_BYTES_MAX)
        except OSError:
            continue
        if _KIND.search(content) and _TEMPLATE not in content:
            yield path


def _yaml_files(top: str) -> Iterator[str]:
    for path, folders, names in islice(os.walk(top), _FOLDERS_MAX):
        if any(name in names for name in CONFIG_FILES):
            folders.clear()
            continue
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
        for name in sorted(names):
            place = os.path.join(path, name)
            if name.endswith((".yaml", ".yml")) and not os.path.islink(place):
                yield place
