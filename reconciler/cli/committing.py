"""What AWS says was bought, in the form in which ``reconciler.yaml`` states it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from datetime import datetime

    from reconciler.adapters.aws.commitments import Bought

_HEAD = """# Savings plans and reserved instances of this account, for reconciler.yaml. AWS does not
# report here how much of each is used: set usedElsewhere (what workloads outside this fleet use)
# or utilizationPercent (from the AWS bill). Without either, a commitment counts as fully used.
"""
_NOTHING = "# This account has no savings plans or reserved instances that apply to nodes.\n"


def printed(args: argparse.Namespace) -> str:
    """Return the commitments of the account that a fleet lives in, as YAML or JSON.

    Raises:
        TransientCloudError, CloudError: AWS did not answer, or not to the end.
    """
    from reconciler.adapters.aws.commitments import bought
    from reconciler.cli import inputs
    from reconciler.cli.wiring.account import connections

    fleet, _ = inputs.read_desired(inputs.read_source(args), any_class=False)
    settings = inputs.settings_of(args, fleet).settings
    found = bought(connections().of(settings), settings.region)
    if args.output == "json":
        from reconciler.cli.listing import as_json

        return as_json({**_document(found), "passedOver": list(found.passed_over)})
    return _text(found)


def _text(found: Bought) -> str:
    import yaml

    document = _document(found)
    told = "".join(f"# not supported: {line}\n" for line in found.passed_over)
    if not any(document["commitments"].values()):
        return _NOTHING + told
    return _HEAD + told + yaml.safe_dump(document, sort_keys=False)


def _document(found: Bought) -> dict[str, Any]:
    plans = [
        _stated(
            type=plan.type,
            commitment=plan.commitment,
            family=plan.family,
            region=plan.region,
            until=_moment(plan.until),
            note=plan.note,
        )
        for plan in found.savings_plans
    ]
    reserved = [
        _stated(
            instanceType=terms.instance_type,
            count=terms.count,
            region=terms.region,
            zone=terms.zone,
            until=_moment(terms.until),
            note=terms.note,
        )
        for terms in found.reserved_instances
    ]
    return {"commitments": _stated(savingsPlans=plans, reservedInstances=reserved)}


def _stated(**members: Any) -> dict[str, Any]:
    """Return the members that say something."""
    return {name: value for name, value in members.items() if value not in ("", [])}


def _moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}" if at is not None else ""
