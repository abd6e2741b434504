"""The CRDs' CEL rules as Python predicates, each under its name in the schema.

Those of NodePools, NodeClaims and NodeOverlays are here, those of EC2NodeClasses in ``nodeclass``.
The text of each rule is in ``schemas/`` beside the field that it checks; a test evaluates that text
with a CEL engine on generated objects and compares it with the function here. At run time no CEL
engine is loaded: its import alone takes longer than a complete validation may. A predicate receives
the value of the field with the rule and yields a violation for each error: where it is below that
field, what is wrong, what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from reconciler.model.json import JsonDict
from reconciler.model.text.nearest import nearest
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer

Violation = tuple[Pointer, str, str]
Predicate = Callable[[Any], Iterator[Violation]]

_AWS: Final = "karpenter.k8s.aws"
_AWS_NAMES: Final = (
    "ec2nodeclass instance-encryption-in-transit-supported nitro-sandbox instance-category "
    "instance-hypervisor instance-family instance-generation instance-local-nvme instance-size "
    "instance-cpu instance-cpu-manufacturer instance-cpu-sustained-clock-speed-mhz "
    "instance-memory instance-ebs-bandwidth instance-network-bandwidth instance-gpu-name "
    "instance-gpu-manufacturer instance-gpu-count instance-gpu-memory instance-accelerator-name "
    "instance-accelerator-manufacturer instance-accelerator-count instance-capability-flex"
)
_AWS_OVERLAY: Final = frozenset(f"{_AWS}/{name}" for name in _AWS_NAMES.split())
_AWS_POOL: Final = _AWS_OVERLAY | {
    f"{_AWS}/{name}"
    for name in (
        "instance-tenancy",
        "capacity-reservation-type",
        "capacity-reservation-id",
        "capacity-reservation-interruptible",
        "placement-group-id",
        "placement-group-partition",
    )
}
_CORE: Final = frozenset({"karpenter.sh/capacity-type", "karpenter.sh/nodepool"})
_SIMILARITY_MIN: Final = 0.8
"""The minimum similarity for suggesting a known label in place of a reserved one."""
_BOUNDS: Final = frozenset({"Gt", "Lt", "Gte", "Lte"})
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)

_BY_ENGINE: Final = "the engine sets it"
_BY_NODE: Final = "each node has its own"


def _in_domain(key: str, domain: str) -> bool:
    """Return whether the part before the first slash ends with ``domain``."""
    return re.split("/", key, maxsplit=1)[0].endswith(domain)


def _key_domain(domain: str, allowed: frozenset[str]) -> Predicate:
    def check(key: str) -> Iterator[Violation]:
        if key not in allowed and _in_domain(key, domain):
            message = f"label {quote_value(key)} is not allowed: the {domain} domain is reserved"
            near = nearest(
                key.rpartition("/")[2], [k.rpartition("/")[2] for k in allowed], _SIMILARITY_MIN
            )
            meant = next((k for k in sorted(allowed) if near and k.endswith(f"/{near}")), "")
            advice = f"did you mean {meant}?" if meant else "use your own domain"
            yield (), message, advice

    return check


def _map_domain(domain: str, allowed: frozenset[str]) -> Predicate:
    check_key = _key_domain(domain, allowed)

    def check(labels: dict[str, object]) -> Iterator[Violation]:
        for key in labels:
            for _, message, hint in check_key(key):
                yield (key,), message, hint

    return check


def _forbid_key(forbidden: str, reason: str) -> Predicate:
    def check(key: str) -> Iterator[Violation]:
        if key == forbidden:
            yield (), f"label {quote_value(forbidden)} is not allowed: {reason}", "remove it"

    return check


def _forbid_map_key(forbidden: str, reason: str) -> Predicate:
    def check(labels: JsonDict) -> Iterator[Violation]:
        if forbidden in labels:
            yield (
                (forbidden,),
                f"label {quote_value(forbidden)} is not allowed: {reason}",
                "remove it",
            )

    return check


def _needs_values(operator: str) -> Predicate:
    def check(requirements: list[JsonDict]) -> Iterator[Violation]:
        for index, requirement in enumerate(requirements):
            if requirement.get("operator") == operator and not requirement.get("values"):
                yield (index, "values"), f"is empty; {operator} needs at least one value", ""

    return check


def _check_bound(requirements: list[JsonDict]) -> Iterator[Violation]:
    for index, requirement in enumerate(requirements):
        operator = requirement.get("operator")
        if operator not in _BOUNDS:
            continue
        values = requirement.get("values") or []
        if len(values) != 1:
            message = f"{operator} needs exactly one value, not {len(values)}"
            yield (index, "values"), message, "write one non-negative integer, in quotes"
        elif not is_natural(values[0]):
            message = f"{operator} needs a non-negative integer, not {quote_value(values[0])}"
            yield (index, "values", 0), message, ""


def is_natural(text: str) -> bool:
    """Return whether ``text`` is a 64-bit integer from 0 up, as Go's ``strconv`` reads it."""
    return _INTEGER.fullmatch(text) is not None and 0 <= int(text) < 2**63


def _min_values(requirements: list[JsonDict]) -> Iterator[Violation]:
    for index, requirement in enumerate(requirements):
        least = requirement.get("minValues")
        values = requirement.get("values") or []
        if requirement.get("operator") == "In" and least is not None and len(values) < least:
            listed = "1 value is" if len(values) == 1 else f"{len(values)} values are"
            message = f"minValues is {least}, but only {listed} listed"
            yield (index, "minValues"), message, "list more values, or lower minValues"


def _budgets(budgets: list[JsonDict]) -> Iterator[Violation]:
    for index, budget in enumerate(budgets):
        has_schedule, has_duration = "schedule" in budget, "duration" in budget
        if has_schedule != has_duration:
            missing = "duration" if has_schedule else "schedule"
            present = "schedule" if has_schedule else "duration"
            message = f"`schedule` and `duration` must be set together; only `{present}` is set"
            yield (index, missing), message, f"set both, or remove {present}"


def _static_limits(spec: JsonDict) -> Iterator[Violation]:
    limits = spec.get("limits")
    if "replicas" in spec and limits and set(limits) != {"nodes"}:
        for key in sorted(set(limits) - {"nodes"}):
            message = "only `limits.nodes` is supported on a static NodePool (replicas is set)"
            yield ("limits", key), message, "remove it"


def _static_weight(spec: dict[str, object]) -> Iterator[Violation]:
    if "replicas" in spec and "weight" in spec:
        yield ("weight",), "is not supported on a static NodePool (replicas is set)", "remove it"


def not_empty(text: str) -> Iterator[Violation]:
    """Check a text that may not be empty."""
    if text == "":
        yield (), "is empty", ""


def _overlay_capacity(capacity: dict[str, object]) -> Iterator[Violation]:
    for name in sorted({"cpu", "memory", "ephemeral-storage", "pods"} & set(capacity)):
        yield (
            (name,),
            f"{name} cannot be changed; only extended resources can be added",
            "remove it",
        )


def _overlay_price(spec: dict[str, object]) -> Iterator[Violation]:
    if "price" in spec and "priceAdjustment" in spec:
        yield (
            ("priceAdjustment",),
            "cannot set both `price` and `priceAdjustment`",
            "keep one of them",
        )


def _buffer_size(spec: dict[str, object]) -> Iterator[Violation]:
    if "podTemplateRef" in spec and not {"replicas", "limits"} & set(spec):
        text = "needs replicas or limits; neither is set"
        yield ("podTemplateRef",), text, "set replicas"


def _buffer_reference(spec: dict[str, object]) -> Iterator[Violation]:
    if "podTemplateRef" in spec and "scalableRef" in spec:
        yield ("scalableRef",), "cannot be set together with podTemplateRef", "remove one"


PREDICATES: Final[dict[str, Predicate]] = {
    "labels-domain-karpenter": _map_domain("karpenter.sh", _CORE),
    "labels-nodepool": _forbid_map_key("karpenter.sh/nodepool", _BY_ENGINE),
    "labels-hostname": _forbid_map_key("kubernetes.io/hostname", _BY_NODE),
    "labels-domain-aws": _map_domain(_AWS, _AWS_POOL),
    "label-domain-karpenter": _key_domain("karpenter.sh", _CORE),
    "label-nodepool": _forbid_key("karpenter.sh/nodepool", _BY_ENGINE),
    "label-hostname": _forbid_key("kubernetes.io/hostname", _BY_NODE),
    "label-domain-aws": _key_domain(_AWS, _AWS_POOL),
    "label-domain-aws-overlay": _key_domain(_AWS, _AWS_OVERLAY),
    "requirement-in-values": _needs_values("In"),
    "requirement-not-in-values": _needs_values("NotIn"),
    "requirement-bound": _check_bound,
    "requirement-min-values": _min_values,
    "budget-schedule-duration": _budgets,
    "static-limits": _static_limits,
    "static-weight": _static_weight,
    "node-class-group": not_empty,
    "node-class-kind": not_empty,
    "node-class-name": not_empty,
    "overlay-capacity": _overlay_capacity,
    "overlay-price": _overlay_price,
    "buffer-size": _buffer_size,
    "buffer-reference": _buffer_reference,
}
