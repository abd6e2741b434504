"""User data by image family: scripts for AL2 and Windows, a NodeConfig for AL2023.

The families of Amazon Linux combine the user's own parts with theirs in the multipart format of
cloud-init. Bottlerocket, whose user data are TOML settings, has a module of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import Final

from reconciler.adapters.aws.bootstrap import bottlerocket
from reconciler.adapters.aws.bootstrap.grammar import check_setup
from reconciler.adapters.aws.bootstrap.kubelet import flags
from reconciler.adapters.aws.bootstrap.setup import Setup
from reconciler.model.errors import CloudError
from reconciler.model.json import JsonDict
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.text.quoting import quote_value
from reconciler.source.plainyaml import dump, is_mapping

NODE_CONFIG: Final = "application/node.eks.aws"
_EMPTY_LINE: Final = re.compile(r"^\r?\n", re.MULTILINE)
SHELL: Final = 'text/x-shellscript; charset="us-ascii"'


@dataclass(frozen=True, slots=True)
class MimePart:
    """One part: its content type and its text."""

    content_type: str
    body: str


def is_mime(text: str) -> bool:
    """Return whether user data is already multi-part, whichever header comes first."""
    return text.lstrip().startswith(("MIME-Version:", "Content-Type:"))


def parse_parts(text: str) -> list[MimePart]:
    """Return the parts of multi-part user data, in order.

    They are cut as Go's ``mime/multipart`` cuts them, with which Karpenter reads user data: the
    first delimiter says how lines end, a line after the final delimiter does not count, and a part
    that is multi-part itself stays whole. Only ``quoted-printable`` is decoded.

    Raises:
        CloudError: a part has no end, or other text is where a part should begin.
    """
    import quopri

    text = text.lstrip()
    message = HeaderParser().parsestr(text)
    boundary = message.get_param("boundary")
    if not message.get_content_type().startswith("multipart/") or not isinstance(boundary, str):
        return [MimePart(message.get("Content-Type", "text/plain"), str(message.get_payload()))]
    parts = []
    for part in _split_body(_body(text), f"--{boundary}"):
        header = HeaderParser().parsestr(part)
        body = _body(part)
        if header.get("Content-Transfer-Encoding", "").lower() == "quoted-printable":
            body = quopri.decodestring(body.encode()).decode("utf-8", "replace")
        parts.append(MimePart(header.get("Content-Type", ""), body))
    return parts


def _body(text: str) -> str:
    """Return what follows the first empty line."""
    empty = _EMPTY_LINE.search(text)
    return text[empty.end() :] if empty else ""


def _split_body(text: str, dashes: str) -> Iterator[str]:
    """Yield the parts of a multi-part body, each with its header."""
    delimiter = re.compile(rf"{re.escape(dashes)}[ \t]*(\r?\n)")
    begin = next((found for found in delimiter.finditer(text) if _begins_line(text, found)), None)
    if begin is None:
        if not re.search(rf"^{re.escape(dashes)}--[ \t]*\r?$", text, re.MULTILINE):
            raise _unreadable_error("it has no part")
        return
    line_end = begin[1]
    ending = re.compile(rf"{line_end}{re.escape(dashes)}(?=[ \t\r\n]|--|\Z)")
    following = re.compile(rf"{re.escape(dashes)}(?:(--)[ \t]*(?:{line_end}|\Z)|[ \t]*{line_end})")
    at = begin.end()
    while True:
        header = re.compile(r"\r?\n").match(text, at - 1) or re.compile(r"\r?\n\r?\n").search(
            text, at
        )
        first = header.end() if header else at
        if text.startswith(dashes, first):  # an empty body needs no line of its own
            end, resume = first, first
        else:
            found = ending.search(text, first)
            if found is None:
                raise _unreadable_error(
                    f"the part in line {text.count(chr(10), 0, at) + 1} has no end"
                )
            end, resume = found.start(), found.start() + len(line_end)
        yield text[at:end]
        next_one = following.match(text, resume)
        if next_one is None and "\n" not in text[resume:]:
            return  # what is left of a line does not count
        if next_one is None:
            raise _unreadable_error(
                f"a part should begin at {quote_value(text[resume : resume + 40])}"
            )
        if next_one[1]:
            return
        at = next_one.end()


def _begins_line(text: str, found: re.Match[str]) -> bool:
    return found.start() == 0 or text[found.start() - 1] == "\n"


def _unreadable_error(why: str) -> CloudError:
    return CloudError(f"the multi-part user data cannot be read: {why}", where="spec.userData")


def compose(parts: list[MimePart]) -> str:
    """Return the multi-part text; the boundary is ``//``, as in EKS' own tools."""
    head = 'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="//"\n\n'
    body = "".join(
        f"--//\nContent-Type: {part.content_type}\n\n{part.body.rstrip()}\n\n" for part in parts
    )
    return f"{head}{body}--//--\n".replace("\r", "")


_SCRIPT = r"$env:ProgramFiles\Amazon\EKS\Start-EKSBootstrap.ps1"


def windows_user_data(setup: Setup) -> str:
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


def al2_user_data(setup: Setup) -> str:
    """Return multi-part user data; input that is not multi-part is treated as one shell script."""
    custom = setup.custom
    if not custom.strip():
        parts = []
    elif is_mime(custom):
        parts = parse_parts(custom)
    else:
        parts = [MimePart(SHELL, custom)]
    return compose([*parts, MimePart(SHELL, _bootstrap_script(setup))])


def _bootstrap_script(setup: Setup) -> str:
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


def al2023_user_data(setup: Setup) -> str:
    """Return multi-part user data; nodeadm merges several NodeConfigs, and ours comes last."""
    return compose([*_custom_parts(setup.custom), MimePart(NODE_CONFIG, _node_config(setup))])


def _custom_parts(text: str) -> list[MimePart]:
    """Return the user's parts; other input is a NodeConfig if it is a mapping, else a script."""
    if not text.strip():
        return []
    if is_mime(text):
        return parse_parts(text)
    return [MimePart(NODE_CONFIG if is_mapping(text) else SHELL, text)]


def _node_config(setup: Setup) -> str:
    cluster = setup.cluster
    facts = {
        "name": cluster.name,
        "apiServerEndpoint": cluster.endpoint,
        "certificateAuthority": cluster.ca_bundle,
        "cidr": cluster.cidr,
    }
    labels = ",".join(f"{key}={value}" for key, value in setup.labels.items())
    spec: JsonDict = {
        "cluster": {key: value for key, value in facts.items() if value},
        "kubelet": {"config": _kubelet_config(setup), "flags": [f'--node-labels="{labels}"']},
    }
    if setup.raid0:
        spec["instance"] = {"localStorage": {"strategy": "RAID0"}}
    document = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}
    return "# Generated by reconciler\n" + dump(document)


def _kubelet_config(setup: Setup) -> JsonDict:
    config = {**setup.kubelet, "maxPods": setup.max_pods}
    if setup.cluster_dns:
        config["clusterDNS"] = setup.cluster_dns
    config["registerWithTaints"] = [_taint(t) for t in setup.taints]
    return config


def _taint(taint: Taint) -> dict[str, str]:
    row = {"key": taint.key, "value": taint.value, "effect": taint.effect}
    return {key: value for key, value in row.items() if value}


def _custom_user_data(setup: Setup) -> str:
    """Custom images get the user's data unchanged."""
    return setup.custom


_WRITERS: Final[Mapping[str, Callable[[Setup], str]]] = {
    "AL2": al2_user_data,
    "AL2023": al2023_user_data,
    "Bottlerocket": bottlerocket.user_data,
    "Windows2019": windows_user_data,
    "Windows2022": windows_user_data,
    "Windows2025": windows_user_data,
    "Custom": _custom_user_data,
}


def user_data(family: str, setup: Setup) -> str:
    """Return the user data of a node as text, empty if there is none.

    Raises:
        CloudError: a value has a character that could end its place in the text.
    """
    check_setup(setup)
    return _WRITERS[family](setup)
