"""Read an account's commitments, in the format of the configuration.

AWS reports what this account bought. It does not report how much is used now (that is billed hours
to a day later), nor what other accounts of the same payer share. The commitments are therefore read
once, for a person to complete and commit, and not in every pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.errors import translate_errors
from reconciler.model.billing import COMPUTE, EC2_INSTANCE, ReservedInstancesTerms, SavingsPlanTerms
from reconciler.model.errors import CloudError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, ReservedInstancesTypeDef
    from mypy_boto3_savingsplans.type_defs import (
        DescribeSavingsPlansRequestTypeDef,
        SavingsPlanTypeDef,
    )


_ATTEMPTS: Final = 5
_PLANS_MAX: Final = 1000
_LINUX: Final = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")


@dataclass(frozen=True, slots=True)
class AccountCommitments:
    """The commitments that cover nodes, and reason others of the account do not."""

    savings_plans: tuple[SavingsPlanTerms, ...]
    reserved_instances: tuple[ReservedInstancesTerms, ...]
    passed_over: tuple[str, ...]


def read_commitments(connect: Connect, region: str) -> AccountCommitments:
    """Return the active commitments: plans by id, then reserved instances of a region by id.

    Raises:
        TransientCloudError, CloudError: AWS did not respond, or not completely.
    """
    plans, reserved, passed_over = [], [], []
    for plan in sorted(_savings_plans(connect), key=lambda p: p.get("savingsPlanId", "")):
        reason = _plan_exclusion_reason(plan)
        if reason:
            passed_over.append(f"savings plan {plan.get('savingsPlanId', '')}: {reason}")
        else:
            plans.append(_plan_terms(plan))
    for row in sorted(_reserved_instances(connect), key=lambda r: r["ReservedInstancesId"]):
        reason = _reserved_exclusion_reason(row)
        if reason:
            passed_over.append(f"reserved instances {row['ReservedInstancesId']}: {reason}")
        else:
            reserved.append(_reserved_terms(row, region))
    return AccountCommitments(tuple(plans), tuple(reserved), tuple(passed_over))


def _savings_plans(connect: Connect) -> Iterator[SavingsPlanTypeDef]:
    """Yield the active plans from all pages; boto3 has no paginator for them.

    Raises:
        CloudError: AWS refuses, or the list does not end.
    """
    client = connect("savingsplans", _ATTEMPTS)
    query: DescribeSavingsPlansRequestTypeDef = {"states": ["active"], "maxResults": _PLANS_MAX}
    known = set[str]()
    while True:
        with translate_errors("savingsplans:DescribeSavingsPlans"):
            answer = client.describe_savings_plans(**query)
        yield from answer.get("savingsPlans") or []
        after = answer.get("nextToken")
        if not after:
            return
        if after in known:
            raise CloudError("the list does not end", where="savingsplans:DescribeSavingsPlans")
        known.add(after)
        query["nextToken"] = after


def _reserved_instances(connect: Connect) -> Sequence[ReservedInstancesTypeDef]:
    filters: list[FilterTypeDef] = [{"Name": "state", "Values": ["active"]}]
    with translate_errors("ec2:DescribeReservedInstances"):
        answer = connect("ec2", _ATTEMPTS).describe_reserved_instances(Filters=filters)
    return answer["ReservedInstances"]


def _plan_exclusion_reason(row: SavingsPlanTypeDef) -> str:
    """Return reason a plan covers no node, empty if it may."""
    if row.get("savingsPlanType") not in (COMPUTE, EC2_INSTANCE):
        return f"its type is {row.get('savingsPlanType')}"
    return f"its currency is {row['currency']}" if row.get("currency", "USD") != "USD" else ""


def _plan_terms(row: SavingsPlanTypeDef) -> SavingsPlanTerms:
    is_bound = row["savingsPlanType"] == EC2_INSTANCE
    return SavingsPlanTerms(
        type=row["savingsPlanType"],
        commitment=float(row["commitment"]),
        family=row.get("ec2InstanceFamily", "") if is_bound else "",
        region=row.get("region", "") if is_bound else "",
        until=datetime.fromisoformat(row["end"]).astimezone(UTC) if row.get("end") else None,
        note=row.get("savingsPlanId", ""),
    )


def _reserved_exclusion_reason(row: ReservedInstancesTypeDef) -> str:
    """Return reason reserved instances cover no node, empty if they may."""
    if row.get("ProductDescription") not in _LINUX:
        return f"they are for {row.get('ProductDescription')}"
    tenancy = row.get("InstanceTenancy", "default")
    return f"their tenancy is {tenancy}" if tenancy != "default" else ""


def _reserved_terms(row: ReservedInstancesTypeDef, region: str) -> ReservedInstancesTerms:
    is_zonal = row.get("Scope") == "Availability Zone"
    return ReservedInstancesTerms(
        instance_type=row["InstanceType"],
        count=row["InstanceCount"],
        region=region,
        zone=row.get("AvailabilityZone", "") if is_zonal else "",
        until=row["End"].astimezone(UTC) if row.get("End") else None,
        note=row["ReservedInstancesId"],
    )
