"""The reference pages that come from the code: commands, metrics, events and exit codes.

``docs/generate.py`` writes them and a test compares them. Meanings that the code does not state are
in the tables below; a name without a meaning, and a meaning without a name, is an error.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from prometheus_client import Histogram

from reconciler import exitcode
from reconciler.adapters.kubernetes import karpenter
from reconciler.cli.parser.commandline import COMMANDS, parser_of
from reconciler.engine.shown import announcing
from reconciler.ports.progress import EventKind
from reconciler.source.codes import chosen_codes
from reconciler.web import gauges
from reconciler.web.metrics import FleetMetrics

GENERATED = "Generated from the code by `python docs/generate.py`.\n"
COMMON = 2
"""The number of commands from which an argument is described once for all of them."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Settings": ("--now", "--state", "--set", "--config"),
    "Revision": ("--repo", "--ref", "--path"),
    "Workload": ("-f", "--snapshot", "--snapshot-max-age", "--replicas"),
    "Listener": ("--listen", "--listen-probes", "--allowed-host", "--trusted-header"),
}
"""Common arguments that usually come together; a command refers to a complete group by its name."""
Argument = tuple[str, str]
PREFIXES = ("karpenter_", "reconciler_")
EXIT_CODES_OF_COMMANDS = """
With `plan --detailed-exitcode`, a script can tell "nothing to do" from "there are changes".
[Policies](policies.md#exit-codes) lists the options that lead to exit code 3.
"""
IMPLIED = frozenset(
    {
        "Correct it.",
        "Correct it as the message says.",
        "Correct it at the position shown.",
        "Correct it in the cluster.",
        "Correct the name.",
        "No action is needed.",
    }
)
"""What to do in general, which the page of findings states once."""
FINDINGS = """Each finding ends with its code in brackets, which `reconciler explain CODE` explains.
Where nothing else is stated, correct what the message names; an `info` needs no action.
A failed [policy](policies.md) has the code `policy-` and its name. Any other code, such as
`role-empty`, is that of a rule of the API server: correct the field that the message names.
"""
EVENTS: Mapping[EventKind, str] = {
    EventKind.STANDBY: "Another process holds the lease of the fleet; this one waits.",
    EventKind.LEASE_ACQUIRED: "This process holds the lease and acts.",
    EventKind.LEASE_LOST: "This process no longer holds the lease; it has stopped acting.",
    EventKind.CLOCK_SET_BACK: "The clock was set back by more than a minute.",
    EventKind.FLEET_ADDED: "A fleet appeared in the folder of fleets; the daemon acts for it now.",
    EventKind.FLEET_REMOVED: (
        "A fleet was removed from the folder; the daemon no longer acts for it."
    ),
    EventKind.AWAITING_APPROVAL: (
        "Nodes of a NodePool that was removed from git wait for `--allow-removal`."
    ),
    EventKind.CONNECTED: "A service answers again after failures.",
    EventKind.FORBIDDEN: "A permission is missing; the check that needs it is skipped.",
    EventKind.RETRYING: "A call failed and will be retried.",
    EventKind.FAILED: "A pass failed; the next one follows after a pause.",
    EventKind.KILLED: "A simulation killed the engine, as its fault scenario states.",
    EventKind.PRUNED: "Old records were removed.",
    EventKind.ILLEGAL_TRANSITION: "An action received an event that its state does not allow.",
    EventKind.REVISION: "A commit takes effect.",
    EventKind.INVALID_REVISION: "A commit cannot be planned; the last valid one stays in effect.",
    EventKind.UNREADABLE: "An object of the cluster cannot be read and is ignored.",
    EventKind.WORK_LIMITED: (
        "Pods of the namespaces named wait, or are not moved: their rules need too much work."
    ),
    EventKind.NODE_CLAIM_CREATED: "A node was decided on, and its launch was journalled.",
    EventKind.LAUNCHED: "EC2 launched the instance.",
    EventKind.REGISTERED: "The node joined the cluster.",
    EventKind.INITIALIZED: "The node is ready, with its startup taints removed.",
    EventKind.LAUNCH_FAILED: "The launch failed, or the node never joined.",
    EventKind.UNAVAILABLE: "EC2 has no capacity for an offering; it is not used for a while.",
    EventKind.COMMAND_STARTED: "A disruption command starts.",
    EventKind.COMMAND_VALIDATED: "The replacements are ready and the decision still holds.",
    EventKind.COMMAND_ROLLED_BACK: "A disruption command was rolled back; its nodes stay.",
    EventKind.PROGRESS_DEADLINE_EXCEEDED: (
        "A drifted node was not replaced within `progressDeadline`."
    ),
    EventKind.INTERRUPTED: "EC2 interrupts an instance, or has scheduled an event for it.",
    EventKind.REBALANCE_RECOMMENDED: "EC2 reports a higher risk of interruption.",
    EventKind.IGNORED: "A message or object does not concern this fleet.",
    EventKind.EXPIRED: "A node has reached `expireAfter`.",
    EventKind.REBOOTING: "EC2 accepted the reboot of an unhealthy node.",
    EventKind.REBOOT_OBSERVED: "The node has booted again; it accepts pods.",
    EventKind.REBOOTED: "The node is ready after its reboot.",
    EventKind.REBOOT_FAILED: "A node was not rebooted or did not come back; it is replaced.",
    EventKind.TAINTED: "A node accepts no new pods because it will be disrupted.",
    EventKind.DRAINING: "The pods of a node are being evicted.",
    EventKind.STALLED: "A drain does not progress; the message names the reason.",
    EventKind.DRAINED: "All pods of a node that had to be evicted are gone.",
    EventKind.TERMINATED: "An instance was terminated.",
    EventKind.VANISHED: "An instance disappeared that reconciler did not terminate.",
    EventKind.NODE_DELETED: "Somebody deleted a Node; it is drained and terminated.",
    EventKind.REQUEST_DONE: "A request such as `reconciler drain` is complete.",
    EventKind.POD_BOUND: "A pod was scheduled (simulation and embedded cluster).",
    EventKind.POD_EVICTED: "A pod was evicted.",
    EventKind.WAVE_STARTED: "A wave of a rollout starts.",
    EventKind.WAVE_SETTLED: "The pods of a wave are available again.",
    EventKind.WAVE_FAILED: "The pods of a wave were not available within `waveDeadline`.",
    EventKind.ROLLOUT_STOPPED: "Disruption of a NodePool was halted after failures.",
    EventKind.LOOKING: "After a crash: EC2 is asked about an operation without an outcome.",
    EventKind.RECOVERED: "The outcome of such an operation is known.",
    EventKind.UNKNOWN: "Instances have our tags and no record, or the reverse.",
    EventKind.RESOLVED: "All instances are accounted for again.",
    EventKind.DISCARDED: "Launch templates or instance profiles that nothing uses were deleted.",
}
KUBERNETES_EVENTS = {
    "FailedScheduling": ("Pod", "No NodePool can serve the pod; the most important reason first."),
    "Nominated": ("Pod", "The node or NodeClaim on which the pod should be scheduled."),
    "DisruptionLaunching": ("Node", "The node will be disrupted; its replacement is launched."),
    "DisruptionWaitingReadiness": ("Node", "The replacement is not ready yet."),
    "DisruptionTerminating": ("Node", "The node is drained and terminated."),
    "DisruptionRebooting": ("Node", "The node is drained and rebooted."),
    "RebootObserved": ("NodeClaim", "The node has booted again and is not ready yet."),
    "RebootFailed": ("NodeClaim", "The reboot failed; the node is replaced."),
    "NodeRepairBlocked": (
        "Node, NodeClaim, NodePool",
        "Too many nodes of the NodePool are unhealthy, so that none is repaired.",
    ),
    "DisruptionBlocked": ("Node, NodePool", "The reason why disruption is not possible now."),
}
CONDITIONS = {
    "Launched": "EC2 has launched the instance.",
    "Registered": "The node has joined the cluster.",
    "Initialized": (
        "The node is ready, its startup taints are removed and its resources are registered."
    ),
    "Drifted": "The node differs from its NodePool or EC2NodeClass; the reason states how.",
    "Consolidatable": "No pod was added or removed for `consolidateAfter`.",
    "DisruptionReason": "A command disrupts the node; the reason is that of the command.",
    "Drained": "The pods are evicted; while unknown, the message names the remaining pods.",
    "VolumesDetached": "The volumes of the evicted pods are detached.",
    "Rebooting": "The node is being rebooted, or was; the reason states the step or the outcome.",
    "InstanceTerminating": "The termination of the instance was requested.",
}


def commands() -> str:
    """Return the page of all commands, with their arguments.

    Arguments of several commands are described once, before the commands, and those of every
    subcommand of a command once for it.
    """
    tables = {title: list(_argument_rows(parser)) for title, parser in _parsers().items()}
    of_commands = {
        (words.split(" ")[0], row): row for words, rows in tables.items() for row in rows
    }
    uses = Counter(of_commands.values())
    most = {_option_of(row): row for row, _ in reversed(uses.most_common())}
    grouped = {name for names in GROUPS.values() for name in names}
    common = {
        row: None
        for row, count in uses.items()
        if count >= COMMON and row[0] not in ("`NAME`", "`FILE`") and most[_option_of(row)] == row
    }
    parts = [
        "# Commands\n",
        GENERATED,
        (
            "`reconciler help COMMAND` prints the same on a terminal, with examples. Every\n"
            "command also accepts `--debug`, which prints tracebacks. `...` marks an option that\n"
            "can be repeated. Wrong usage, such as a flag without effect on the command, exits 1.\n"
            "`-o json` and `-o yaml` print the same document.\n"
            "\n"
            "The search for the fleet folder ends at the top of the git repository, and ignores\n"
            "files of other users. A PATH inside a fleet is an error that names the folder to\n"
            "pass.\n"
        ),
        "## Common arguments\n",
        _definitions([row for row in common if _option_of(row) not in grouped]),
    ]
    for title, names in GROUPS.items():
        rows = [row for row in common if _option_of(row) in names]
        parts += [f"### {title}\n", _definitions(rows)]
    for group in dict.fromkeys(spec.group for spec in COMMANDS.values()):
        parts.append(f"## {group.capitalize()}\n")
        for name, spec in COMMANDS.items():
            if spec.group != group:
                continue
            parts += [f"### `{name}`\n", f"{spec.summary[:1].upper()}{spec.summary[1:]}.\n"]
            subcommands: Mapping[str, str] = getattr(import_module(spec.module), "SUBCOMMANDS", {})
            if not subcommands:
                parts += _command_body(tables[name], common)
                continue
            first, *others = (tables[f"{name} {subcommand}"] for subcommand in subcommands)
            shared = [row for row in first if all(row in rows for rows in others)]
            parts += _command_body(shared, common, "Every subcommand")
            for subcommand, text in subcommands.items():
                words = f"{name} {subcommand}"
                parts += [f"#### `{words}`\n", f"{text[:1].upper()}{text[1:]}.\n"]
                own = [row for row in tables[words] if row not in shared]
                parts += _command_body(own, common)
    return "\n".join(parts)


def _parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command and subcommand, by its words."""
    found = {}
    for name, spec in COMMANDS.items():
        module = import_module(spec.module)
        subcommands: Mapping[str, str] = getattr(module, "SUBCOMMANDS", {})
        for subcommand in subcommands:
            words = f"{name} {subcommand}"
            found[words] = parser_of(module, name, spec.summary, subcommand)
        if not subcommands:
            found[name] = parser_of(module, name, spec.summary)
    return found


def _command_body(
    rows: Sequence[Argument], common: Mapping[Argument, None], introduction: str = ""
) -> Iterator[str]:
    """Yield the arguments of a command; ``introduction`` says of what part."""
    own = [row for row in rows if row not in common]
    if own:
        yield from [f"{introduction} accepts:\n"] if introduction else []
        yield _definitions(own)
    shared = [_option_of(row) for row in rows if row in common]
    groups = [title for title, names in GROUPS.items() if set(names) <= set(shared)]
    named = {name for title in groups for name in GROUPS[title]}
    links = [f"[{title.lower()}](#{title.lower()})" for title in groups]
    links += [f"`{name}`" for name in shared if name not in named]
    if links:
        title = f"{introduction} accepts" if introduction else "Common"
        yield f"{title}: {', '.join(links)}.\n"


def _option_of(row: Argument) -> str:
    """Return the name of an argument, without its value and its other spellings."""
    return row[0].split(" ")[0].strip("`,")


def _argument_rows(parser: argparse.ArgumentParser) -> Iterator[Argument]:
    """Yield the arguments; argparse's own text differs between releases of Python."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to its arguments
        if action.help == argparse.SUPPRESS or action.dest in ("help", "debug"):
            continue
        meaning = " ".join(((action.help or "") % vars(action)).split())
        usage = _argument_usage(action) + (" ..." if meaning.endswith("repeatable)") else "")
        meaning = meaning.removesuffix(" (repeatable)").replace("; repeatable)", ")")
        yield usage, meaning


def _definitions(rows: Sequence[Argument]) -> str:
    return "\n".join([*(f"- {usage}: {meaning}" for usage, meaning in rows), ""])


def _argument_usage(action: argparse.Action) -> str:
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    value = value if isinstance(value, str) else " ".join(value)
    if not action.option_strings:
        optional = {"?": f"[{value}]", "*": f"[{value} ...]", "+": f"{value} ..."}
        return f"`{optional.get(str(action.nargs), value)}`"
    words = [f"`{option}`" for option in action.option_strings]
    return ", ".join(words) + ("" if action.nargs == 0 else f" `{value}`")


def _table_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def metrics() -> str:
    """Return the page of all metrics, those with Karpenter's names first."""
    found = {name: row for name, *row in (*_counters(), *_gauges())}
    parts = [
        "# Metrics\n",
        GENERATED,
        (
            "`reconciler run --listen` serves them on `/metrics` ([monitoring](monitoring.md)).\n"
            "Gauges show the last pass that succeeded. In parentheses: the type and the labels.\n"
        ),
    ]
    for prefix, title in zip(PREFIXES, ("Karpenter's names", "Our own"), strict=True):
        names = sorted(name for name in found if name.startswith(prefix))
        rows = [
            (f"`{n}` ({', '.join(filter(None, (kind, labels)))})", text)
            for n, (kind, labels, text) in ((n, found[n]) for n in names)
        ]
        parts.append(f"## {title}\n\n{_definitions(rows)}")
    return "\n".join(parts)


def _counters() -> Iterator[tuple[str, str, str, str]]:
    """Yield the counters of the process, from the registry."""
    for collector in FleetMetrics().registry._collector_to_names:  # noqa: SLF001 - labels
        name = getattr(collector, "_name", "")
        if name:
            kind = "histogram" if isinstance(collector, Histogram) else str(collector._type)  # noqa: SLF001
            names = list(getattr(collector, "_labelnames", ()))
            total = "_total" if kind == "counter" else ""
            text = str(getattr(collector, "_documentation", ""))
            yield name + total, kind, _label_text(names), text


def _gauges() -> Iterator[tuple[str, str, str, str]]:
    """Yield the gauges of the last pass, which exist only after one, from the source."""
    tree = ast.parse(Path(str(gauges.__file__)).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            values = [a.value if isinstance(a, ast.Constant) else None for a in node.args]
            labels = (
                node.args[2] if _function_name(node) == "_gauges" and len(node.args) > 2 else None
            )
        elif isinstance(node, ast.Tuple):  # the gauges of each node share their labels
            values = [e.value if isinstance(e, ast.Constant) else None for e in node.elts]
            labels = ast.Name("_NODE_LABELS")
        else:
            continue
        if len(values) > 1 and isinstance(values[0], str) and values[0].startswith(PREFIXES):
            yield values[0], "gauge", _label_text(_label_names(labels)), str(values[1])


def _function_name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _label_names(labels: ast.expr | None) -> list[str]:
    if isinstance(labels, ast.Name):
        return list(getattr(gauges, labels.id))
    return [str(name) for name in ast.literal_eval(labels)] if labels is not None else []


def _label_text(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def events() -> str:
    """Return the page of events of the log, Kubernetes Events and conditions of NodeClaims."""
    _expect_same_names(set(EVENTS), set(EventKind), "EventKind")
    reasons = {r for r in _string_literals(announcing) if r in KUBERNETES_EVENTS or _is_reason(r)}
    _expect_same_names(set(KUBERNETES_EVENTS), reasons, "reasons of Kubernetes Events")
    _expect_same_names(set(CONDITIONS), set(karpenter._CONDITIONS), "conditions")  # noqa: SLF001
    parts = [
        "# Events and conditions\n",
        GENERATED,
        "## Kubernetes Events\n",
        ("`kubectl describe` shows them ([limits](kubernetes/README.md#events)).\n"),
        _definitions([(f"`{r}` ({on})", text) for r, (on, text) in KUBERNETES_EVENTS.items()]),
        "## Conditions of NodeClaims\n",
        ("`reconciler get nodeclaims -o json` shows them.\n"),
        _definitions([(f"`{c}`", text) for c, text in CONDITIONS.items()]),
        "## Events of the log\n",
        (
            "`reconciler run` logs them, `simulate -o json` lists them, and the metric\n"
            "`reconciler_events_total` counts them by kind.\n"
        ),
        _definitions([(f"`{kind.value}`", EVENTS[kind]) for kind in EventKind]),
    ]
    return "\n".join(parts)


def _string_literals(module: object) -> set[str]:
    source = Path(str(getattr(module, "__file__", ""))).read_text(encoding="utf-8")
    found = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {value for value in found if isinstance(value, str)}


def _is_reason(text: str) -> bool:
    """Return whether a text of the announcements is a reason."""
    return text.startswith(("Disruption", "Reboot")) and text.isalpha()


def _expect_same_names(described: set[str], known: set[str], what: str) -> None:
    if described != known:
        names = ", ".join(sorted(described ^ known))
        raise SystemExit(f"docs/reference.py and the code differ in {what}: {names}")


def exit_codes() -> str:
    """Return the page of exit codes."""
    tree = ast.parse(Path(exitcode.__file__).read_text(encoding="utf-8"))
    rows: list[tuple[str, ...]] = []
    for statement, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(after, ast.Expr):
            code = ast.literal_eval(statement.value or ast.Constant(None))
            rows.append((f"{code}", ast.literal_eval(after.value).replace("``", "`")))
    table = _table(("code", "meaning"), rows)
    return f"# Exit codes\n\n{GENERATED}\n{table}" + EXIT_CODES_OF_COMMANDS


def findings() -> str:
    """Return the page of the codes of findings, but for those of rules of the API server."""
    rows = [
        (f"`{code}`", meaning if remedy in IMPLIED else f"{meaning} {remedy}")
        for code, (meaning, remedy) in sorted(chosen_codes().items())
    ]
    return f"# Findings\n\n{GENERATED}\n{FINDINGS}\n{_definitions(rows)}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [f"| {' | '.join(map(_table_cell, row))} |" for row in rows]
    return "\n".join([*lines, ""])


PAGES = {
    "commands.md": commands,
    "metrics.md": metrics,
    "events.md": events,
    "exit-codes.md": exit_codes,
    "findings.md": findings,
}
"""The page → the function that returns its text."""
