"""The CRDs' CEL rules as Python predicates, each under the name it bears in the schema.

The text of each rule stands in ``schemas/`` beside the field it judges; a test evaluates that text
with a CEL engine on generated objects and holds it against the function here. At run time no CEL
engine is loaded: its import alone takes longer than a whole validation may.

A predicate gets the value of the field that bears the rule and yields a violation for each
offender: where it is below that field, what is wrong, what to do. Some rules only refuse when
*every* term of a list offends (``!self.all``); that is Karpenter's text, and it is kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from reconciler.desired.document import Pointer
from reconciler.desired.finding import shown

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
_BOUNDS: Final = frozenset({"Gt", "Lt", "Gte", "Lte"})
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def _in_domain(key: str, domain: str) -> bool:
    """Return whether what stands before the first slash ends with ``domain``."""
    return re.split("/", key, maxsplit=1)[0].endswith(domain)


def _key_domain(domain: str, allowed: frozenset[str]) -> Predicate:
    def check(key: str) -> Iterator[Violation]:
        if key not in allowed and _in_domain(key, domain):
            yield (
                (),
                f"the label {shown(key)} is restricted: {domain} is not for labels of your own",
                ("use a well-known label, or a domain of your own"),
            )

    return check


def _map_domain(domain: str, allowed: frozenset[str]) -> Predicate:
    check_key = _key_domain(domain, allowed)

    def check(labels: dict[str, Any]) -> Iterator[Violation]:
        for key in labels:
            for _, message, hint in check_key(key):
                yield (key,), message, hint

    return check


def _not_key(refused: str, why: str) -> Predicate:
    def check(key: str) -> Iterator[Violation]:
        if key == refused:
            yield (), f"the label {refused} is restricted: {why}", "remove it"

    return check


def _not_in_map(refused: str, why: str) -> Predicate:
    def check(labels: dict[str, Any]) -> Iterator[Violation]:
        if refused in labels:
            yield (refused,), f"the label {refused} is restricted: {why}", "remove it"

    return check


_BY_ENGINE: Final = "the engine sets it"
_BY_NODE: Final = "each node has its own"


def _needs_values(operator: str) -> Predicate:
    def check(requirements: list[Any]) -> Iterator[Violation]:
        for index, requirement in enumerate(requirements):
            if requirement.get("operator") == operator and not requirement.get("values"):
                yield (index, "values"), f"is empty; {operator} needs at least one value", ""

    return check


def _bound(requirements: list[Any]) -> Iterator[Violation]:
    for index, requirement in enumerate(requirements):
        operator = requirement.get("operator")
        if operator not in _BOUNDS:
            continue
        values = requirement.get("values") or []
        if len(values) != 1:
            message = f"has {len(values)} values; {operator} needs exactly one"
            yield (index, "values"), message, "write one non-negative integer, as text"
        elif not is_natural(values[0]):
            message = f"is {shown(values[0])}; {operator} needs a non-negative integer"
            yield (index, "values", 0), message, ""


def is_natural(text: str) -> bool:
    """Return whether ``text`` is a 64-bit integer from 0 up, as Go's ``strconv`` reads it."""
    return _INTEGER.fullmatch(text) is not None and 0 <= int(text) < 2**63


def _min_values(requirements: list[Any]) -> Iterator[Violation]:
    for index, requirement in enumerate(requirements):
        least = requirement.get("minValues")
        values = requirement.get("values") or []
        if requirement.get("operator") == "In" and least is not None and len(values) < least:
            message = f"is {least}, but only {len(values)} values are listed"
            yield (index, "minValues"), message, "list more values, or ask for fewer"


def _budgets(budgets: list[Any]) -> Iterator[Violation]:
    for index, budget in enumerate(budgets):
        has_schedule, has_duration = "schedule" in budget, "duration" in budget
        if has_schedule != has_duration:
            missing = "duration" if has_schedule else "schedule"
            present = "schedule" if has_schedule else "duration"
            message = f"is missing: 'schedule' must be set with 'duration', and {present} is set"
            yield (index, missing), message, f"set both, or remove {present}"


def _static_limits(spec: dict[str, Any]) -> Iterator[Violation]:
    limits = spec.get("limits")
    if "replicas" in spec and limits and set(limits) != {"nodes"}:
        for key in sorted(set(limits) - {"nodes"}):
            message = "only 'limits.nodes' is supported on a static NodePool (replicas is set)"
            yield ("limits", key), message, "remove it"


def _static_weight(spec: dict[str, Any]) -> Iterator[Violation]:
    if "replicas" in spec and "weight" in spec:
        yield ("weight",), "is not supported on a static NodePool (replicas is set)", "remove it"


def _not_empty(text: str) -> Iterator[Violation]:
    if text == "":
        yield (), "is empty", ""


def _list_not_empty(terms: list[Any]) -> Iterator[Violation]:
    if not terms:
        yield (), "is empty; at least one term is needed", ""


def _overlay_capacity(capacity: dict[str, Any]) -> Iterator[Violation]:
    for name in sorted({"cpu", "memory", "ephemeral-storage", "pods"} & set(capacity)):
        yield (
            (name,),
            f"{name} cannot be changed; only extended resources can be added",
            "remove it",
        )


def _overlay_price(spec: dict[str, Any]) -> Iterator[Violation]:
    if "price" in spec and "priceAdjustment" in spec:
        yield (
            ("priceAdjustment",),
            "cannot set both 'price' and 'priceAdjustment'",
            "keep one of them",
        )


def _has_one_of(*fields: str) -> Predicate:
    """Every term has at least one of the fields."""
    words = ", ".join(fields)

    def check(terms: list[Any]) -> Iterator[Violation]:
        for index, term in enumerate(terms):
            if not any(field in term for field in fields):
                yield (index,), f"selects nothing: it needs at least one of {words}", ""

    return check


def _one_of(*fields: str) -> Predicate:
    words = ", ".join(fields)

    def check(value: dict[str, Any]) -> Iterator[Violation]:
        if not any(field in value for field in fields):
            yield (), f"needs at least one of {words}", ""

    return check


def _alone_in_any(field: str, *others: str) -> Predicate:
    """No term has ``field`` together with others."""

    def check(terms: list[Any]) -> Iterator[Violation]:
        for index, term in enumerate(terms):
            yield from _together(index, term, field, others)

    return check


def _alone_in_all(field: str, *others: str) -> Predicate:
    """Not every term has ``field`` together with others: Karpenter's rule, weak as it is."""

    def check(terms: list[Any]) -> Iterator[Violation]:
        found = [list(_together(index, term, field, others)) for index, term in enumerate(terms)]
        if terms and all(found):
            for violations in found:
                yield from violations
        elif not terms:
            yield (), "is empty", ""

    return check


def _together(
    index: int, term: dict[str, Any], field: str, others: Iterable[str]
) -> Iterator[Violation]:
    extra = [other for other in others if other in term]
    if field in term and extra:
        message = f"'{field}' is mutually exclusive with {', '.join(extra)}"
        yield (index,), message, f"keep {field}, or the others"


def _alias_alone(terms: list[Any]) -> Iterator[Violation]:
    if len(terms) > 1:
        for index, term in enumerate(terms):
            if "alias" in term:
                message = "'alias' is mutually exclusive with other terms"
                yield (
                    (index, "alias"),
                    message,
                    "keep the alias alone, or select by id, name or tags",
                )
                return


_ALIAS_FAMILIES: Final = {
    "al2": "AL2",
    "al2023": "AL2023",
    "bottlerocket": "Bottlerocket",
    "windows2019": "Windows2019",
    "windows2022": "Windows2022",
    "windows2025": "Windows2025",
}


def _alias_format(alias: str) -> Iterator[Violation]:
    if re.match(r"[a-zA-Z0-9]+@[^\n]+$", alias) is None:
        yield (), f"is {shown(alias)}; must be family@version", "example: al2023@v20250610"


def _alias_family(alias: str) -> Iterator[Violation]:
    family = alias.partition("@")[0]
    if family not in _ALIAS_FAMILIES:
        yield (
            (),
            f"the family {shown(family)} is not supported",
            f"one of {', '.join(_ALIAS_FAMILIES)}",
        )


def _alias_windows(alias: str) -> Iterator[Violation]:
    family, *version = alias.split("@")
    if family.startswith("windows") and family in _ALIAS_FAMILIES and version[:1] != ["latest"]:
        yield (), f"is {shown(alias)}; Windows knows only the version latest", f"{family}@latest"


def _family_of_alias(family: str) -> Predicate:
    """``amiFamily`` agrees with an alias of ``family``, or is Custom."""
    right = _ALIAS_FAMILIES[family]

    def check(spec: dict[str, Any]) -> Iterator[Violation]:
        chosen = spec.get("amiFamily")
        if chosen in (None, right, "Custom"):
            return
        if any(re.split("@", t.get("alias", ""))[0] == family for t in spec["amiSelectorTerms"]):
            message = f"is {chosen}, but the alias is of {right}"
            yield ("amiFamily",), message, f"write {right} or Custom, or remove it"

    return check


def _family_missing(spec: dict[str, Any]) -> Iterator[Violation]:
    if "amiFamily" not in spec and not any("alias" in term for term in spec["amiSelectorTerms"]):
        yield (
            ("amiFamily",),
            "is missing: without an alias the family must be said",
            "example: AL2023",
        )


def _role_or_profile(spec: dict[str, Any]) -> Iterator[Violation]:
    if "role" in spec and "instanceProfile" in spec:
        message = "must specify exactly one of 'role' and 'instanceProfile', not both"
        yield ("instanceProfile",), message, "remove one of them"
    elif "role" not in spec and "instanceProfile" not in spec:
        yield ("role",), "is missing: exactly one of 'role' and 'instanceProfile' is needed", ""


def _selector_tags(tags: dict[str, Any]) -> Iterator[Violation]:
    for key, value in tags.items():
        if key == "" or value == "":
            yield (key,), "empty tag keys or values aren't supported", "use * for any value"


def _tag_key(tags: dict[str, Any]) -> Iterator[Violation]:
    if "" in tags:
        yield ("",), "empty tag keys aren't supported", "remove it"


def _no_tag(refused: str) -> Predicate:
    def check(tags: dict[str, Any]) -> Iterator[Violation]:
        if refused in tags:
            yield (refused,), f"the tag {refused} is restricted: the engine writes it", "remove it"

    return check


def _no_cluster_tag(tags: dict[str, Any]) -> Iterator[Violation]:
    for key in tags:
        if key.startswith("kubernetes.io/cluster"):
            yield (key,), "tags under kubernetes.io/cluster are restricted", "remove it"


def _group_exclusive(value: dict[str, Any]) -> Iterator[Violation]:
    if "name" in value and "id" in value:
        yield ("id",), "'name' and 'id' are mutually exclusive", "keep one of them"


def _volume_source(ebs: dict[str, Any]) -> Iterator[Violation]:
    if "snapshotID" not in ebs and "volumeSize" not in ebs:
        yield (), "snapshotID or volumeSize must be defined", "example: volumeSize: 100Gi"


def _volume_initialization(ebs: dict[str, Any]) -> Iterator[Violation]:
    if "volumeInitializationRate" in ebs and not ebs.get("snapshotID"):
        yield ("volumeInitializationRate",), "needs a snapshotID", "only snapshots are loaded"


def _root_volume(mappings: list[Any]) -> Iterator[Violation]:
    roots = [i for i, mapping in enumerate(mappings) if mapping.get("rootVolume") is True]
    for index in roots[1:]:
        yield (index, "rootVolume"), "must have only one blockDeviceMappings with rootVolume", ""


def _primary_interface(interfaces: list[Any]) -> Iterator[Violation]:
    primary = {"deviceIndex": 0, "networkCardIndex": 0, "interfaceType": "interface"}
    if interfaces and not any(primary.items() <= interface.items() for interface in interfaces):
        message = "lacks the primary interface"
        hint = "add networkCardIndex: 0, deviceIndex: 0, interfaceType: interface"
        yield (), message, hint


def _interface_pairs(interfaces: list[Any]) -> Iterator[Violation]:
    pairs = [(i["networkCardIndex"], i["deviceIndex"]) for i in interfaces]
    cards = Counter(i["networkCardIndex"] for i in interfaces if i["interfaceType"] == "efa-only")
    seen: set[tuple[int, int]] = set()
    efa: set[int] = set()
    for index, (interface, pair) in enumerate(zip(interfaces, pairs, strict=True)):
        card = pair[0]
        if pair in seen:
            yield (index,), f"network card {card} has device {pair[1]} twice", "number them apart"
        elif interface["interfaceType"] == "efa-only" and cards[card] > 1 and card in efa:
            yield (index,), f"network card {card} has more than one efa-only device", ""
        seen.add(pair)
        if interface["interfaceType"] == "efa-only":
            efa.add(card)


PREDICATES: Final[dict[str, Predicate]] = {
    "labels-domain-karpenter": _map_domain("karpenter.sh", _CORE),
    "labels-nodepool": _not_in_map("karpenter.sh/nodepool", _BY_ENGINE),
    "labels-hostname": _not_in_map("kubernetes.io/hostname", _BY_NODE),
    "labels-domain-aws": _map_domain(_AWS, _AWS_POOL),
    "label-domain-karpenter": _key_domain("karpenter.sh", _CORE),
    "label-nodepool": _not_key("karpenter.sh/nodepool", _BY_ENGINE),
    "label-hostname": _not_key("kubernetes.io/hostname", _BY_NODE),
    "label-domain-aws": _key_domain(_AWS, _AWS_POOL),
    "label-domain-aws-overlay": _key_domain(_AWS, _AWS_OVERLAY),
    "requirement-in-values": _needs_values("In"),
    "requirement-not-in-values": _needs_values("NotIn"),
    "requirement-bound": _bound,
    "requirement-min-values": _min_values,
    "budget-schedule-duration": _budgets,
    "static-limits": _static_limits,
    "static-weight": _static_weight,
    "node-class-group": _not_empty,
    "node-class-kind": _not_empty,
    "node-class-name": _not_empty,
    "overlay-capacity": _overlay_capacity,
    "overlay-price": _overlay_price,
    "role-empty": _not_empty,
    "instance-profile-empty": _not_empty,
    "role-or-instance-profile": _role_or_profile,
    "alias-format": _alias_format,
    "alias-family": _alias_family,
    "alias-windows": _alias_windows,
    "ami-term-empty": _has_one_of("tags", "id", "name", "alias", "ssmParameter"),
    "ami-term-id": _alone_in_any("id", "alias", "tags", "name", "owner"),
    "ami-term-alias": _alone_in_any("alias", "id", "tags", "name", "owner"),
    "ami-alias-alone": _alias_alone,
    "ami-family-missing": _family_missing,
    **{f"ami-family-{family}": _family_of_alias(family) for family in _ALIAS_FAMILIES},
    "subnet-terms-empty": _list_not_empty,
    "subnet-term-empty": _has_one_of("tags", "id"),
    "subnet-term-id": _alone_in_all("id", "tags"),
    "security-group-terms-empty": _list_not_empty,
    "security-group-term-empty": _has_one_of("tags", "id", "name"),
    "security-group-term-id": _alone_in_all("id", "tags", "name"),
    "security-group-term-name": _alone_in_all("name", "tags", "id"),
    "reservation-term-empty": _has_one_of("tags", "id", "instanceMatchCriteria"),
    "reservation-term-id": _alone_in_all("id", "tags", "ownerID", "instanceMatchCriteria"),
    "placement-group-empty": _one_of("name", "id"),
    "placement-group-exclusive": _group_exclusive,
    "selector-tags": _selector_tags,
    "tag-key": _tag_key,
    "tag-cluster-name": _no_tag("eks:eks-cluster-name"),
    "tag-cluster": _no_cluster_tag,
    "tag-nodepool": _no_tag("karpenter.sh/nodepool"),
    "tag-nodeclaim": _no_tag("karpenter.sh/nodeclaim"),
    "tag-nodeclass": _no_tag("karpenter.k8s.aws/ec2nodeclass"),
    "volume-source": _volume_source,
    "volume-initialization": _volume_initialization,
    "root-volume": _root_volume,
    "primary-interface": _primary_interface,
    "interface-pairs": _interface_pairs,
    "connection-tracking-empty": _one_of("tcpEstablishedTimeout", "udpStreamTimeout", "udpTimeout"),
}
