"""Amazon Linux 2: a shell script that runs EKS' bootstrap script after the user's own parts."""

from __future__ import annotations

from reconciler.adapters.aws.bootstrap.kubelet import flags
from reconciler.adapters.aws.bootstrap.mime import SHELL, MimePart, compose, is_mime, parts_of
from reconciler.adapters.aws.bootstrap.setup import Setup


def user_data(setup: Setup) -> str:
    """Return multi-part user data; input that is not multi-part is treated as one shell script."""
    custom = setup.custom
    if not custom.strip():
        parts = []
    elif is_mime(custom):
        parts = parts_of(custom)
    else:
        parts = [MimePart(SHELL, custom)]
    return compose([*parts, MimePart(SHELL, _script(setup))])


def _script(setup: Setup) -> str:
    cluster, dns = setup.cluster, setup.cluster_dns
    call = (
        f"/etc/eks/bootstrap.sh '{cluster.name}' --apiserver-endpoint '{cluster.endpoint}' "
        f"--b64-cluster-ca '{cluster.ca_bundle}'"
    )
    options = [
        "--ip-family ipv6" if dns and ":" in dns[0] else "",
        f"--dns-cluster-ip '{dns[0]}'" if dns else "",
        "--use-max-pods false",
        f"--kubelet-extra-args '{flags(setup)}'",
        "--local-disks raid0" if setup.raid0 else "",
    ]
    lines = " \\\n".join([call, *(option for option in options if option)])
    log = "exec > >(tee /var/log/user-data.log|logger -t user-data -s 2>/dev/console) 2>&1"
    return f"#!/bin/bash -xe\n{log}\n{lines}"
