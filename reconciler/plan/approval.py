"""Comparison of a new plan with the approved one.

Both are plans of the same fleet at different times. They are equal if their inputs are equal and
they do the same: the same launches from the same node classes, the same disruption commands, in the
same order. Times (ages, when a window opens), texts and the names of NodeClaims, which are random
in each plan, are not compared.

A saved plan is a file of JSON with a digest over everything else in it. The digest finds a damaged
or edited file; it is not a signature, and anybody who can write the file can write the digest. What
protects a fleet from a forged plan is that `apply` plans again and applies only its own result
(``approval``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Final, TypeVar

import msgspec

from reconciler.model.decode import decode_json, describe_mismatch, expect_values
from reconciler.model.errors import UnreadableError
from reconciler.model.grouping import group_by
from reconciler.model.json import JsonDict
from reconciler.model.text.counting import format_list
from reconciler.model.text.quoting import quote_value
from reconciler.observed.fingerprint import describe_changes
from reconciler.plan.render.summary import summary_of
from reconciler.plan.render.wording import commit_problem
from reconciler.plan.value.actions import Action, PlannedCommand
from reconciler.plan.value.nodes import PlannedNodeClaim, PlannedNodeClass
from reconciler.plan.value.plan import (
    API_VERSION,
    DIGEST_LENGTH,
    InputDigests,
    Plan,
    Revision,
    from_json,
    input_digest,
    to_json,
)

SIZE_MAX: Final = 256 * 1024 * 1024
"""Bytes of the largest file that is read; a plan of 10,000 nodes has about a tenth of it."""

VALUES_MAX: Final = 10_000_000
"""The maximum number of values in such a file, by its commas."""

AHEAD_MAX: Final = timedelta(minutes=5)
"""How far the clock of another machine may be ahead: a later plan was not made with ``plan``."""

_SAVE: Final = "save it again with `reconciler plan --out FILE`"

SHOWN_MAX: Final = 8
"""How many differences a message names before it counts the rest."""

_INPUTS: Final = {
    "git": "the fleet's files",
    "snapshot": "nodes, pods or instances",
    "catalog": "instance types or prices",
    "settings": "settings",
    "engine": "the release of reconciler",
}
_MOMENTARY_COMMAND: Final = (
    "id",
    "replacements",
    "score",
    "message",
    "savingsPerEviction",
    "equalCandidates",
)
"""Fields of a command: its name, those of its launches, and what depends on the time."""

OBJECTS_SHOWN_MAX: Final = 5
"""How many objects of the cluster a message names before it counts the rest."""


def encode_saved_plan(plan: Plan) -> bytes:
    """Return the file of a plan: one line of JSON, keys sorted, with its ``digest``.

    Its ``summary`` follows from the rest and is there for those who read nothing else.
    """
    content = to_json(plan)
    fields = decode_json(content, dict[str, msgspec.Raw])
    fields["summary"] = msgspec.Raw(_summary(plan))
    fields["digest"] = msgspec.Raw(msgspec.json.encode(_digest(content)))
    return msgspec.json.encode(fields, order="sorted")


def read_saved_plan(content: bytes, source: str) -> Plan:
    """Return the plan that ``encode_saved_plan`` wrote.

    Formatting does not matter; any other change to the content does.

    Raises:
        UnreadableError: the file is not a saved plan of this release, or not as it was saved.
    """
    if len(content) > SIZE_MAX:
        raise UnreadableError(
            f"the file is larger than {SIZE_MAX // 2**20} MiB, the maximum size of a saved plan",
            where=source,
        )
    expect_values(content, source, remedy=_SAVE, values_max=VALUES_MAX)
    plan = from_json(content, source)
    try:
        stated = decode_json(content, dict[str, object])
    except msgspec.MsgspecError as error:
        raise UnreadableError(
            f"not a plan: {describe_mismatch(error)}", where=source, remedy=_SAVE
        ) from error
    digest = stated.pop("digest", None)
    if digest is None:
        raise UnreadableError("the plan has no digest", where=source, remedy=_SAVE)
    summary = stated.pop("summary", None)
    if summary is not None and summary != _summary_of(plan, source):
        raise UnreadableError(
            "the plan was changed after it was saved: its summary is that of another plan",
            where=source,
            remedy=_SAVE,
        )
    own = to_json(plan)
    if digest != _digest(own):
        found = str(digest)[:DIGEST_LENGTH]
        raise UnreadableError(
            f"the plan was changed after it was saved: it states the digest {quote_value(found)}, "
            f"but its content has {quote_value(_digest(own)[:DIGEST_LENGTH])}",
            where=source,
            remedy=_SAVE,
        )
    if stated != decode_json(own):
        raise UnreadableError(
            f"the plan has fields that are unknown in {API_VERSION}",
            where=source,
            remedy=_SAVE,
        )
    if plan.approved_as is not None:
        raise UnreadableError("the plan has been applied already", where=source, remedy=_SAVE)
    return plan


def _summary_of(plan: Plan, source: str) -> object:
    """Return the summary that a file of the plan has.

    Raises:
        UnreadableError: no plan has such numbers or times, with which nothing can be calculated.
    """
    try:
        return decode_json(_summary(plan))
    except ArithmeticError as error:
        what = "not a plan: it has a number or a time that no plan has"
        raise UnreadableError(what, where=source, remedy=_SAVE) from error


def _summary(plan: Plan) -> bytes:
    return msgspec.json.encode(summary_of(plan), order="sorted")


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


T = TypeVar("T")


def changed_inputs(
    approved: InputDigests,
    current: InputDigests,
    old_revision: Revision,
    new_revision: Revision,
    objects: Sequence[str] = (),
) -> list[str]:
    """Return the inputs that are no longer those of the approved plan, and how they differ.

    Inputs that are empty in ``current`` are not known yet and are not compared. ``objects``
    describes what has changed in the cluster.
    """
    changed = [name for name in approved.changed(current) if getattr(current, name)]
    found = []
    for name in changed:
        how = _format_input_change(name, approved, current, old_revision, new_revision)
        if name == "snapshot" and objects:
            how = format_list([_sanitize(text, 120) for text in objects], OBJECTS_SHOWN_MAX)
        found.append(f"{name} changed ({_INPUTS[name]}: {how})")
    return found


def _format_input_change(
    name: str,
    approved: InputDigests,
    current: InputDigests,
    old_revision: Revision,
    new_revision: Revision,
) -> str:
    if name == "git" and (old_revision.head, old_revision.dirty) != (
        new_revision.head,
        new_revision.dirty,
    ):
        return f"planned at {_format_commit(old_revision)}, now at {_format_commit(new_revision)}"
    if name == "engine":
        return f"planned with {_sanitize(approved.engine)}, now {current.engine}"
    if name == "snapshot" and approved.snapshot == input_digest(b""):
        return "planned without a cluster, now with one"
    old, new = getattr(approved, name)[:DIGEST_LENGTH], getattr(current, name)[:DIGEST_LENGTH]
    return f"digest {_sanitize(old)}, now {new}"


def _format_commit(revision: Revision) -> str:
    if revision.head is None:
        return f"files without a commit ({commit_problem(revision)})"
    changed = " with uncommitted changes" if revision.dirty else ""
    return f"{_sanitize(revision.head[:DIGEST_LENGTH])}{changed}"


def plan_differences(
    approved: Plan, fresh: Plan, observed: Mapping[str, str] | None = None
) -> list[str]:
    """Return how ``fresh`` differs from the approved plan; empty if it is the same.

    ``observed`` are the fingerprints of the present observation, None if unknown.
    """
    if approved.fleet != fresh.fleet:
        return [f"the plan is of fleet {_sanitize(approved.fleet)}, not {_sanitize(fresh.fleet)}"]
    objects: Sequence[str] = ()
    if observed is not None and approved.observed:
        objects = describe_changes(approved.observed, observed)
    found = changed_inputs(
        approved.inputs, fresh.inputs, approved.revision, fresh.revision, objects
    )
    if not found and approved.inputs != fresh.inputs:
        found = ["the plan has inputs that cannot be compared"]
    found += _command_differences(approved, fresh)
    found += _launch_differences(approved, fresh)
    found += _class_differences(approved, fresh)
    if not found and Counter(_action_keys(approved)) != Counter(_action_keys(fresh)):
        found = ["the actions or their order have changed"]
    rest = len(found) - SHOWN_MAX
    return found if rest <= 0 else [*found[:SHOWN_MAX], f"and {rest} more differences"]


def _command_differences(approved: Plan, fresh: Plan) -> list[str]:
    """Return how the disruption commands differ, and why some are no longer planned."""
    old, new = _unmatched_items(
        approved.commands, fresh.commands, _command_key(approved), _command_key(fresh)
    )
    successors = {command.nodes: command for command in new}
    found = []
    for command in old:
        other = successors.pop(command.nodes, None)
        decision, reason = _sanitize(command.decision), _sanitize(command.reason)
        what = f"{decision} {_format_names(command.nodes)} ({reason})"
        if other is None:
            found.append(f"no longer planned: {what}{_reason_not_planned(command, fresh)}")
        else:
            fields = _field_differences(_comparable_command(command), _comparable_command(other))
            fields = fields or ["its replacement differs"]
            found.append(f"planned differently: {what}: {'; '.join(fields)}")
    found += [
        f"not in the approved plan: {c.decision} {_format_names(c.nodes)} ({c.reason})"
        for c in successors.values()
    ]
    return found


def _reason_not_planned(command: PlannedCommand, fresh: Plan) -> str:
    named = set(command.node_claims) | set(command.nodes)
    for deferred in fresh.deferred:
        if {deferred.node_claim, deferred.node} & named:
            when = f", not before {deferred.not_before:%F %H:%M %Z}" if deferred.not_before else ""
            return f": deferred by {deferred.waits_for}{when} ({deferred.message})"
    for blocked in fresh.blocked:
        if blocked.node in named:
            return f": {blocked.message}"
    return ""


def _launch_differences(approved: Plan, fresh: Plan) -> list[str]:
    """Return how the launches differ; similar launches of one NodePool are matched."""
    old, new = _unmatched_items(
        approved.node_claims, fresh.node_claims, _claim_key(approved), _claim_key(fresh)
    )
    waiting = group_by(new, lambda claim: claim.node_pool)
    found = []
    for claim in old:
        others = waiting.get(claim.node_pool)
        if others:
            fields = _field_differences(_comparable_claim(claim), _comparable_claim(others.pop(0)))
            fields = fields or ["it belongs to a different command"]
            found.append(
                f"planned differently: launch of {_format_launch(claim)}: {'; '.join(fields)}"
            )
        else:
            found.append(f"no longer planned: launch of {_format_launch(claim)}")
    return found + [
        f"not in the approved plan: launch of {_format_launch(claim)}"
        for claims in waiting.values()
        for claim in claims
    ]


def _format_launch(claim: PlannedNodeClaim) -> str:
    launch = claim.launch
    kind = f"{launch.instance_type} {launch.capacity_type} in {launch.zone}"
    return f"{_sanitize(kind, 120)} for NodePool {_sanitize(claim.node_pool)}"


def _class_differences(approved: Plan, fresh: Plan) -> list[str]:
    old = {item.name: item for item in approved.node_classes}
    new = {item.name: item for item in fresh.node_classes}
    found = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before != after:
            fields = _field_differences(_to_builtins(before), _to_builtins(after))
            found.append(f"EC2NodeClass {_sanitize(name)} differs: {'; '.join(fields)}")
    return found


def _to_builtins(item: PlannedNodeClass | None) -> dict[str, object]:
    found: JsonDict = {} if item is None else msgspec.to_builtins(item.omit_empty())
    return found


def _unmatched_items(
    approved: Iterable[T],
    fresh: Iterable[T],
    key_then: Callable[[T], bytes],
    key_now: Callable[[T], bytes],
) -> tuple[list[T], list[T]]:
    """Return the items without an equal on the other side, in their order."""
    left = [(key_then(item), item) for item in approved]
    right = [(key_now(item), item) for item in fresh]
    surplus_left = Counter(key for key, _ in left) - Counter(key for key, _ in right)
    surplus_right = Counter(key for key, _ in right) - Counter(key for key, _ in left)
    return _surplus_items(left, surplus_left), _surplus_items(right, surplus_right)


def _surplus_items(rows: Iterable[tuple[bytes, T]], surplus: Counter[bytes]) -> list[T]:
    found = []
    for key, item in rows:
        if surplus[key] > 0:
            surplus[key] -= 1
            found.append(item)
    return found


def _comparable_claim(claim: PlannedNodeClaim) -> JsonDict:
    """Return a launch without its name and the time at which its price was read."""
    plain: JsonDict = msgspec.to_builtins(claim.omit_empty())
    del plain["name"]
    plain["launch"].get("priceSource", {}).pop("at", None)
    return plain


def _comparable_command(command: PlannedCommand) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(command.omit_empty())
    return {key: value for key, value in plain.items() if key not in _MOMENTARY_COMMAND}


def _claim_key(plan: Plan) -> Callable[[PlannedNodeClaim], bytes]:
    """Return what identifies a launch, with its command."""
    command_keys = {
        name: _encode(_comparable_command(command))
        for command in plan.commands
        for name in command.replacements
    }

    def key(claim: PlannedNodeClaim) -> bytes:
        return _encode(_comparable_claim(claim)) + command_keys.get(claim.name, b"")

    return key


def _command_key(plan: Plan) -> Callable[[PlannedCommand], bytes]:
    """Return what identifies a command, with its launches."""
    launches = {claim.name: _encode(_comparable_claim(claim)) for claim in plan.node_claims}

    def key(command: PlannedCommand) -> bytes:
        replaced = sorted(launches.get(name, name.encode()) for name in command.replacements)
        return b"\0".join((_encode(_comparable_command(command)), *replaced))

    return key


def _action_keys(plan: Plan) -> list[bytes]:
    """Return the actions without generated names, each with the actions that it waits for."""
    claims = {c.name: _claim_key(plan)(c) for c in plan.node_claims}
    commands = {c.id: _command_key(plan)(c) for c in plan.commands}
    keys = {action.id: _action_key(action, claims, commands) for action in plan.actions}
    return [
        b"\0\0".join(
            (keys[a.id], *sorted(keys.get(other, other.encode()) for other in a.depends_on))
        )
        for a in plan.actions
    ]


def _action_key(
    action: Action, claims: Mapping[str, bytes], commands: Mapping[str, bytes]
) -> bytes:
    plain: JsonDict = msgspec.to_builtins(action.omit_empty())
    for generated in ("id", "dependsOn", "command", "nodeClaim"):
        del plain[generated]
    claim = action.node_claim or ""
    command = action.command or ""
    named = (claims.get(claim, claim.encode()), commands.get(command, command.encode()))
    return b"\0".join((_encode(plain), *named))


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _field_differences(
    old: Mapping[str, object], new: Mapping[str, object], prefix: str = ""
) -> list[str]:
    """Return the fields that differ, each with both values."""
    found: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += _field_differences(before, after, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key} {_format_value(before)}, now {_format_value(after)}")
    return found


def _format_value(value: object) -> str:
    return "nothing" if value in (None, "", [], {}) else _sanitize(_encode(value).decode(), 100)


def _format_names(nodes: Iterable[str]) -> str:
    return format_list(map(_sanitize, nodes), 3)


def _sanitize(text: str, length_max: int = 80) -> str:
    """Return text from a plan file as it can be shown in a message: short, one line, printable."""
    plain = "".join(c if c.isprintable() else "�" for c in str(text))
    return plain if len(plain) <= length_max else f"{plain[:length_max]}…"
