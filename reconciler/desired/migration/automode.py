"""Take over what EKS Auto Mode calls its node classes and labels, whose nodes AWS launches itself.

https://docs.aws.amazon.com/eks/latest/userguide/create-node-class.html
"""

from __future__ import annotations

from typing import Final

from reconciler.desired.migration.objects import Note, change_note, removal_note
from reconciler.model.json import JsonDict, as_list, as_mapping
from reconciler.source.document import Pointer
from reconciler.source.resource import AUTO_MODE
from reconciler.source.schema import value_at

_KARPENTER: Final = "karpenter.k8s.aws"
_INSTANCE: Final = f"{AUTO_MODE}/instance-"
_KEPT: Final = (
    "role",
    "instanceProfile",
    "subnetSelectorTerms",
    "securityGroupSelectorTerms",
    "tags",
)
_TEMPLATE: Final[Pointer] = ("spec", "template", "spec")
_IMAGE: Final = "bottlerocket@latest"


def is_auto_mode_class(data: JsonDict) -> bool:
    """Return whether an object is a NodeClass of EKS Auto Mode."""
    return data.get("kind") == "NodeClass" and str(data.get("apiVersion", "")).startswith(AUTO_MODE)


def convert_class(data: JsonDict) -> list[Note]:
    """Turn a NodeClass into an EC2NodeClass in place; return what changed."""
    spec = data.get("spec")
    old = as_mapping(spec)
    new: JsonDict = {"amiSelectorTerms": [{"alias": _IMAGE}]}
    new |= {key: old[key] for key in _KEPT if key in old}
    storage = old.get("ephemeralStorage")
    if isinstance(storage, dict):
        volume = {"volumeType": "gp3", "volumeSize": storage.get("size", "80Gi")}
        volume |= {key: storage[key] for key in ("iops", "throughput") if key in storage}
        new["blockDeviceMappings"] = [{"deviceName": "/dev/xvdb", "ebs": volume}]
    notes = [
        removal_note(
            (),
            f"classes of {AUTO_MODE} (EKS Auto Mode) are not supported; it is taken "
            f"over as an EC2NodeClass with {_IMAGE}",
            "compare its image, role and security groups",
        ),
    ]
    known = (*_KEPT, "ephemeralStorage")
    notes += [removal_note(("spec", key), "has no successor") for key in old if key not in known]
    data["apiVersion"], data["kind"] = f"{_KARPENTER}/v1", "EC2NodeClass"
    data["spec"] = new
    return notes


def convert_pool(data: JsonDict) -> list[Note]:
    """Change the labels and the class reference of a NodePool of EKS Auto Mode in place."""
    notes: list[Note] = []
    requirements = value_at(data, (*_TEMPLATE, "requirements"))
    for number, one in enumerate(as_list(requirements)):
        key = one.get("key") if isinstance(one, dict) else None
        if isinstance(key, str) and key.startswith(_INSTANCE):
            one["key"] = f"{_KARPENTER}/instance-{key.removeprefix(_INSTANCE)}"
            notes.append(
                change_note((*_TEMPLATE, "requirements", number, "key"), f"is now {one['key']}")
            )
    reference = value_at(data, (*_TEMPLATE, "nodeClassRef"))
    if isinstance(reference, dict) and reference.get("group") == AUTO_MODE:
        reference["group"], reference["kind"] = _KARPENTER, "EC2NodeClass"
        notes.append(change_note((*_TEMPLATE, "nodeClassRef"), "is now that of an EC2NodeClass"))
    return notes
