"""The annotation ``controller.kubernetes.io/pod-deletion-cost`` of pods, and nothing else of them.

It is written by server-side apply under a manager of its own, without force: the API server refuses
to overwrite a value that somebody else has set, and to remove it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from reconciler.adapters.kubernetes.api import CONFLICT, FORBIDDEN, NOT_FOUND, Api, ApiError
from reconciler.adapters.kubernetes.karpenter import APPLY_PATCH
from reconciler.adapters.kubernetes.kinds import POD_COSTS
from reconciler.model.errors import ClusterError
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import POD_DELETION_COST
from reconciler.ports.cluster import CostWrites, PodCost

_MANAGER: Final = {"fieldManager": "reconciler-pod-deletion-cost"}


class ClusterPodCosts:
    """The port ``PodCosts`` over the Kubernetes API.

    Values of others are remembered until they change, so that they are not tried again and again.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._foreign: dict[str, str | None] = {}
        self._is_refused = False

    def write(self, costs: Sequence[PodCost]) -> CostWrites:
        """Write the wanted costs; the first missing permission ends it.

        Without the permission, costs are no longer removed: there may have never been any.
        """
        results: Counter[str] = Counter()
        if self._is_refused and all(cost.wanted is None for cost in costs):
            return CostWrites(results)
        wanted = {cost.uid for cost in costs}
        self._foreign = {uid: v for uid, v in self._foreign.items() if uid in wanted}
        for cost in costs:
            if cost.uid in self._foreign and self._foreign[cost.uid] == cost.current:
                results["skipped_conflict"] += 1
                continue
            try:
                self._api.call(
                    "PATCH",
                    f"/api/v1/namespaces/{cost.namespace}/pods/{cost.name}",
                    _MANAGER,
                    _body(cost),
                    content=APPLY_PATCH,
                )
                results["updated"] += 1
                if cost.wanted is None:  # it stays if somebody else has set it
                    self._foreign[cost.uid] = cost.current
            except ApiError as error:
                if error.status == FORBIDDEN:
                    self._is_refused = True
                    return CostWrites(results, _missing_permission(error))
                results[self._failed(cost, error)] += 1
        self._is_refused = False
        return CostWrites(results)

    def _failed(self, cost: PodCost, error: ApiError) -> str:
        """Return the name of a result: a pod that is gone or a value of others is no error."""
        if error.status == NOT_FOUND:
            return "skipped_notfound"
        if error.status == CONFLICT:
            self._foreign[cost.uid] = cost.current
            return "skipped_conflict"
        return "error"


def _body(cost: PodCost) -> JsonDict:
    """Return the fields that we want to own; an object without the annotation gives it up."""
    metadata: JsonDict = {"name": cost.name, "namespace": cost.namespace, "uid": cost.uid}
    if cost.wanted is not None:
        metadata["annotations"] = {POD_DELETION_COST: cost.wanted}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def _missing_permission(error: ApiError) -> ClusterError:
    return ClusterError(
        f"missing permission: {POD_COSTS.verb} {POD_COSTS.resource} ({POD_COSTS.why})",
        where=error.where,
        remedy="apply docs/kubernetes/clusterrole-pod-costs.yaml, or set podDeletionCosts in the "
        "chart, or switch off featureGates.PodDeletionCostManagement",
    )
