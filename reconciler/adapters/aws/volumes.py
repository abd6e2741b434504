"""The volumes of a machine: the class's own mappings, else its family's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reconciler.model.nodeclass import BlockDevice, BlockDeviceMapping, EC2NodeClass
from reconciler.model.quantity import MILLI, parse_quantity


def _default(device: str, size: str) -> BlockDeviceMapping:
    return BlockDeviceMapping(
        device_name=device, ebs=BlockDevice(encrypted=True, volume_size=size, volume_type="gp3")
    )


_LINUX: Final = (_default("/dev/xvda", "20Gi"),)
_WINDOWS: Final = (_default("/dev/sda1", "50Gi"),)
_DEFAULTS: Final[Mapping[str, tuple[BlockDeviceMapping, ...]]] = {
    "AL2": _LINUX,
    "AL2023": _LINUX,
    "Bottlerocket": (_default("/dev/xvda", "4Gi"), _default("/dev/xvdb", "20Gi")),
    "Windows2019": _WINDOWS,
    "Windows2022": _WINDOWS,
    "Windows2025": _WINDOWS,
}


def block_devices(node_class: EC2NodeClass) -> list[dict[str, Any]]:
    """Return ``BlockDeviceMappings``; a Custom class without its own leaves it to the image."""
    own = node_class.spec.block_device_mappings
    return [_mapping(m) for m in own or _DEFAULTS.get(node_class.ami_family, ())]


def _mapping(mapping: BlockDeviceMapping) -> dict[str, Any]:
    row: dict[str, Any] = {"DeviceName": mapping.device_name} if mapping.device_name else {}
    if mapping.ebs is not None:
        row["Ebs"] = _volume(mapping.ebs)
    return row


def _volume(ebs: BlockDevice) -> dict[str, Any]:
    row: dict[str, Any] = {
        "DeleteOnTermination": ebs.delete_on_termination,
        "Encrypted": ebs.encrypted,
        "Iops": ebs.iops or None,
        "KmsKeyId": ebs.kms_key_id,
        "SnapshotId": ebs.snapshot_id,
        "Throughput": ebs.throughput or None,
        "VolumeInitializationRate": ebs.volume_initialization_rate or None,
        "VolumeSize": None if ebs.volume_size is None else _gibibytes(str(ebs.volume_size)),
        "VolumeType": ebs.volume_type,
    }
    return {name: value for name, value in row.items() if value is not None}


def _gibibytes(size: str) -> int:
    """Return whole GiB, rounded up: EC2 knows no smaller unit."""
    return -(-parse_quantity(size) // (MILLI * 2**30))
