"""What pods request by ResourceClaims.

A claim that is allocated already ties its pods to the nodes that reach its devices. One that is not
allocated has requests, each with alternatives in the order of preference. Claims from a template
with equal requests are equal: the pods of a workload share everything that is computed for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from reconciler.model.expressions.selectors import selector_problem
from reconciler.model.karpenter.labels import HOSTNAME
from reconciler.model.karpenter.requirements import Operator, Requirements, requirement
from reconciler.model.kubernetes.devices import (
    ALL,
    RESULTS_MAX,
    Allocation,
    DeviceClass,
    DeviceSelector,
    DeviceSubRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from reconciler.model.kubernetes.pod import Pod, PodClaim
from reconciler.model.kubernetes.taint import Toleration
from reconciler.model.resources import parse_resources
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.question import Rejection
from reconciler.placement.topology.rules import expression_requirements

_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Alternative:
    """Devices that satisfy a request: ``count`` of those that match, or all of them.

    ``name`` is that of the request, with that of the alternative after a slash. ``conditions`` are
    the selectors of the class, then those of the request. ``capacity`` is what each device has to
    give, in thousandths.
    """

    name: str
    device_class: str
    conditions: tuple[str, ...]
    count: int = 1
    takes_all: bool = False
    is_admin: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class AttributeRule:
    """The devices of some requests, or all, have one value of an attribute, or distinct ones."""

    attribute: str
    requests: frozenset[str] = frozenset()
    is_distinct: bool = False

    def applies_to(self, request: str) -> bool:
        """Return whether it counts the devices of a request, or of an alternative of it."""
        names = self.requests
        return not names or request in names or request.partition("/")[0] in names


@dataclass(frozen=True, slots=True)
class DeviceRequests:
    """The requests of a claim, each with its alternatives, and the constraints on their devices."""

    requests: tuple[tuple[Alternative, ...], ...]
    constraints: tuple[AttributeRule, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimNeeds:
    """What a claim requests; ``key`` is set if several pods name it.

    ``title`` is the name for messages: that of the claim, or of its template.
    """

    title: str
    wanted: DeviceRequests
    key: str = ""

    @property
    def requests(self) -> tuple[tuple[Alternative, ...], ...]:
        """The requests, each with its alternatives in the order of preference."""
        return self.wanted.requests

    @property
    def constraints(self) -> tuple[AttributeRule, ...]:
        """The constraints on the devices of the requests."""
        return self.wanted.constraints


def requests_key(claims: Iterable[ClaimNeeds]) -> tuple[int, ...]:
    """Return a key that is equal for claims with the same requests, whatever they are called.

    Equal requests are one object; what is stored under the key has to keep that alive.
    """
    return tuple([id(claim.wanted) for claim in claims])


def _count_min(request: tuple[Alternative, ...]) -> int:
    """Return the fewest devices that one of the alternatives takes from others."""
    counts = (0 if one.is_admin or one.takes_all else one.count for one in request)
    return min(counts, default=0)


@dataclass(frozen=True)
class DeviceNeeds:
    """What a pod requests: claims without an allocation, and where allocated ones can be reached.

    ``problem`` is why the claims cannot be allocated anywhere. ``uses_network`` is whether devices
    that several nodes reach may be chosen.
    """

    claims: tuple[ClaimNeeds, ...] = ()
    places: tuple[tuple[Requirements, ...], ...] = ()
    problem: Rejection | None = field(default=None, hash=False)
    uses_network: bool = False

    @cached_property
    def count_min(self) -> int:
        """The fewest devices that a pod takes of a node where none of its claims is allocated."""
        if self.uses_network:
            return 0
        return sum(_count_min(request) for claim in self.claims for request in claim.requests)

    @property
    def shared(self) -> tuple[str, ...]:
        """The claims that other pods may name as well."""
        return tuple(claim.key for claim in self.claims if claim.key)


class _UnusableClaimError(Exception):
    def __init__(self, code: str, message: str, **facts: str) -> None:
        self.rejection = Rejection(code, message, facts=facts)
        super().__init__(message)


class ClaimReader:
    """Reads what pods of a cluster request; equal requests are one object.

    ``concerns_network`` returns whether devices that several nodes reach suit some of the claims.
    """

    def __init__(
        self,
        cluster: ClusterState,
        concerns_network: Callable[[tuple[ClaimNeeds, ...]], bool] = lambda _: False,
    ) -> None:
        self._cluster = cluster
        self._concerns_network = concerns_network
        self._known: dict[tuple[str, bytes, str], ClaimNeeds | _UnusableClaimError] = {}
        self._requests: dict[bytes, DeviceRequests] = {}

    def needs(self, pod: Pod) -> DeviceNeeds | None:
        """Return what a pod requests by ResourceClaims, None without any."""
        if not pod.spec.resource_claims:
            return None
        claims: list[ClaimNeeds] = []
        places: list[tuple[Requirements, ...]] = []
        for reference in pod.spec.resource_claims:
            try:
                needs = self._claim_needs(pod, reference)
            except _UnusableClaimError as error:
                return DeviceNeeds(problem=error.rejection)
            if isinstance(needs, ClaimNeeds):
                claims.append(needs)
            elif needs:
                places.append(needs)
        wanted = tuple(claims)
        return DeviceNeeds(wanted, tuple(places), uses_network=self._concerns_network(wanted))

    def unallocated(self, pod: Pod) -> tuple[ClaimNeeds, ...]:
        """Return the claims of a pod on a node that have no devices; not the unusable ones."""
        found = []
        for reference in pod.spec.resource_claims:
            claim = find_claim(pod, reference, self._cluster)
            if claim is None or claim.status.allocation is None:
                with suppress(_UnusableClaimError):
                    needs = self._claim_needs(pod, reference)
                    found += [needs] if isinstance(needs, ClaimNeeds) else []
        return tuple(found)

    def _claim_needs(self, pod: Pod, reference: PodClaim) -> ClaimNeeds | tuple[Requirements, ...]:
        cluster = self._cluster
        claim = find_claim(pod, reference, cluster)
        if claim is not None and claim.metadata.deletion_timestamp is not None:
            raise _UnusableClaimError(
                "ResourceClaimDeleting",
                f"ResourceClaim {claim.metadata.name} is being deleted",
                claim=claim.metadata.name,
            )
        if claim is not None and claim.status.allocation is not None:
            place = _kept_place(pod, claim, claim.status.allocation, cluster)
            if place is not None:
                return place
        if reference.resource_claim_name is not None:
            if claim is None:
                raise _missing("ResourceClaim", reference.resource_claim_name)
            return self._read(claim.metadata.name, claim.spec, claim.key)
        name = reference.resource_claim_template_name or ""
        if claim is not None:
            return self._read(name or claim.metadata.name, claim.spec)
        template = cluster.claim_templates.get(f"{pod.namespace}/{name}")
        if template is None:
            raise _missing("ResourceClaimTemplate", name)
        return self._read(name, template.spec.spec)

    def _read(self, title: str, spec: ResourceClaimSpec, key: str = "") -> ClaimNeeds:
        content = title, _encode(spec), key
        known = self._known.get(content)
        if known is None:
            try:
                wanted = self._requests.get(content[1])
                if wanted is None:
                    wanted = _compile(title, spec, self._cluster.device_classes)
                    self._requests[content[1]] = wanted
                known = ClaimNeeds(title, wanted, key)
            except _UnusableClaimError as error:
                known = error
            self._known[content] = known
        if isinstance(known, _UnusableClaimError):
            raise known
        return known


def _missing(kind: str, name: str) -> _UnusableClaimError:
    return _UnusableClaimError(f"{kind}NotFound", f"{kind} {name} does not exist", claim=name)


def find_claim(pod: Pod, reference: PodClaim, cluster: ClusterState) -> ResourceClaim | None:
    """Return the claim that a pod's reference means, None if it does not exist (yet)."""
    name = reference.resource_claim_name
    if name is None:
        statuses = pod.status.resource_claim_statuses
        name = next((s.resource_claim_name for s in statuses if s.name == reference.name), None)
    return None if name is None else cluster.resource_claims.get(f"{pod.namespace}/{name}")


def allocated_host(allocation: Allocation, cluster: ClusterState) -> StateNode | None:
    """Return the node to which the devices of a claim belong, None if several nodes reach them."""
    selector = allocation.node_selector
    if selector is None or len(selector.node_selector_terms) != 1:
        return None
    for item in selector.node_selector_terms[0].match_fields:
        if item.key == "metadata.name" and item.operator == "In" and len(item.values) == 1:
            return cluster.node_named(item.values[0])
    return None


def _kept_place(
    pod: Pod, claim: ResourceClaim, allocation: Allocation, cluster: ClusterState
) -> tuple[Requirements, ...] | None:
    """Return where the devices of an allocated claim can be reached, None if it is allocated again.

    A pod that leaves its node gives up the devices of that node, and a claim that it alone uses.
    """
    selector = allocation.node_selector
    if selector is None:
        return ()
    fields = [f for term in selector.node_selector_terms for f in term.match_fields]
    if fields:
        host = allocated_host(allocation, cluster)
        if host is None or host.is_deleting or pod.spec.node_name:
            return None
        return (Requirements([requirement(HOSTNAME, Operator.IN, (host.hostname,))]),)
    consumers = claim.status.reserved_for
    if pod.spec.node_name and all(c.is_pod and c.uid == pod.metadata.uid for c in consumers):
        return None
    return tuple(
        Requirements(expression_requirements(term.match_expressions))
        for term in selector.node_selector_terms
        if term.match_expressions
    )


def _compile(
    title: str, spec: ResourceClaimSpec, classes: Mapping[str, DeviceClass]
) -> DeviceRequests:
    requests = tuple(
        tuple(
            _alternative(
                title, f"{request.name}/{part.name}" if part.name else request.name, part, classes
            )
            for part in request.alternatives
        )
        for request in spec.devices.requests
    )
    least = sum(min(a.count for a in alternatives) for alternatives in requests)
    if least > RESULTS_MAX:
        raise _UnusableClaimError(
            "TooManyDevices",
            f"ResourceClaim {title} requests {least} devices, and may have {RESULTS_MAX}",
            claim=title,
        )
    return DeviceRequests(requests, tuple(_constraints(spec)))


def _constraints(spec: ResourceClaimSpec) -> Iterator[AttributeRule]:
    for item in spec.devices.constraints:
        names = frozenset(item.requests)
        if item.match_attribute is not None:
            yield AttributeRule(item.match_attribute, names)
        if item.distinct_attribute is not None:
            yield AttributeRule(item.distinct_attribute, names, is_distinct=True)


def _alternative(
    title: str, name: str, part: DeviceSubRequest, classes: Mapping[str, DeviceClass]
) -> Alternative:
    known = classes.get(part.device_class_name)
    if known is None:
        raise _UnusableClaimError(
            "DeviceClassNotFound",
            f"request {name} of ResourceClaim {title} names the missing DeviceClass "
            f"{part.device_class_name}",
            claim=title,
            request=name,
            deviceClass=part.device_class_name,
        )
    conditions = tuple(_expressions((*known.spec.selectors, *part.selectors)))
    for text in conditions:
        problem = selector_problem(text)
        if problem is not None:
            raise _UnusableClaimError(
                "InvalidDeviceSelector",
                f"request {name} of ResourceClaim {title}: invalid CEL expression: {problem}",
                claim=title,
                request=name,
            )
    try:
        capacity = tuple(sorted(parse_resources(part.capacity.requests).items()))
    except ValueError as error:
        raise _UnusableClaimError(
            "InvalidDeviceRequest",
            f"request {name} of ResourceClaim {title}: capacity {error}",
            claim=title,
            request=name,
        ) from error
    takes_all = part.allocation_mode == ALL
    return Alternative(
        name,
        part.device_class_name,
        conditions,
        0 if takes_all else max(part.count, 1),
        takes_all,
        part.admin_access,
        part.tolerations,
        capacity,
    )


def _expressions(selectors: Iterable[DeviceSelector]) -> Iterator[str]:
    for selector in selectors:
        if selector.cel is None:
            raise _UnusableClaimError(
                "InvalidDeviceSelector", "a selector of devices is not a CEL expression"
            )
        yield selector.cel.expression
