"""Access to the API of a cluster: which cluster, and which credentials.

The client of the Kubernetes project reads kubeconfigs, runs their exec plugins and renews tokens.
It is imported only when a cluster is used.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from reconciler.adapters.nofollow import warn_of_other_writers
from reconciler.model.errors import ClusterError, UsageError
from reconciler.model.settings import Settings
from reconciler.model.text.urls import is_unencrypted, without_secrets

_IN_CLUSTER: Final = "KUBERNETES_SERVICE_HOST"
_DEFAULT: Final = "~/.kube/config"
_REMEDY: Final = "set kubernetes.kubeconfig and kubernetes.context, or KUBECONFIG"
KUBECONFIG_BYTES_MAX: Final = 2**22
"""The maximum size of a kubeconfig; one with a thousand contexts has a megabyte."""
_AGENT: Final = "reconciler"
_CONNECTIONS: Final = 40
"""The number of kept connections: a watch of each kind, and the calls outside the pass."""
_KEEPALIVE: Final = (10, 5, 3)
"""Seconds until an idle connection is probed, seconds between probes, and how many may fail. A
server that is gone is detected in 25 seconds, while its watches may be silent for longer."""


@dataclass(frozen=True, slots=True)
class Access:
    """Access to one API server: ``name`` is its context, ``server`` its URL.

    ``authority`` is the PEM text of the trusted certificates, empty for those of the machine;
    ``client`` is the connection (``kubernetes.client.ApiClient``).
    """

    name: str
    server: str
    authority: str
    client: Any

    def __str__(self) -> str:
        return f"{self.server} ({self.name})"


def access_of(settings: Settings) -> Access:
    """Return the access to the cluster of the settings.

    It uses the configured kubeconfig, otherwise that of ``KUBECONFIG``, otherwise
    ``~/.kube/config``; in a pod without any of them, its service account.

    Raises:
        UsageError: the client is not installed, or no cluster is named anywhere.
        ClusterError: a kubeconfig cannot be read, or does not have the context.
    """
    try:
        from kubernetes.client.api_client import ApiClient
        from kubernetes.client.configuration import Configuration
        from kubernetes.utils.keepalive import tcp_keepalive_socket_options
    except ImportError as error:
        from reconciler.installation import install_remedy

        raise UsageError(
            "the Kubernetes client is not installed",
            where="cluster",
            remedy=install_remedy("kubernetes"),
        ) from error
    configuration = Configuration()
    configuration.retries = False  # retries are decided in one place, ours
    configuration.connection_pool_maxsize = _CONNECTIONS
    configuration.socket_options = tcp_keepalive_socket_options(*_KEEPALIVE)
    name = _load_configuration(settings, configuration)
    _expect_encrypted(configuration.host)
    client = ApiClient(configuration)
    client.user_agent = _AGENT
    return Access(
        name, configuration.host.rstrip("/"), _trusted_certificates(configuration), client
    )


def _expect_encrypted(server: str) -> None:
    """Refuse to send credentials without encryption.

    Raises:
        UsageError: the API server is reached by plain http, and is not on this machine.
    """
    if is_unencrypted(server):
        raise UsageError(
            (
                f"the API server {without_secrets(server, is_value=True)} uses plain http, which "
                "is allowed only for this machine"
            ),
            where="kubernetes.kubeconfig",
            remedy="use https in the cluster entry of the kubeconfig",
        )


def _load_configuration(settings: Settings, configuration: object) -> str:
    """Fill the client's configuration, and return its source."""
    from kubernetes import config
    from yaml import YAMLError  # the client reads kubeconfigs with PyYAML, which it requires

    named = bool(settings.kubeconfig or settings.kube_context or os.environ.get("KUBECONFIG"))
    file = settings.kubeconfig or os.environ.get("KUBECONFIG") or _DEFAULT
    if not named and not Path(file).expanduser().exists():
        return _load_service_account(configuration)
    for path in file.split(os.pathsep):
        _expect_small_file(Path(path).expanduser())
        warn_of_other_writers(Path(path).expanduser(), "which program gets the credentials")
    try:
        config.load_kube_config(
            config_file=file,
            context=settings.kube_context or None,
            client_configuration=configuration,
            persist_config=False,
        )
        active = config.list_kube_config_contexts(config_file=file)[1]
    except RecursionError as error:
        what = "the kubeconfig does not lead to a cluster: it is nested too deeply"
        raise ClusterError(what, where=file, remedy=_REMEDY) from error
    except (
        config.ConfigException,
        YAMLError,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
    ) as error:
        message = " ".join(str(error).split())
        raise ClusterError(
            f"the kubeconfig does not lead to a cluster: {message}",
            where=file,
            remedy=_REMEDY,
        ) from error
    return f"context {settings.kube_context or active['name']}"


def _expect_small_file(path: Path) -> None:
    """Refuse what the client would read to its end without a limit.

    Raises:
        ClusterError: it is a device, a pipe or a folder, or too large.
    """
    try:
        status = path.stat()
    except OSError:  # the client names what is missing, and leaves it out of several
        return
    if not stat.S_ISREG(status.st_mode):
        raise ClusterError("is not a regular file", where=str(path), remedy=_REMEDY)
    if status.st_size > KUBECONFIG_BYTES_MAX:
        what = f"more than {KUBECONFIG_BYTES_MAX >> 20} MiB"
        raise ClusterError(what, where=str(path), remedy=_REMEDY)


def _load_service_account(configuration: object) -> str:
    from kubernetes import config

    if _IN_CLUSTER not in os.environ:
        raise UsageError(
            "no cluster configured: there is no kubeconfig, and this is not a pod",
            where="cluster",
            remedy=(
                "set kubernetes.kubeconfig, or pass --set cluster=none to plan the workloads of "
                "the folder, or --set cluster=embedded to simulate a cluster on EC2"
            ),
        )
    try:
        config.load_incluster_config(client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise ClusterError(
            f"cannot use the pod's service account: {error}",
            where="in-cluster configuration",
            remedy="give the pod a service account with a mounted token",
        ) from error
    return "service account"


def _trusted_certificates(configuration: Any) -> str:
    """Return the certificates that the server is verified with."""
    if configuration.ca_cert_data:
        data = configuration.ca_cert_data
        return data.decode() if isinstance(data, bytes) else str(data)
    try:
        path = configuration.ssl_ca_cert
        return Path(path).read_text(encoding="utf-8") if path else ""
    except (OSError, UnicodeDecodeError):
        return ""


def expect_one_cluster(access: Access, settings: Settings) -> None:
    """Refuse to observe one cluster while new nodes would join another.

    A cluster is identified by its certificate authority, which tunnels and private addresses do not
    change. If that is unknown on one side, it is identified by the name in its EKS address. Raises:
    UsageError: the kubeconfig and the settings of new nodes refer to different clusters.
    """
    joined = _decode_bundle(settings.cluster_ca_bundle)
    if joined and access.authority:
        if _certificates(joined) & _certificates(access.authority):
            return
        what, key = "clusterCABundle belongs to another cluster", "clusterCABundle"
    else:
        here, there = _eks_name(access.server), _eks_name(settings.cluster_endpoint)
        if not here or not there or here == there:
            return
        what, key = f"clusterEndpoint is {settings.cluster_endpoint}", "clusterEndpoint"
    raise UsageError(
        f"pods are read from {access}, but new nodes would join another cluster: {what}",
        where=key,
        remedy="set kubernetes.context to the cluster that the nodes join",
    )


def _decode_bundle(bundle: str) -> str:
    try:
        return base64.b64decode(bundle, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return bundle


def _certificates(pem: str) -> frozenset[str]:
    """Return the certificates of a PEM text in canonical form."""
    blocks = pem.split("-----BEGIN CERTIFICATE-----")[1:]
    return frozenset("".join(b.split("-----END CERTIFICATE-----")[0].split()) for b in blocks)


def _eks_name(url: str) -> str:
    host = urlsplit(url).hostname or ""
    return host if host.endswith((".eks.amazonaws.com", ".eks.amazonaws.com.cn")) else ""
