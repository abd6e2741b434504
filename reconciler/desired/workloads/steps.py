"""What a cluster does between an object that is applied and the pods that it schedules.

This is the one list. Each step is either done for the workloads of a folder, in the module that
``done_in`` names, or it is named as not done, with the effect on a plan. ``docs/workloads.md``
shows the list; a test compares them.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ClusterStep(NamedTuple):
    """One step: who takes it, its effect on pods, and where it is done here.

    ``done_in`` is empty if it is not done; ``limit`` then states what a plan does not know.
    """

    actor: str
    effect: str
    done_in: str = ""
    limit: str = ""


CLUSTER_STEPS: Final = (
    ClusterStep(
        "controllers of Kubernetes",
        "make the pods of a template, with labels, owners and ordinals",
        "desired/workloads/pods.py",
    ),
    ClusterStep(
        "API server: defaults",
        "a limit without a request becomes the request, of containers and of the pod; ports of a "
        "pod in the host's network are host ports",
        "desired/workloads/admission.py",
    ),
    ClusterStep(
        "API server: Priority",
        "the priority of the PriorityClass, or of the default one, and its preemptionPolicy",
        "desired/workloads/pods.py",
    ),
    ClusterStep(
        "API server: DefaultStorageClass",
        "the default StorageClass of a claim that names none",
        "desired/workloads/pods.py",
    ),
    ClusterStep(
        "PersistentVolume controller",
        "binds a claim to its volume, or provisions one; classes, volumes and claims that the "
        "folder does not have are assumed, with a note",
        "desired/workloads/volumes.py",
    ),
    ClusterStep(
        "API server: label keys of affinity",
        "matchLabelKeys and mismatchLabelKeys become part of the selector",
        "model/kubernetes/labelkeys.py",
    ),
    ClusterStep(
        "API server: LimitRanger",
        "default requests and limits of containers; pods outside minimum and maximum are rejected",
        "desired/workloads/admission.py",
    ),
    ClusterStep(
        "API server: RuntimeClass",
        "the overhead, node selector and tolerations of the RuntimeClass",
        "desired/workloads/admission.py",
    ),
    ClusterStep(
        "API server: PodNodeSelector",
        "the node selector in the annotation of the Namespace",
        "desired/workloads/admission.py",
    ),
    ClusterStep(
        "API server: ExtendedResourceToleration",
        "tolerations of taints that are named like a requested resource, such as nvidia.com/gpu",
        "desired/workloads/admission.py",
    ),
    ClusterStep(
        "VerticalPodAutoscaler",
        "the recommendation in its status replaces the requests, unless updateMode is Off",
        "desired/workloads/admission.py",
    ),
    ClusterStep(
        "API server: ResourceQuota",
        "pods beyond the quota of a namespace are never created",
        "desired/workloads/quota.py",
    ),
    ClusterStep(
        "autoscalers of pods",
        "choose the number of replicas between a minimum and a maximum",
        "desired/workloads/podsets.py",
    ),
    ClusterStep(
        "API server: DefaultTolerationSeconds",
        "tolerations of NoExecute taints for five minutes",
        limit="they do not change where a pod can be scheduled",
    ),
    ClusterStep(
        "API server: PodTolerationRestriction",
        "tolerations in annotations of the Namespace",
        limit="EKS does not enable it",
    ),
    ClusterStep(
        "API server: ResourceQuota of objects",
        "quotas on the number of other objects, and on the pods of DaemonSets",
        limit="a plan counts them as created",
    ),
    ClusterStep(
        "operators",
        "claims of Strimzi, Prometheus, ECK and CloudNativePG; pods that are not in their object",
        limit="plan with a snapshot",
    ),
    ClusterStep(
        "webhooks of the cluster",
        "sidecars, labels and affinities that a mutating webhook adds",
        limit="render the manifests with the sidecar, or plan with a snapshot",
    ),
)
