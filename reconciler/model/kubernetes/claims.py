"""The references of a pod to ResourceClaims, by which it gets devices."""

from __future__ import annotations

import msgspec


class DeviceClaim(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A reference by a container to one of its pod's ResourceClaims."""

    name: str = ""


class PodClaim(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A ResourceClaim of a pod: one that exists, or one of its own from a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodClaimStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The claim that was created for a pod from a template."""

    name: str = ""
    resource_claim_name: str | None = None
