"""Explain why a pod cannot be scheduled, with one reason for each NodePool.

Scheduling only finds that a pod does not fit. The reason is computed afterwards, for such pods
only, by trying each NodePool again, filter by filter, in scheduling order (Karpenter
``nodeclaim.go`` ``CanAdd``). The first filter that leaves nothing is the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from reconciler.catalog.table import indices
from reconciler.model.karpenter.labels import NODEPOOL, OS, ZONE
from reconciler.model.karpenter.requirements import Requirement
from reconciler.model.kubernetes.taint import untolerated_taints
from reconciler.model.resources import EPHEMERAL_STORAGE, HUGEPAGES, MEMORY, MILLI, NODES, Resources
from reconciler.model.text.nearest import nearest
from reconciler.placement.devices.needs import DeviceNeeds
from reconciler.placement.devices.networkuse import NetworkUse
from reconciler.placement.explain.devices import device_shortage, network_shortage
from reconciler.placement.explain.domains import rule_rejection
from reconciler.placement.explain.exclusion import (
    NOT_AVAILABLE,
    no_types_rejection,
    unknown_value_hint,
)
from reconciler.placement.nodes.claims import OpenClaim
from reconciler.placement.nodes.daemons import minimum_requests
from reconciler.placement.nodes.space import Space
from reconciler.placement.nodes.template import PoolTemplate, min_values_shortfalls
from reconciler.placement.pods.cohort import Cohort, CohortView
from reconciler.placement.pods.volumes import claim_in_use
from reconciler.placement.question import Rejection
from reconciler.placement.solve import PlacementPass

_AFTER: Final = "after "
EKS_LABELS: Final = "eks.amazonaws.com/"
_UNITS: Final = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def format_amount(name: str, amount: int) -> str:
    """Return an amount for display: at most two decimals, bytes in binary units."""
    if name in (MEMORY, EPHEMERAL_STORAGE) or name.startswith(HUGEPAGES):
        for unit, size in _UNITS:
            if abs(amount) >= size * MILLI:
                return f"{round(amount / (size * MILLI), 2):g}{unit}"
    return f"{round(amount / MILLI, 2):g}"


class Funnel:
    """The instance types of a NodePool that pass each filter, for one view of a cohort."""

    def __init__(
        self,
        view: CohortView,
        template: PoolTemplate,
        allowed: int,
        network: NetworkUse | None = None,
    ) -> None:
        self._network = network
        self._view = view
        self._template = template
        self._allowed = allowed
        # includes unavailable types: availability is one of the filters
        table = template.table
        self._types = table.types_meeting(template.space.requirements) & table.usable
        self._facts: dict[str, str | int | float] = {"types": self._types.bit_count()}

    def types_left(self) -> tuple[tuple[str, int], ...]:
        """Return how many types each filter leaves, in order, up to the first that leaves none."""
        self.first_rejection()
        return filters_of(self._facts)

    def rejection(self) -> Rejection:
        """Return the rejection of the first filter, or of all together, with a suggestion."""
        found = self.first_rejection()
        return found or self._make_rejection(
            "Unschedulable", "no instance type satisfies everything at once"
        )

    def first_rejection(self) -> Rejection | None:
        """Return the rejection of the first filter that leaves no type, None without one."""
        template, shape = self._template, self._view.cohort.shape
        mask = self._types
        for key, wanted in self._view.stage.step.demand.requirements.items():
            left = mask & template.table.types_matching(wanted)
            self._facts[f"after {key}"] = left.bit_count()
            if not left:
                return self._make_rejection(
                    "NoTypeMeetsRequirements",
                    self._other_system()
                    if key == OS and not template.table.types_matching(wanted)
                    else f"no instance type left after {wanted}"
                    + (self._unknown_value(wanted) or ": relax that requirement"),
                )
            mask = left
        spaces = self._spaces() or [template.space]
        offered = mask & _union(space.mask for space in spaces)
        self._facts["after offerings"] = offered.bit_count()
        if not offered:
            refused = template.table.types_offered_unavailably(mask)
            return self._make_rejection(
                "NoOffering",
                f"{NOT_AVAILABLE}: allow more types and zones, or raise the quota"
                if refused
                else "no suitable instance type is offered in the allowed zones and capacity "
                "types: allow more of them",
            )
        fits = template.fitting_types(offered, shape.requests, ())
        self._facts["after resources"] = fits.bit_count()
        if not fits:
            return self._too_large_rejection(offered)
        return self._check_later_filters(fits)

    def _equipped(self, needs: DeviceNeeds) -> int:
        """Return the types of the catalog whose nodes have, or reach, the devices of a pod."""
        template, shape = self._template, self._view.cohort.shape
        if self._network is None or not needs.uses_network:
            return template.book.device_types(needs)
        claim, network = OpenClaim(template, "new node"), self._network
        spaces = self._spaces() or [template.space]
        found = (
            claim.fit_on_network(network, shape, space, space.mask, self._view.demands)
            for space in spaces
        )
        return _union(shared.mask for shared in found if shared is not None)

    def _device_shortage(self, types: int, needs: DeviceNeeds) -> str:
        profiles = self._template.book.device_profiles
        if self._network is None or not needs.uses_network:
            return device_shortage(profiles, types, needs)
        return network_shortage(self._network, profiles, types, needs)

    def _check_later_filters(self, fits: int) -> Rejection | None:
        template, shape = self._template, self._view.cohort.shape
        free = template.fitting_types(fits, shape.requests, shape.ports)
        if not free:
            ports = ", ".join(str(port.port) for port in shape.ports)
            return self._make_rejection(
                "HostPortTaken", f"its host port ({ports}) is used by a DaemonSet on every node"
            )
        attaching = template.fitting_types(free, shape.requests, (), len(shape.disks))
        if not attaching:
            most = max(template.volume_limit(1 << index) or 0 for index in indices(free))
            return self._make_rejection(
                "TooManyVolumes",
                f"it has {len(shape.disks)} EBS volumes, but the instance types that it fits on"
                f" attach at most {most}",
            )
        devices = shape.devices
        if devices is not None:
            equipped = attaching & self._equipped(devices)
            self._facts["after devices"] = equipped.bit_count()
            if not equipped:
                shortage = self._device_shortage(attaching, devices)
                return self._make_rejection("NoDevices", shortage)
            attaching = equipped
        within = attaching & self._allowed
        self._facts["after limits"] = within.bit_count()
        if not within:
            return self._make_rejection(
                "LimitReached",
                "every instance type that it fits on exceeds the remaining spec.limits",
            )
        for space in self._spaces():
            missed = min_values_shortfalls(template.table, within & space.mask, space)
            for key, (wanted, achieved) in missed.items():
                return self._make_rejection(
                    "MinValuesUnmet",
                    f"the instance types that it fits on have {achieved} values of {key}, but "
                    f"minValues is {wanted.min_values}: lower minValues or the pod's requests",
                )
        return None

    def _other_system(self) -> str:
        """Return that the node class runs another operating system than the pod selects."""
        selected = self._view.stage.step.demand.requirements[OS]
        found = " and ".join(sorted(self._template.table.values(OS))) or "another system"
        return (
            f"its node class runs {found}, and the pod selects {selected}: "
            "add a NodePool whose node class has images of that system"
        )

    def _unknown_value(self, wanted: Requirement) -> str:
        """Return what to do about a value that no type of the catalog has, empty if one has it."""
        known = _has_types(self._template, wanted)
        return "" if known else unknown_value_hint(self._template, wanted)

    def _spaces(self) -> list[Space]:
        return [s for equals in self._view.spaces(self._template.space) for s in equals]

    def _too_large_rejection(self, mask: int) -> Rejection:
        """Return a rejection that names the insufficient resource and the most that a type has."""
        template = self._template
        daemons = minimum_requests(template.daemon_groups, mask)
        requests: Resources = self._view.cohort.shape.requests
        suffix = " left after DaemonSets" if daemons else ""
        for name, amount in requests.items():
            most = template.table.most_allocatable(name, mask & template.table.usable)
            most -= daemons.get(name, 0)
            if amount > 0 and amount > most:
                wanted, largest = format_amount(name, amount), format_amount(name, max(most, 0))
                self._facts |= {f"needs {name}": wanted, f"largest {name}": largest}
                self._nearest_type(mask)
                return self._make_rejection(
                    "TooLarge",
                    f"requests {wanted} {name}, but the largest allowed instance type has"
                    f" {largest}{suffix}{self._remedy(name)}",
                )
        requested = " and ".join(
            f"{format_amount(name, amount)} {name}"
            for name, amount in _nonzero_requests(requests).items()
        )
        nearest, lacks = self._nearest_type(mask)
        what = f"{requested} together" if requested else "enough capacity"
        return self._make_rejection(
            "TooLarge",
            f"no allowed instance type has {what}{suffix}; the closest is {nearest}, which lacks"
            f" {lacks}",
        )

    def _remedy(self, name: str) -> str:
        """Return what to do about a resource that does not depend on the instance type alone."""
        table = self._template.table
        if name == EPHEMERAL_STORAGE:
            return (
                ": enlarge the root volume in blockDeviceMappings of the EC2NodeClass, or set its "
                "instanceStorePolicy"
            )
        if not table.most_allocatable(name, table.usable):
            return (
                ": no instance type is known to have it; if your nodes have it, state it in "
                "spec.capacity of a NodeOverlay"
            )
        return ""

    def _nearest_type(self, mask: int) -> tuple[str, str]:
        """Return the type that lacks the smallest share of the requests, and what it lacks."""
        template = self._template
        table, requests = template.table, self._view.cohort.shape.requests
        offered = {name: table.allocatable(name) for name in requests}
        best: tuple[float, str, str] | None = None
        for group in template.daemon_groups:
            for index in indices(mask & group.mask):
                lacks = {
                    name: gap
                    for name, amount in requests.items()
                    if amount > 0
                    if (gap := amount + group.requests.get(name, 0) - offered[name][index]) > 0
                }
                share = sum(gap / requests[name] for name, gap in lacks.items())
                if lacks and (best is None or (share, table.names[index]) < best[:2]):
                    text = " and ".join(f"{format_amount(n, gap)} {n}" for n, gap in lacks.items())
                    best = (share, table.names[index], text)
        if best is None:
            return "no instance type", "everything"
        self._facts |= {"nearest type": best[1], "nearest type lacks": best[2]}
        return best[1], best[2]

    def _make_rejection(self, code: str, problem: str) -> Rejection:
        text = f"NodePool {self._template.name}: {problem}"
        return Rejection(code, text, self._template.name, dict(self._facts))


def filters_of(facts: Mapping[str, str | int | float]) -> tuple[tuple[str, int], ...]:
    """Return the filters that a rejection's facts contain, in order, with the types left by each.

    The first filter is the NodePool itself.
    """
    found = [("NodePool", int(facts["types"]))] if "types" in facts else []
    for name, count in facts.items():
        if name.startswith(_AFTER):
            found.append((name.removeprefix(_AFTER), int(count)))
    return tuple(found)


def _nonzero_requests(requests: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in requests.items() if amount and name != "pods"}


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


NO_NODE_POOLS = Rejection(
    "NoNodePools",
    "no NodePool can launch nodes for pods: add one without spec.replicas, or check the status of "
    "the existing ones",
)


class Explainer:
    """Explains the unschedulable cohorts of one pass.

    ``templates`` are all requested NodePools, including those without any instance type.
    """

    def __init__(self, placement_pass: PlacementPass, templates: Sequence[PoolTemplate]) -> None:
        self._placement_pass = placement_pass
        self._templates = templates

    def rejections(self, cohort: Cohort) -> tuple[Rejection, ...]:
        """Return a rejection for each NodePool, in the order in which they are tried.

        Each applies to the pod after it has dropped everything that it can drop.
        """
        if not self._templates:
            return (NO_NODE_POOLS,)
        if not self._placement_pass.may_place(cohort):
            users = self._placement_pass.users
            return (claim_in_use(cohort.shape.exclusive, users, runs=False),)
        view = CohortView(cohort, cohort.stages[-1], self._placement_pass.demands)
        waits = cohort in self._placement_pass.deferred
        return tuple(self.pool_rejection(view, t, waits=waits) for t in self._templates)

    def pool_rejection(
        self, view: CohortView, template: PoolTemplate, *, waits: bool = False
    ) -> Rejection:
        """Return the first filter by which one NodePool rejects the pods of ``view``.

        ``waits`` is whether the pass deferred them until reserved capacity is available.
        """
        if not template.types:
            return no_types_rejection(template)
        for check in (_taint_rejection, _requirement_rejection, _volume_rejection):
            found = check(view, template)
            if found is not None:
                return found
        found = self._limit_rejection(template)
        if found is not None:
            return found
        allowed = self._placement_pass.limits.allowed_types(template)
        funnel = Funnel(view, template, allowed, self._placement_pass.nodes.network)
        rule = rule_rejection(view, template, self._templates, self._placement_pass.demands)
        if rule is not None:  # a domain that can take no such pod is none that the rule could allow
            return funnel.first_rejection() or rule
        return self._reservation_rejection(view, template) if waits else funnel.rejection()

    def _limit_rejection(self, template: PoolTemplate) -> Rejection | None:
        if self._placement_pass.limits.allowed_types(template):
            return None
        left = self._placement_pass.limits.remaining(template) or {}
        if left.get(NODES, 1) <= 0:
            return Rejection(
                "NodeLimitReached",
                f"NodePool {template.name} has reached its node limit: raise spec.limits.nodes",
                template.name,
            )
        texts = {name: format_amount(name, amount) for name, amount in left.items()}
        shown = ", ".join(f"{text} {name}" for name, text in texts.items())
        message = (
            f"no instance type of NodePool {template.name} fits into its remaining limits "
            f"({shown}): raise spec.limits"
        )
        if used_up := [f"spec.limits.{name}" for name, amount in left.items() if amount <= 0]:
            message = (
                f"NodePool {template.name} has reached {' and '.join(used_up)}, counting nodes "
                "that are being launched: raise the limit"
            )
        facts = {f"left {name}": text for name, text in texts.items()}
        return Rejection("LimitReached", message, template.name, facts)

    def _reservation_rejection(self, view: CohortView, template: PoolTemplate) -> Rejection:
        claim = OpenClaim(template, "new node")
        allowed = self._placement_pass.limits.allowed_types(template)
        found = self._placement_pass.fit(view, claim, allowed, opening=True)
        if found.must_wait:
            return Rejection(
                "ReservedCapacityTaken",
                f"nodes of this pass use all reserved capacity of NodePool {template.name}: "
                "the next pass tries again",
                template.name,
            )
        return Funnel(view, template, allowed, self._placement_pass.nodes.network).rejection()


def _taint_rejection(view: CohortView, template: PoolTemplate) -> Rejection | None:
    missing = untolerated_taints(template.taints, view.stage.step.tolerations)
    if not missing:
        return None
    return Rejection(
        "TaintNotTolerated",
        f"does not tolerate the taint {missing[0]} of NodePool {template.name}: add a toleration",
        template.name,
        {"taint": str(missing[0])},
    )


def _requirement_rejection(view: CohortView, template: PoolTemplate) -> Rejection | None:
    demand = view.stage.step.demand
    if not demand.allows_new_host:
        return Rejection(
            "HostnameRequired",
            f"requires the host {demand.hostname}, which cannot be a new node",
            template.name,
        )
    conflict = template.space.requirements.first_conflict(
        demand.requirements, template.book.well_known
    )
    if conflict is None:
        return None
    facts = {"label": conflict.key, "wanted": str(conflict.requested)}
    if conflict.existing is None and conflict.key.startswith(EKS_LABELS):
        return Rejection(
            "LabelUnknown",
            f"requires the label {conflict.key}, which EKS sets on nodes of EKS Auto Mode, Fargate "
            f"and its node groups, never on those of NodePool {template.name}: remove it from the "
            "pod to run there",
            template.name,
            facts,
        )
    if conflict.existing is None:
        near = _similar_label(conflict.key, conflict.suggestion)
        hint = f"; did you mean {near}?" if near else ""
        return Rejection(
            "LabelUnknown",
            f"requires the label {conflict.key}, which nodes of NodePool {template.name} do not "
            f"have: add it to spec.template.metadata.labels{hint}",
            template.name,
            facts,
        )
    if conflict.key == NODEPOOL:
        return Rejection(
            "OtherNodePool",
            f"requires another NodePool: {conflict.requested}",
            template.name,
            facts,
        )
    return Rejection(
        "RequirementsConflict",
        f"requires {conflict.requested}, but NodePool {template.name} allows {conflict.existing}",
        template.name,
        {**facts, "allowed": str(conflict.existing)},
    )


def _similar_label(key: str, suggestion: str | None) -> str | None:
    """Return Karpenter's suggestion for a label if it is similar: it may only contain its text."""
    if suggestion is None or key.rpartition("/")[2] == suggestion.rpartition("/")[2]:
        return suggestion
    return nearest(key, (suggestion,))


def _volume_rejection(view: CohortView, template: PoolTemplate) -> Rejection | None:
    base = template.space.narrow(view.stage.step.demand)
    demands = view.cohort.shape.volume_demands
    if base is None or not demands:
        return None
    reached = [base.narrow(d) for d in demands if d.allows_new_host]
    if any(space is not None and (space.mask or not base.mask) for space in reached):
        return None
    wanted = " or ".join(f"({d.hostname or d.requirements})" for d in demands)
    problem = f"which NodePool {template.name} and the pod do not both allow"
    if any(reached):
        missing = [r for d in demands for r in d.requirements.values() if r.key == ZONE]
        hints = (unknown_value_hint(template, r) for r in missing if not _has_types(template, r))
        problem = f"where NodePool {template.name} has no instance type{next(hints, '')}"
    if not view.cohort.shape.volumes.alternatives:
        text = f"only nodes with {wanted} reach the devices of its ResourceClaims, {problem}"
        return Rejection("DevicesUnreachable", text, template.name, {"devices": wanted})
    text = f"its volumes can be attached only to nodes with {wanted}, {problem}"
    return Rejection("VolumeUnreachable", text, template.name, {"volumes": wanted})


def _has_types(template: PoolTemplate, wanted: Requirement) -> bool:
    """Return whether any type of the catalog meets a requirement, whatever the NodePool allows."""
    return bool(template.table.types_matching(wanted))
