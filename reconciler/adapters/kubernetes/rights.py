"""Whether our credentials could write to a cluster that is only to be watched.

The API server lists the rules of its client, so that no kind of object has to be thought of here.
An authorizer that cannot list rules, such as that of the access policies of EKS, makes the list
incomplete: then the rights of a fixed list are also asked for, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from reconciler.adapters.kubernetes.api import (
    FORBIDDEN,
    NOT_FOUND,
    REVIEWS,
    Api,
    ApiError,
    list_items,
    review_access,
)
from reconciler.adapters.kubernetes.kinds import (
    EC2_NODE_CLASS,
    NAMESPACE,
    NODE,
    NODE_CLAIM,
    NODE_OVERLAY,
    NODE_POOL,
    POD,
)
from reconciler.adapters.threads import threaded_calls
from reconciler.model.decode import decode_json
from reconciler.model.errors import ClusterError, UsageError
from reconciler.ports.calls import Call

_RULES: Final = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
_REMEDY: Final = (
    "use those of docs/kubernetes/clusterrole-watch.yaml, which only reads, or pass "
    "--allow-write-access"
)
_WITHIN_S: Final = 120.0
"""How long the server may take for all answers, which are asked for at the same time."""
_NAMED_MAX: Final = 60
_EVERYWHERE: Final = "default"
"""A namespace that always exists; the rules of ClusterRoleBindings apply in each."""

_READING: Final = frozenset({"get", "list", "watch"})
_READING_URLS: Final = frozenset({"get", "head", "options"})
_ACTS_ON_GET: Final = ("/exec", "/attach", "/portforward", "/proxy")
"""Parts of objects on which `get` opens a connection that runs commands or passes writes on."""
_HARMLESS: Final = frozenset(
    {
        ("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
        ("create", "authorization.k8s.io", "selfsubjectrulesreviews"),
        ("create", "authentication.k8s.io", "selfsubjectreviews"),
        ("use", "policy", "podsecuritypolicies"),
        ("use", "extensions", "podsecuritypolicies"),
    }
)
"""What every account may do: ask about itself; older clusters of EKS also grant a policy to all."""

_VERBS: Final = ("create", "update", "patch", "delete", "deletecollection")
_OF_KARPENTER: Final = (NODE_CLAIM, NODE_POOL, NODE_OVERLAY, EC2_NODE_CLASS)
_PARTS: Final[Mapping[str, Sequence[str]]] = {
    "create": (
        "pods/eviction", "pods/binding", "pods/exec", "pods/attach", "pods/portforward",
        "pods/proxy", "nodes/proxy", "services/proxy", "serviceaccounts/token",
        "replicationcontrollers/scale",
    ),
    "get": ("pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "nodes/proxy"),
    "patch": ("pods/status", "pods/resize", "pods/ephemeralcontainers", "nodes/status"),
    "update": (
        "pods/status", "pods/resize", "pods/ephemeralcontainers", "nodes/status",
        "namespaces/finalize",
    ),
    "impersonate": ("users", "groups", "serviceaccounts"),
}  # fmt: skip
"""Of the core group: verb → what it acts with."""
_OTHER_KINDS: Final[Mapping[str, Sequence[str]]] = {
    "apps": (
        "deployments", "statefulsets", "daemonsets", "replicasets", "controllerrevisions",
        "deployments/scale", "statefulsets/scale", "replicasets/scale",
    ),
    "batch": ("jobs", "cronjobs"),
    "": (
        "replicationcontrollers", "podtemplates", "configmaps", "secrets", "serviceaccounts",
        "services", "endpoints", "namespaces", "persistentvolumeclaims", "persistentvolumes",
        "resourcequotas", "limitranges", "events",
    ),
    "rbac.authorization.k8s.io": (
        "roles", "rolebindings", "clusterroles", "clusterrolebindings",
    ),
    "admissionregistration.k8s.io": (
        "validatingwebhookconfigurations", "mutatingwebhookconfigurations",
        "validatingadmissionpolicies", "validatingadmissionpolicybindings",
        "mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
    ),
    "apiextensions.k8s.io": ("customresourcedefinitions",),
    "apiregistration.k8s.io": ("apiservices",),
    "certificates.k8s.io": (
        "certificatesigningrequests", "certificatesigningrequests/approval",
        "certificatesigningrequests/status",
    ),
    "policy": ("poddisruptionbudgets",),
    "scheduling.k8s.io": ("priorityclasses",),
    "autoscaling": ("horizontalpodautoscalers",),
    "autoscaling.x-k8s.io": ("capacitybuffers",),
    "storage.k8s.io": ("storageclasses", "csinodes", "csidrivers", "volumeattachments"),
    "resource.k8s.io": (
        "deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices",
    ),
    "networking.k8s.io": ("networkpolicies", "ingresses"),
    "discovery.k8s.io": ("endpointslices",),
    "coordination.k8s.io": ("leases",),
    "node.k8s.io": ("runtimeclasses",),
    "flowcontrol.apiserver.k8s.io": ("flowschemas", "prioritylevelconfigurations"),
    "events.k8s.io": ("events",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Right:
    """A verb on a resource, or on a URL if ``group`` is None; ``*`` is every one of them."""

    verb: str
    group: str | None
    resource: str

    @property
    def name(self) -> str:
        """The right in words: ``delete nodeclaims.karpenter.sh``, ``* *.*``."""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


_ASKED: Final = (
    _Right("*", "*", "*"),
    *(
        _Right(verb, kind.group, kind.resource)
        for kind in (*_OF_KARPENTER, NODE, POD)
        for verb in _VERBS
    ),
    *(_Right("patch", NODE_CLAIM.group, f"{NODE_CLAIM.resource}/status"),),
    *(_Right(verb, "", part) for verb, parts in _PARTS.items() for part in parts),
    *(
        _Right(verb, group, resource)
        for group, resources in _OTHER_KINDS.items()
        for resource in resources
        for verb in _VERBS
    ),
    *(
        _Right(verb, "rbac.authorization.k8s.io", role)
        for role in ("roles", "clusterroles")
        for verb in ("bind", "escalate")
    ),
    _Right("approve", "certificates.k8s.io", "signers"),
    _Right("sign", "certificates.k8s.io", "signers"),
    _Right("impersonate", "authentication.k8s.io", "uids"),
)
"""What is asked for if the list is incomplete, and the order in which rights are named."""
_ORDER: Final = {right: place for place, right in enumerate(_ASKED)}


class _ResourceRule(msgspec.Struct, frozen=True):
    verbs: list[str] | None = None
    groups: list[str] | None = msgspec.field(default=None, name="apiGroups")
    resources: list[str] | None = None


class _UrlRule(msgspec.Struct, frozen=True):
    verbs: list[str] | None = None
    urls: list[str] | None = msgspec.field(default=None, name="nonResourceURLs")


class _Rules(msgspec.Struct, frozen=True):
    of_resources: list[_ResourceRule] | None = msgspec.field(default=None, name="resourceRules")
    of_urls: list[_UrlRule] | None = msgspec.field(default=None, name="nonResourceRules")
    incomplete: bool = True


class _RulesReview(msgspec.Struct, frozen=True):
    status: _Rules = _Rules()


_UNKNOWN: Final = _Rules()


def expect_read_only(api: Api, *, may_write: bool) -> None:
    """Refuse credentials that could write anything, in any namespace, unless ``may_write``.

    Raises:
        UsageError: they could; the message lists what.
        ClusterError: the API server does not say what it would allow.
    """
    if may_write:
        return
    rules = _rules_in(api, _EVERYWHERE)
    found = set(_writing_rights(rules))
    if rules.incomplete and not found:
        found = _allowed_rights(api)
    if found:
        named = [right.name for right in _in_order(found)]
        raise UsageError(f"the credentials could write: {_list_names(named)}",
                         where=str(api.access), remedy=_REMEDY)  # fmt: skip
    _expect_read_only_in_namespaces(api)


def _expect_read_only_in_namespaces(api: Api) -> None:
    """Refuse rights that a RoleBinding of a namespace grants."""
    namespaces = list_items(api, NAMESPACE)
    names = [NAMESPACE.decode_as(item, _Named).metadata.name for item in namespaces]
    answers = _ask_all({name: partial(_rules_in, api, name) for name in names})
    named = [
        f"{right.name} in the namespace {namespace}"
        for namespace, rules in answers.items()
        if isinstance(rules, _Rules)
        for right in _in_order(_writing_rights(rules))
    ]
    if named:
        raise UsageError(
            f"the credentials could write: {_list_names(named)}",
            where=str(api.access),
            remedy=f"remove the RoleBinding that grants it, {_REMEDY}",
        )


class _Metadata(msgspec.Struct, frozen=True):
    name: str


class _Named(msgspec.Struct, frozen=True):
    metadata: _Metadata


def _rules_in(api: Api, namespace: str) -> _Rules:
    """Return the rules of our credentials in a namespace, those that the API server lists.

    Raises:
        ClusterError: it does not answer, or its answer cannot be read.
    """
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    try:
        answer = api.call("POST", _RULES, body=body)
        return decode_json(answer, _RulesReview).status
    except ApiError as error:
        if error.status in (FORBIDDEN, NOT_FOUND):  # of a cluster that grants less than usual
            return _UNKNOWN
        raise
    except msgspec.MsgspecError as error:
        raise _unreadable(error, _RULES) from error


def _unreadable(error: msgspec.MsgspecError, path: str) -> ClusterError:
    return ClusterError(
        f"the answer about our rights cannot be read: {error}",
        where=f"POST {path}",
        remedy="check what answers at the address of the API server",
    )


def _writing_rights(rules: _Rules) -> Iterator[_Right]:
    """Yield what the rules allow beyond reading, at most as many as are named and one more.

    A rule is a product of three lists, which the author of a Role can make as large as they like.
    """
    found = (right for rule in rules.of_resources or () for right in _writes(rule))
    yield from islice(found, _NAMED_MAX + 1)
    for rule in rules.of_urls or ():
        for verb in set(rule.verbs or ()) - _READING_URLS:
            yield from (_Right(verb, None, url) for url in (rule.urls or ())[:_NAMED_MAX])


def _writes(rule: _ResourceRule) -> Iterator[_Right]:
    for verb in rule.verbs or ():
        for resource in _written_resources(verb, rule.resources or ()):
            for group in rule.groups or ():
                if (verb, group, resource) not in _HARMLESS:
                    yield _Right(verb, group, resource)


def _written_resources(verb: str, resources: Sequence[str]) -> Sequence[str]:
    """Return the resources that a verb changes, or lets act."""
    if verb == "get":
        return [name for name in resources if name.endswith(_ACTS_ON_GET) or name == "*/*"]
    return () if verb in _READING else resources


def _allowed_rights(api: Api) -> set[_Right]:
    """Return which rights of the fixed list we have; nothing is tried."""
    answers = _ask_all({right.name: partial(_is_allowed, api, right) for right in _ASKED})
    return {right for right in _ASKED if answers[right.name]}


def _is_allowed(api: Api, right: _Right) -> bool:
    try:
        return review_access(api, right.verb, right.group or "", right.resource).allowed
    except msgspec.MsgspecError as error:
        raise _unreadable(error, REVIEWS) from error


def _ask_all(calls: Mapping[str, Call]) -> dict[str, object]:
    """Return the value of each call, by its name.

    Raises:
        ReconcilerError: one of them failed, or had no answer in time.
    """
    with threaded_calls(within_s=_WITHIN_S) as pool:
        answers = pool.call_all(calls)
    for answer in answers.values():
        if answer.error is not None:
            raise answer.error
    return {name: answer.value for name, answer in answers.items()}


def _in_order(rights: Iterable[_Right]) -> list[_Right]:
    """Return the rights, those on nodes and pods first."""
    return sorted(set(rights), key=lambda right: (_ORDER.get(right, len(_ORDER)), right.name))


def _list_names(named: Sequence[str]) -> str:
    more = len(named) - _NAMED_MAX
    return ", ".join(named[:_NAMED_MAX]) + (" and others" if more > 0 else "")
