"""Which images a class may boot: aliases by SSM parameter, others by query; newest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from reconciler.adapters.aws.aliases import Needs, alias_paths
from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.errors import Failure, boto_errors, failure_of, our_error, translated
from reconciler.adapters.aws.filters import tag_filters
from reconciler.adapters.aws.profiles import is_imitated
from reconciler.model.errors import CloudError, TransientCloudError
from reconciler.model.labels import ARCH
from reconciler.model.nodeclass import AMI, EC2NodeClass, SelectorTerm
from reconciler.model.nodepool import NodeSelectorRequirement
from reconciler.model.requirement import Operator
from reconciler.model.settings import Settings
from reconciler.ports import Clock

ATTEMPTS: Final = 5

_ARCHITECTURES: Final = {"x86_64": "amd64", "arm64": "arm64"}
_STAND_IN: Final = "al2023-ami-2023*"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An image as described, for one variant of types."""

    row: dict[str, Any]
    needs: Needs

    def is_deprecated(self, now: datetime) -> bool:
        text: str = self.row.get("DeprecationTime", "")
        return bool(text) and datetime.fromisoformat(text) <= now

    def preference(self, now: datetime) -> tuple[bool, str, str]:
        """Sorts the best last: not deprecated, newest, greater name."""
        created = self.row.get("CreationDate", "")
        return (not self.is_deprecated(now), created, self.row.get("Name", ""))

    def ami(self, now: datetime) -> AMI:
        return AMI(
            self.row["ImageId"],
            self.row.get("Name", ""),
            deprecated=self.is_deprecated(now),
            requirements=self.needs,
        )


class Images:
    """Finds the images of a class."""

    def __init__(self, ec2: Any, connect: Connect, settings: Settings, clock: Clock) -> None:
        self._ec2 = ec2
        self._connect = connect
        self._settings = settings
        self._clock = clock

    def of(self, node_class: EC2NodeClass) -> tuple[list[AMI], str]:
        """Return the images, newest first, and what to say if there are none.

        Raises:
            TransientCloudError, CloudError: a look-up failed.
        """
        terms = node_class.spec.ami_selector_terms
        alias = next((term.alias for term in terms if term.alias), "")
        now = self._clock.now()
        if alias:
            candidates = self._by_alias(alias)
            problem = f"no image is published for alias {alias}"
        else:
            candidates = self._by_terms(terms)
            problem = "no image matches spec.amiSelectorTerms"
        chosen: dict[Needs, _Candidate] = {}
        for candidate in candidates:
            best = chosen.get(candidate.needs)
            if best is None or candidate.preference(now) > best.preference(now):
                chosen[candidate.needs] = candidate
        newest = sorted(chosen.values(), key=lambda c: c.row["ImageId"])
        newest.sort(key=lambda c: c.row.get("CreationDate", ""), reverse=True)
        return [candidate.ami(now) for candidate in newest], problem

    def _by_alias(self, alias: str) -> list[_Candidate]:
        if is_imitated(self._settings):
            return self._stand_ins()
        variants: dict[str, tuple[Needs, ...]] = {}
        for row in alias_paths(alias, self._kubernetes_version()):
            image = self._parameter(row.path)
            if image:
                variants[image] = (*variants.get(image, ()), *row.variants)
        return [
            _Candidate(row, (arch, *needs))
            for row, arch in self._described([{"Name": "image-id", "Values": sorted(variants)}])
            for needs in variants[row["ImageId"]]
        ]

    def _stand_ins(self) -> list[_Candidate]:
        """Return the Amazon Linux 2023 image of each architecture with the greatest name.

        Imitations of EC2 do not publish EKS' images, and none will boot. Some give all images
        the same age, or a new one at each call.
        """
        best: dict[NodeSelectorRequirement, dict[str, Any]] = {}
        filters = [{"Name": "name", "Values": [_STAND_IN]}]
        for row, arch in self._described(filters, owners=["amazon"]):
            if arch not in best or row.get("Name", "") > best[arch].get("Name", ""):
                best[arch] = row
        return [_Candidate({**row, "CreationDate": ""}, (arch,)) for arch, row in best.items()]

    def _by_terms(self, terms: Sequence[SelectorTerm]) -> list[_Candidate]:
        ids = {term.id for term in terms if term.id}
        ids |= {
            image
            for term in terms
            if term.ssm_parameter and not term.id
            for image in [self._parameter(term.ssm_parameter)]
            if image.startswith("ami-")
        }
        found: list[_Candidate] = []
        if ids:
            rows = self._described([{"Name": "image-id", "Values": sorted(ids)}])
            found += [_Candidate(row, (arch,)) for row, arch in rows]
        for term in terms:
            filters = tag_filters(term.tags)
            if term.name:
                filters.append({"Name": "name", "Values": [term.name]})
            if term.id or term.ssm_parameter or not filters:
                continue
            owners = [term.owner] if term.owner else ["self", "amazon"] if term.name else []
            rows = self._described(filters, owners=owners)
            found += [_Candidate(row, (arch,)) for row, arch in rows]
        return found

    def _described(
        self, filters: list[dict[str, Any]], owners: Sequence[str] = ()
    ) -> Iterable[tuple[dict[str, Any], NodeSelectorRequirement]]:
        """Yield the available images with the architecture that they need of a type."""
        query: dict[str, Any] = {
            "Filters": [*filters, {"Name": "state", "Values": ["available"]}],
            "IncludeDeprecated": True,
        }
        if owners:
            query["Owners"] = list(owners)
        with translated("ec2:DescribeImages"):
            rows = [
                row
                for page in self._ec2.get_paginator("describe_images").paginate(**query)
                for row in page["Images"]
            ]
        for row in rows:
            arch = _ARCHITECTURES.get(row.get("Architecture", ""))
            if arch is not None:
                yield row, NodeSelectorRequirement(ARCH, Operator.IN, (arch,))

    def _parameter(self, path: str) -> str:
        """Return the value of an SSM parameter, empty where there is none."""
        try:
            answer = self._connect("ssm", ATTEMPTS).get_parameter(Name=path)
        except boto_errors() as error:
            if failure_of(error) is Failure.NOT_FOUND:
                return ""
            raise our_error("ssm:GetParameter", error) from error
        value: str = answer["Parameter"]["Value"]
        return value

    def _kubernetes_version(self) -> str:
        """Return the cluster's minor version, as EKS tells it."""
        name = self._settings.cluster_name
        try:
            answer = self._connect("eks", ATTEMPTS).describe_cluster(name=name)
        except boto_errors() as error:
            failed = our_error("eks:DescribeCluster", error)
            if isinstance(failed, TransientCloudError):
                raise failed from error
            raise CloudError(
                failed.message,
                where=failed.where,
                remedy=(
                    f"an image alias needs the Kubernetes version of cluster {name}; set "
                    "clusterName, or select images by id or ssmParameter"
                ),
            ) from error
        version: str = answer["cluster"]["version"]
        return version
