"""What the codes of findings on workloads mean, as in ``codes``."""

from __future__ import annotations

from typing import Final

WORKLOADS: Final = {
    "budget-both": (
        "A PodDisruptionBudget has both minAvailable and maxUnavailable.",
        "Keep one of them.",
    ),
    "expression-values": (
        "The values of a selector's expression do not fit its operator.",
        "In, NotIn, Gt and Lt need values; Exists and DoesNotExist take none.",
    ),
    "negative-quantity": ("An amount is negative.", "Use zero or more."),
    "requests-above-limits": (
        "A container requests more of a resource than its limit.",
        "Raise the limit, or lower the request.",
    ),
    "selector-mismatch": (
        "The selector of a workload does not match the labels of its own pods.",
        "Make them agree.",
    ),
    "spread-min-domains": (
        "minDomains is allowed only with DoNotSchedule.",
        "Remove minDomains, or use DoNotSchedule.",
    ),
    "assumed-claim": (
        "A pod uses a PersistentVolumeClaim that is not in the folder. It is assumed to exist.",
        "Add it to the folder, or plan with a snapshot.",
    ),
    "assumed-storageclass": (
        "Claims use a StorageClass that is not in the folder. It is assumed to be the usual one.",
        "Add it to the folder, or plan with a snapshot.",
    ),
    "assumed-volume": (
        "A PersistentVolume is not in the folder. Every zone is assumed to reach it.",
        "Add it to the folder, or plan with a snapshot.",
    ),
    "device-request-differs": (
        "A container requests fewer devices than its limit.",
        "Remove the request; it follows from the limit.",
    ),
    "device-without-limit": (
        "A container requests devices without a limit, which the API server rejects.",
        "Write the number as a limit.",
    ),
    "fractional-device": (
        "A container requests a part of a device, such as half a GPU.",
        "Request complete devices.",
    ),
    "toleration-gate": (
        "A toleration compares numbers, which needs a feature gate of Kubernetes.",
        "Enable TaintTolerationComparisonOperators, or use Equal.",
    ),
    "unknown-resource": (
        "A container requests a resource that Kubernetes does not know.",
        "Correct the name, or write it with its domain.",
    ),
    "zone-of-volume-unknown": (
        "A StorageClass of EBS binds immediately, so the zone of its volumes is not known before.",
        "Use volumeBindingMode WaitForFirstConsumer.",
    ),
    "toleration-key": ("A toleration without a key needs the operator Exists.", "Add either."),
    "toleration-value": (
        "The value of a toleration does not fit its operator.",
        "Exists takes none, Gt and Lt take an integer.",
    ),
    "missing-priorityclass": (
        "A pod names a PriorityClass that is not in the folder, so its priority counts as 0.",
        "Add the PriorityClass, or correct the name.",
    ),
    "maximum-limited": (
        (
            "A quota, or the limits of NodePools, stop an autoscaler before its maximum, so that "
            "it has fewer pods than its load needs."
        ),
        "Raise the quota or spec.limits, or lower the maximum.",
    ),
    "missing-runtimeclass": (
        "The RuntimeClass of a pod is not in the folder, so its overhead is not known.",
        "Commit the RuntimeClass, or plan with the pods of a cluster (`--snapshot`).",
    ),
    "missing-scale-target": (
        "An autoscaler scales a workload that is not in the folder.",
        "Commit the workload, or correct the reference.",
    ),
    "gated-pods": (
        "Pods have scheduling gates. No node is planned for them until the gates are removed.",
        "Remove schedulingGates, or wait until the controller that set them does.",
    ),
    "named-node": (
        "Pods have spec.nodeName, so they run on that node or not at all.",
        "Select nodes by label, with nodeSelector or node affinity.",
    ),
    "no-pod-template": (
        "An object of a known kind has no pod template, so it has no pods in a plan.",
        "Check the object; its operator would reject it.",
    ),
    "no-requests": (
        (
            "Pods request neither CPU nor memory. The scheduler places them on any node, so no "
            "plan can foresee how many nodes they need."
        ),
        "Set requests, or a LimitRange with defaults.",
    ),
    "owned-objects": (
        "Objects that another object of the folder has made, or that have ended, are not counted.",
        "Nothing needs to be done; leave them out of the folder to avoid the note.",
    ),
    "pod-rejected": (
        "The API server rejects the pods of a workload, so they are not planned.",
        "Correct what the message names.",
    ),
    "quota-exceeded": (
        "Pods beyond a ResourceQuota are never created, so they are not planned.",
        "Raise the quota, or lower the requests or replicas.",
    ),
    "several-autoscalers": (
        "Two autoscalers scale one workload and would overwrite each other's number.",
        "Keep one of them.",
    ),
    "static-limit": (
        (
            "limits.nodes of a static NodePool is not above its replicas. A drifted node is "
            "replaced only after its replacement has launched, which the limit forbids."
        ),
        "Set limits.nodes to at least one more than replicas.",
    ),
    "too-many-pods": (
        "The workloads in the folder have too many pods.",
        "Lower replicas, or plan with the pods of a cluster (`--snapshot`).",
    ),
    "unknown-workload": (
        (
            "An object of an unknown kind contains a pod template, or requests of containers. Its "
            "pods need nodes, and no plan counts them."
        ),
        "Describe the kind in `workloadKinds` of reconciler.yaml.",
    ),
}
