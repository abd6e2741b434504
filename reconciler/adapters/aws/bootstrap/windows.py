"""Windows: a PowerShell script that starts with the user's own lines."""

from __future__ import annotations

from reconciler.adapters.aws.bootstrap.kubelet import flags
from reconciler.adapters.aws.bootstrap.setup import Setup

_SCRIPT = r"$env:ProgramFiles\Amazon\EKS\Start-EKSBootstrap.ps1"


def user_data(setup: Setup) -> str:
    """Return the script; Windows nodes have no volumes to join."""
    cluster, dns = setup.cluster, setup.cluster_dns
    call = (
        f"& $EKSBootstrapScriptFile -EKSClusterName '{cluster.name}' "
        f"-APIServerEndpoint '{cluster.endpoint}' -Base64ClusterCA '{cluster.ca_bundle}' "
        f"-KubeletExtraArgs '{flags(setup)}'"
    )
    address = f" -DNSClusterIP '{dns[0]}'" if dns else ""
    custom = f"{setup.custom}\n" if setup.custom else ""
    return (
        f"<powershell>\n{custom}"
        f'[string]$EKSBootstrapScriptFile = "{_SCRIPT}"\n{call}{address}\n</powershell>'
    )
