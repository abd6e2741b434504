"""Removes names from the objects of a snapshot, and keeps what decisions depend on.

It works on objects that were decoded into the model, so fields that no decision reads (environment,
images, commands, mounted files) are already gone. Of the rest, every text is replaced unless its
field or its value is known to be needed: a field that is unknown to this module is hidden, not
shown. A name is replaced by its keyed hash, so equal names stay equal wherever they occur, in
owners, selectors, volume claims and records, and with the same key in later snapshots as well.

What is kept is the vocabulary of Kubernetes and AWS (``publicterms``), the ids of AWS resources,
and the keys and values of labels, taints and tags that the fleet's files refer to. A text of a
NodePool, NodeOverlay or EC2NodeClass is kept only if the files contain it: the cluster may have
others, of which the readers of the files know nothing. User data is hashed. The
records keep it where it is that of the files; otherwise a plan would show it as changed. Only
somebody with the key can determine whether a hash represents a certain name.
"""

from __future__ import annotations

import hmac
import re
from base64 import b32encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import (
    BUFFER_NAME,
    BUFFER_NAMESPACE,
    NODECLASS,
    NODEPOOL,
    POD_DELETION_COST,
)
from reconciler.observed.publicterms import (
    DURATION,
    FIELDS,
    FORMS,
    KEYS,
    TIME,
    is_amount,
    is_kind,
    is_resource,
    is_value,
)
from reconciler.observed.snapshot import RECORDS_KIND
from reconciler.observed.vocabulary import CONFIGURED, LABEL_MAPS, Vocabulary

KEY_BYTES_MIN: Final = 16
"""A shorter key could be found by trying."""

_CLAIM_TAG: Final = "karpenter.sh/nodeclaim"
_AMOUNTS: Final = frozenset(
    {
        "requests",
        "limits",
        "capacity",
        "allocatable",
        "overhead",
        "allocatedResources",
        "consumedCapacity",
    }
)
_PLAIN_IN_RECORDS: Final = frozenset(
    {
        *("kind", "apiVersion", "type", "status", "phase", "reason", "reasons", "decision", "verb"),
        *("outcome", "state", "code", "group", "instanceType", "zone", "capacityType", "tenancy"),
        *("zoneID", "fleet", "at", "hash", "launchedAt", "startedAt", "endedAt", "healthyAt"),
        *("finishedAt", "since", "until", "stoppedAt", "seenAt", "seen_at", "amount", "revision"),
        *("creationTimestamp", "deletionTimestamp", "lastTransitionTime", "startTime"),
        *("nodePool", "nodePools", "operator", "effect", "expireAfter", "terminationGracePeriod"),
    }
)
"""Fields of the records whose texts are written by the engine, or are in the fleet's files."""
_USER_DATA: Final = "userData"
_DROPPED: Final = frozenset(
    {
        "managedFields",
        "message",
        "findings",
        "parameters",
        "failure",
        "waitsFor",
        "stoppedWhy",
        "generateName",
    }
)
_KEPT_NAMES: Final = frozenset(
    {
        *(
            "",
            "reconciler.yaml",
            "default",
            "kube-system",
            "kube-public",
            "kube-node-lease",
            "default-scheduler",
        ),
        *("system-cluster-critical", "system-node-critical", "Deployment", "StatefulSet"),
        *("ReplicaSet", "ReplicationController", "DaemonSet", "Job", "Pod", "Node"),
    }
)
_LABEL_DOMAINS: Final = frozenset(
    {
        *("karpenter.sh", "karpenter.k8s.aws", "kubernetes.io", "node.kubernetes.io"),
        *("topology.kubernetes.io", "topology.k8s.aws", "topology.ebs.csi.aws.com"),
        *("beta.kubernetes.io", "failure-domain.beta.kubernetes.io", "readiness.k8s.io"),
        *("node.cloudprovider.kubernetes.io", "reconciler", "vpc.amazonaws.com"),
    }
)
"""Domains of labels and taints whose keys are known to planning."""
_VALUE_DOMAINS: Final = _LABEL_DOMAINS - {"kubernetes.io", "readiness.k8s.io"}
_NAMED_BY_VALUE: Final = frozenset({_CLAIM_TAG, BUFFER_NAME, BUFFER_NAMESPACE})
_OWNER_TAG: Final = "eks:eks-cluster-name"
_CLUSTER_TAG: Final = "kubernetes.io/cluster/"
_ANNOTATION_DOMAINS: Final = frozenset({"karpenter.sh", "karpenter.k8s.aws"})
_KEPT_ANNOTATIONS: Final = frozenset(
    {
        POD_DELETION_COST,
        "storageclass.kubernetes.io/is-default-class",
        "reconciler/gave-up",
        "storageclass.beta.kubernetes.io/is-default-class",
        "pv.kubernetes.io/bind-completed",
    }
)
_NOMINATED: Final = "reconciler/nominated-pods"
_DRIVER: Final = re.compile(
    r"([a-z0-9-]{1,63}\.){0,8}(aws\.com|amazonaws\.com|k8s\.io|kubernetes\.io|k8s\.aws)(/[a-z-]{1,63})?"
)
_PROVIDER_ID: Final = re.compile(r"aws:///[a-z0-9-]+/i-[0-9a-f]+")
_AWS_ID: Final = re.compile(r"(i|ami|subnet|sg|lt|cr|vol|pg)-[0-9a-f]{8,17}")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_IDS: Final = {"uid": _UUID, "providerID": _PROVIDER_ID, "driver": _DRIVER, "provisioner": _DRIVER}
_ADDRESSES: Final = frozenset({"0.0.0.0", "::", "127.0.0.1", "::1"})  # noqa: S104 - compared, not bound
_SETTING: Final = re.compile(rf"true|false|v?[0-9]{{1,20}}|{DURATION}|{TIME}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
_HEX: Final = re.compile(r"[0-9a-f-]{1,64}")
_SUBSTITUTES: Final = {"ownerID": "0" * 12}
"""Fields of which even a hash must have the form: accounts of AWS."""


class Anonymizer:
    """Replaces names by hashes with one key.

    ``compared`` are label keys whose values are numbers, besides those of the vocabulary. Hashes
    sort in another order than names, and a plan that finds two nodes equal takes the first. With
    ``in_order`` each hash is preceded by a number, so that they sort as the names did; the number
    of a name differs from snapshot to snapshot.
    """

    def __init__(
        self,
        key: bytes,
        vocabulary: Vocabulary,
        compared: frozenset[str] = frozenset(),
        *,
        in_order: bool = False,
    ) -> None:
        self._key = key
        self._known = vocabulary
        self._compared = compared | vocabulary.compared
        self._in_order = in_order
        self._hashes: dict[str, str] = {}
        self._in_records = False
        self._is_plain_data = False
        self._ephemeral_claims: dict[str, tuple[str, str]] = {}

    def objects(self, items: Iterable[JsonDict]) -> list[JsonDict]:
        """Return objects without names, in the order of the new ones."""
        return self.lists([list(items)])[0]

    def lists(
        self, lists: Sequence[Sequence[JsonDict]], names: Iterable[str] = ()
    ) -> list[list[JsonDict]]:
        """Return lists of objects without names; a name is replaced alike in all of them.

        ``names`` are those that occur elsewhere, and that ``name`` is asked for afterwards.
        """
        self._ephemeral_claims = {
            f"{pod}-{volume}": (pod, volume)
            for item in chain.from_iterable(lists)
            for pod, volume in _ephemeral_volumes(item)
        }
        found = [[self._object(item) for item in items] for items in lists]
        if self._in_order:
            for name in names:
                self.name(name)
            self._number_hashes()
            found = [[self._object(item) for item in items] for items in lists]
        return [sorted(items, key=_sort_key) for items in found]

    def _number_hashes(self) -> None:
        """Put a number before each hash; the first pass has met every name."""
        digits = len(str(len(self._hashes)))
        for number, text in enumerate(sorted(self._hashes)):
            self._hashes[text] = f"x{number:0{digits}}-{self._hashes[text]}"

    def _object(self, item: JsonDict) -> JsonDict:
        kind = item.get("kind", "")
        plain = self._known.texts if kind in CONFIGURED else frozenset()
        self._in_records = kind == RECORDS_KIND
        self._is_plain_data = kind in CONFIGURED or kind.endswith("NodeClass")
        if kind.endswith("NodeClass") and kind not in CONFIGURED:
            item = _conditions_alone(item)
        data = self._mapping(item, "", plain)
        if "objects" in item and self._in_records:
            data["objects"] = self._walk(item["objects"], "objects", self._known.texts)
        return data

    def name(self, text: str) -> str:
        """Return the replacement of a name, or of the parts of ``namespace/name``."""
        if text in _KEPT_NAMES or text in self._known.names or _AWS_ID.fullmatch(text):
            return text
        parts = self._ephemeral_claims.get(text)
        if parts is not None:
            return "-".join(map(self._hash, parts))
        if "/" in text:
            return "/".join(map(self.name, text.split("/")))
        return self._hash(text)

    def _hash(self, text: str) -> str:
        known = self._hashes.get(text)
        if known is None:
            digest = hmac.digest(self._key, text.encode(), "sha256")[:10]
            known = self._hashes[text] = f"x{b32encode(digest).decode().lower()}"
        return known

    def _label_key(self, key: str) -> str:
        """Return a key; of an unknown one in a domain of Kubernetes, the name is replaced."""
        if key in self._known.keys or key in KEYS:
            return key
        if self._in_records and key.startswith(_CLUSTER_TAG):  # it says who owns an instance
            return key
        domain, slash, name = key.partition("/")
        return (
            f"{domain}/{self._hash(name)}"
            if slash and domain in _LABEL_DOMAINS
            else self._hash(key)
        )

    def _label_value(self, key: str, value: str) -> str:
        if self._is_plain_value(key, value):
            return value
        return self.name(value)

    def _is_plain_value(self, key: str, value: str) -> bool:
        if not value or value in ("true", "false") or value in self._known.values.get(key, ()):
            return True
        if key in self._compared and _NUMBER.fullmatch(value):
            return True
        if key in _NAMED_BY_VALUE:
            return False
        if key.startswith(_CLUSTER_TAG):
            return value in ("owned", "shared")
        if key in (NODEPOOL, NODECLASS):
            return value in self._known.names
        return self._is_public_value(key, value)

    def _is_public_value(self, key: str, value: str) -> bool:
        """Return whether a value is a public term, or a number under a key of planning."""
        if value in self._known.terms or is_value(key, value):
            return True
        if key == _OWNER_TAG:
            return self._in_records
        domain = key.partition("/")[0]
        if key not in KEYS or domain not in _VALUE_DOMAINS:
            return False
        is_number = self._is_setting(value) or _HEX.fullmatch(value) is not None
        return domain == "reconciler" or is_number

    def labels(self, labels: JsonDict) -> JsonDict:
        """Return labels without names."""
        return {self._label_key(k): self._label_value(k, str(v)) for k, v in labels.items()}

    def _annotations(self, annotations: JsonDict) -> JsonDict:
        kept = {
            self._annotation_key(k): v if self._is_setting(v) else self.name(str(v))
            for k, v in annotations.items()
            if k in _KEPT_ANNOTATIONS
            or (k.partition("/")[0] in _ANNOTATION_DOMAINS and k not in _NAMED_BY_VALUE)
        }
        pods = annotations.get(_NOMINATED)
        if pods is not None:
            kept[_NOMINATED] = " ".join(map(self.name, str(pods).split()))
        return kept

    def _annotation_key(self, key: str) -> str:
        return key if key in _KEPT_ANNOTATIONS else self._label_key(key)

    def _is_setting(self, value: object) -> bool:
        """Return whether the value of an annotation is a number, a time or the like."""
        return _SETTING.fullmatch(str(value)) is not None

    def _walk(self, data: object, name: str, plain: frozenset[str]) -> object:
        """Return data without names; ``name`` is the field it is in, ``plain`` texts are kept."""
        if isinstance(data, dict):
            return self._mapping(data, name, plain)
        if isinstance(data, (list, tuple)):
            if name in ("matchLabelKeys", "mismatchLabelKeys"):
                return [self._label_key(str(key)) for key in data]
            inner = "" if name in _AMOUNTS else name  # of a claim on devices, a list of requests
            return [self._walk(item, inner, plain) for item in data]
        return self._text(data, name, plain) if isinstance(data, str) else data

    def _mapping(self, data: JsonDict, name: str, plain: frozenset[str]) -> JsonDict:
        found = self._keyed_by_name(data, name, plain)
        if found is not None:
            return found
        if name == "memory" and self._in_records:
            return data
        if isinstance(data.get("key"), str):
            return self._expression(data)
        return {
            self._field(key): self._walk(value, key, plain)
            for key, value in data.items()
            if key not in _DROPPED
        }

    def _keyed_by_name(self, data: JsonDict, name: str, plain: frozenset[str]) -> JsonDict | None:
        """Return a mapping whose keys are names; None if they are fields, which are public."""
        if name in LABEL_MAPS or (name == "selector" and _is_label_map(data)):
            return self.labels(data)
        if name == "annotations":
            return self._annotations(data)
        if name in _AMOUNTS:
            return self._amounts(data, name, plain)
        if name in ("attributes", "counters"):
            return {self.name(key): self._walk(value, "", plain) for key, value in data.items()}
        if name == "workloads":
            return {self.name(key): value for key, value in data.items()}
        return None

    def _amounts(self, data: JsonDict, name: str, plain: frozenset[str]) -> JsonDict:
        """Return amounts of resources; the capacity of a claim on devices has them in a field."""
        if name == "capacity" and isinstance(data.get("requests"), dict):
            return {"requests": self._amounts(data["requests"], "requests", plain)}
        return {self._resource(k): self._amount(v, plain) for k, v in data.items()}

    def _field(self, key: str) -> str:
        """Return the name of a field; of plain data, which may have any, one that is known."""
        is_known = not self._is_plain_data or key in FIELDS or key in self._known.texts
        return key if is_known else self._hash(key)

    def _resource(self, name: str) -> str:
        known = (self._known.resources, self._known.terms, self._known.texts)
        is_known = is_resource(name) or any(name in names for names in known)
        return name if is_known else self.name(name)

    def _amount(self, value: object, plain: frozenset[str]) -> object:
        if isinstance(value, (dict, list, tuple)):  # the capacity of a device, with its policy
            return self._walk(value, "", plain)
        return value if not isinstance(value, str) or is_amount(value) else self.name(value)

    def _expression(self, data: JsonDict) -> JsonDict:
        """Return an expression of a selector, a taint or a toleration."""
        key = data["key"]
        found = {**data, "key": self._label_key(key)}
        if "values" in data:
            found["values"] = [self._label_value(key, str(value)) for value in data["values"]]
        if isinstance(data.get("value"), str):
            found["value"] = self._label_value(key, data["value"])
        return {
            self._field(k): v if k in ("key", "value", "values") else self._walk(v, k, frozenset())
            for k, v in found.items()
        }

    def _text(self, text: str, name: str, plain: frozenset[str]) -> str:
        is_known = text in plain and (name != _USER_DATA or self._in_records)
        if is_known or self._is_public_text(text, name):
            return text
        if name in ("topologyKey", "finalizers"):
            return self._label_key(text)
        if name in ("kind", "providerID", "path"):
            return self._hash(text)
        return _SUBSTITUTES.get(name) or self.name(text)

    def _is_public_text(self, text: str, name: str) -> bool:
        """Return whether a text is a public term, or has the form that its field requires."""
        if self._in_records and name in _PLAIN_IN_RECORDS:
            return True
        if name == "kind":
            return is_kind(text) or text in self._known.texts
        if name == "hostIP" and text in _ADDRESSES:
            return True
        form = FORMS.get(name) or _IDS.get(name)
        return form is not None and form.fullmatch(text) is not None


def _ephemeral_volumes(item: JsonDict) -> Iterator[tuple[str, str]]:
    """Yield pod and volume of each claim that Kubernetes names ``POD-VOLUME``."""
    if item.get("kind") == "Pod":
        for volume in item.get("spec", {}).get("volumes", ()):
            if "ephemeral" in volume:
                yield item["metadata"].get("name", ""), volume.get("name", "")


def _conditions_alone(item: JsonDict) -> JsonDict:
    """Return of a node class that is not EC2's what decisions read: its conditions."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return {
        "apiVersion": item.get("apiVersion", ""),
        "kind": item["kind"],
        "metadata": {"name": item["metadata"]["name"]},
        "status": {"conditions": list(conditions)},
    }


def _is_label_map(data: JsonDict) -> bool:
    """Return whether a selector is a map of labels, as in a Service."""
    return all(isinstance(value, str) for value in data.values())


def _sort_key(item: JsonDict) -> tuple[str, str, str]:
    metadata = item.get("metadata") or {}
    return item.get("kind", ""), metadata.get("namespace", ""), metadata.get("name", "")
