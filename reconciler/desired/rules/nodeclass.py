"""The CEL rules of the EC2NodeClass as Python predicates, as in ``cel``.

Some rules on selector terms reject only if *every* term is invalid (``!self.all``). That is
Karpenter's text, and it is kept although it is weak: what the API admits is not rejected here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from reconciler.desired.rules.nodepool import Predicate, Violation, not_empty
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.imagefamily import ALIAS_FAMILIES
from reconciler.model.text.quoting import quote_value


def _list_not_empty(terms: list[JsonDict]) -> Iterator[Violation]:
    if not terms:
        yield (), "is empty; at least one term is needed", ""


def _has_one_of(*fields: str) -> Predicate:
    """Every term has at least one of the fields."""
    words = ", ".join(fields)

    def check(terms: list[JsonDict]) -> Iterator[Violation]:
        for index, term in enumerate(terms):
            if not any(field in term for field in fields):
                yield (index,), f"must have at least one of {words}", ""

    return check


def _one_of(*fields: str) -> Predicate:
    words = ", ".join(fields)

    def check(value: dict[str, object]) -> Iterator[Violation]:
        if not any(field in value for field in fields):
            yield (), f"needs at least one of {words}", ""

    return check


def _exclusive_in_any(field: str, *others: str) -> Predicate:
    """No term has ``field`` together with others."""

    def check(terms: list[JsonDict]) -> Iterator[Violation]:
        for index, term in enumerate(terms):
            yield from _exclusive_violations(index, term, field, others)

    return check


def _exclusive_in_all(field: str, *others: str) -> Predicate:
    """Not every term has ``field`` together with others: Karpenter's rule, although it is weak."""

    def check(terms: list[JsonDict]) -> Iterator[Violation]:
        found = [
            list(_exclusive_violations(index, term, field, others))
            for index, term in enumerate(terms)
        ]
        if terms and all(found):
            for violations in found:
                yield from violations
        elif not terms:
            yield (), "is empty", ""

    return check


def _exclusive_violations(
    index: int, term: dict[str, object], field: str, others: Iterable[str]
) -> Iterator[Violation]:
    extra = [other for other in others if other in term]
    if field in term and extra:
        message = f"`{field}` is mutually exclusive with {', '.join(f'`{e}`' for e in extra)}"
        yield (index,), message, f"keep {field}, or the others"


def _alias_alone(terms: list[JsonDict]) -> Iterator[Violation]:
    if len(terms) > 1:
        for index, term in enumerate(terms):
            if "alias" in term:
                message = "`alias` is mutually exclusive with other terms"
                yield (
                    (index, "alias"),
                    message,
                    "keep the alias alone, or select by id, name or tags",
                )
                return


def _alias_format(alias: str) -> Iterator[Violation]:
    if re.match(r"[a-zA-Z0-9]+@[^\n]+$", alias) is None:
        yield (), f"invalid alias {quote_value(alias)}; must be family@version", "al2023@v20250610"


def _alias_family(alias: str) -> Iterator[Violation]:
    family = alias.partition("@")[0]
    if family not in ALIAS_FAMILIES:
        yield (
            (),
            f"unsupported family {quote_value(family)}",
            f"one of {', '.join(ALIAS_FAMILIES)}",
        )


def _alias_windows(alias: str) -> Iterator[Violation]:
    family, *version = alias.split("@")
    if family.startswith("windows") and family in ALIAS_FAMILIES and version[:1] != ["latest"]:
        yield (
            (),
            f"unsupported alias {quote_value(alias)}; Windows only has version latest",
            f"{family}@latest",
        )


def _family_of_alias(family: str) -> Predicate:
    """``amiFamily`` agrees with an alias of ``family``, or is Custom."""
    expected = ALIAS_FAMILIES[family]

    def check(spec: JsonDict) -> Iterator[Violation]:
        chosen = spec.get("amiFamily")
        if chosen in (None, expected, "Custom"):
            return
        if any(re.split("@", t.get("alias", ""))[0] == family for t in spec["amiSelectorTerms"]):
            message = f"amiFamily is {chosen}, but the alias is of {expected}"
            yield ("amiFamily",), message, f"write {expected} or Custom, or remove it"

    return check


def _family_missing(spec: JsonDict) -> Iterator[Violation]:
    if "amiFamily" not in spec and not any("alias" in term for term in spec["amiSelectorTerms"]):
        yield (
            ("amiFamily",),
            "required field `amiFamily` is missing (no alias selects a family)",
            "example: AL2023",
        )


def _role_or_profile(spec: dict[str, object]) -> Iterator[Violation]:
    if "role" in spec and "instanceProfile" in spec:
        message = "must specify exactly one of `role` and `instanceProfile`, not both"
        yield ("instanceProfile",), message, "remove one of them"
    elif "role" not in spec and "instanceProfile" not in spec:
        yield ("role",), "must specify exactly one of `role` and `instanceProfile`", ""


def _selector_tags(tags: dict[str, object]) -> Iterator[Violation]:
    for key, value in tags.items():
        if key == "" or value == "":
            yield (key,), "empty tag keys or values aren't supported", "use * for any value"


def _tag_key(tags: JsonDict) -> Iterator[Violation]:
    if "" in tags:
        yield ("",), "empty tag keys aren't supported", "remove it"


def _no_tag(forbidden: str) -> Predicate:
    def check(tags: dict[str, object]) -> Iterator[Violation]:
        if forbidden in tags:
            yield (
                (forbidden,),
                f"tag {quote_value(forbidden)} is not allowed: the engine sets it",
                "remove it",
            )

    return check


def _no_cluster_tag(tags: dict[str, object]) -> Iterator[Violation]:
    for key in tags:
        if key.startswith("kubernetes.io/cluster"):
            yield (key,), "tags under kubernetes.io/cluster are restricted", "remove it"


def _group_exclusive(value: dict[str, object]) -> Iterator[Violation]:
    if "name" in value and "id" in value:
        yield ("id",), "`name` and `id` are mutually exclusive", "keep one of them"


def _volume_source(ebs: dict[str, object]) -> Iterator[Violation]:
    if "snapshotID" not in ebs and "volumeSize" not in ebs:
        yield (), "snapshotID or volumeSize must be defined", "example: volumeSize: 100Gi"


def _volume_initialization(ebs: dict[str, object]) -> Iterator[Violation]:
    if "volumeInitializationRate" in ebs and not ebs.get("snapshotID"):
        yield ("volumeInitializationRate",), "requires snapshotID", "only snapshots are initialized"


def _root_volume(mappings: list[JsonDict]) -> Iterator[Violation]:
    roots = [i for i, mapping in enumerate(mappings) if mapping.get("rootVolume") is True]
    for index in roots[1:]:
        yield (index, "rootVolume"), "must have only one blockDeviceMappings with rootVolume", ""


def _primary_interface(interfaces: list[JsonDict]) -> Iterator[Violation]:
    primary = {"deviceIndex": 0, "networkCardIndex": 0, "interfaceType": "interface"}
    if interfaces and not any(primary.items() <= interface.items() for interface in interfaces):
        message = "the primary interface is missing"
        hint = "add networkCardIndex: 0, deviceIndex: 0, interfaceType: interface"
        yield (), message, hint


def _interface_pairs(interfaces: list[JsonDict]) -> Iterator[Violation]:
    pairs = [(i["networkCardIndex"], i["deviceIndex"]) for i in interfaces]
    cards = Counter(i["networkCardIndex"] for i in interfaces if i["interfaceType"] == "efa-only")
    seen: set[tuple[int, int]] = set()
    efa: set[int] = set()
    for index, (interface, pair) in enumerate(zip(interfaces, pairs, strict=True)):
        card = pair[0]
        if pair in seen:
            message = f"duplicate device {pair[1]} of network card {card}"
            yield (index,), message, "use different deviceIndex values"
        elif interface["interfaceType"] == "efa-only" and cards[card] > 1 and card in efa:
            yield (index,), f"network card {card} has more than one efa-only device", ""
        seen.add(pair)
        if interface["interfaceType"] == "efa-only":
            efa.add(card)


PREDICATES: Final[dict[str, Predicate]] = {
    "role-empty": not_empty,
    "instance-profile-empty": not_empty,
    "role-or-instance-profile": _role_or_profile,
    "alias-format": _alias_format,
    "alias-family": _alias_family,
    "alias-windows": _alias_windows,
    "ami-term-empty": _has_one_of("tags", "id", "name", "alias", "ssmParameter"),
    "ami-term-id": _exclusive_in_any("id", "alias", "tags", "name", "owner"),
    "ami-term-alias": _exclusive_in_any("alias", "id", "tags", "name", "owner"),
    "ami-alias-alone": _alias_alone,
    "ami-family-missing": _family_missing,
    **{f"ami-family-{family}": _family_of_alias(family) for family in ALIAS_FAMILIES},
    "subnet-terms-empty": _list_not_empty,
    "subnet-term-empty": _has_one_of("tags", "id"),
    "subnet-term-id": _exclusive_in_all("id", "tags"),
    "security-group-terms-empty": _list_not_empty,
    "security-group-term-empty": _has_one_of("tags", "id", "name"),
    "security-group-term-id": _exclusive_in_all("id", "tags", "name"),
    "security-group-term-name": _exclusive_in_all("name", "tags", "id"),
    "reservation-term-empty": _has_one_of("tags", "id", "instanceMatchCriteria"),
    "reservation-term-id": _exclusive_in_all("id", "tags", "ownerID", "instanceMatchCriteria"),
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
