"""CreateFleet as AWS answers it: one override that has capacity, and why not those before it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from reconciler.adapters.simulated.account import Account
from reconciler.adapters.simulated.market import Market, Override, Shortage
from reconciler.adapters.simulated.wire import Answer, Request, encoded, error, nested, xml

_IDS: Final = re.compile(rb"<item>(i-[0-9a-f]+)</item>")
_EMPTY: Final = (
    b"<CreateFleetResponse><requestId>request-id</requestId>"
    b"<fleetId>fleet-00000000-0000-4000-8000-000000000000</fleetId>"
    b"<fleetInstanceSet></fleetInstanceSet></CreateFleetResponse>"
)
_NO_ADDRESSES: Final = "InsufficientFreeAddressesInSubnet"


class Fleets:
    """Answers CreateFleet, and remembers the answers by their client token."""

    def __init__(self, account: Account, market: Market) -> None:
        self._account = account
        self._market = market
        self.honours_tokens = True
        self._by_token: dict[str, tuple[bytes, Answer]] = {}

    def create(self, request: Request, request_id: str) -> Answer:
        """Return the answer; a token that is known gets the answer it got before."""
        parameters = nested(request.form)
        token = parameters.get("ClientToken", "")
        if self.honours_tokens and token in self._by_token:
            body, answer = self._by_token[token]
            if body == request.body:
                return answer
            return error(
                "ec2",
                400,
                "IdempotentParameterMismatch",
                f"The client token {token} was used before with other parameters.",
                request_id,
            )
        for config in parameters.get("LaunchTemplateConfigs", []):
            name = config["LaunchTemplateSpecification"].get("LaunchTemplateName", "")
            if name and not self._account.has_template(name):
                return error(
                    "ec2",
                    400,
                    "InvalidLaunchTemplateName.NotFoundException",
                    f"The specified launch template, with template name {name}, does not exist.",
                    request_id,
                )
        answer = self._launched(request, parameters)
        if token and answer.status == 200:
            self._by_token[token] = (request.body, answer)
        return answer

    def _launched(self, request: Request, parameters: dict[str, Any]) -> Answer:
        target = parameters["TargetCapacitySpecification"]
        capacity_type = target.get("DefaultTargetCapacityType", "on-demand")
        chosen, shortages = self._chosen(parameters, capacity_type)
        if chosen is None:
            answer = Answer(200, _EMPTY, {"Content-Type": "text/xml"})
        else:
            answer = self._forwarded(request, parameters, chosen)
        errors = [_error_row(parameters, s, capacity_type) for s in shortages]
        tail = f"<errorSet>{xml(errors)}</errorSet></CreateFleetResponse>".encode()
        return replace(answer, body=answer.body.replace(b"</CreateFleetResponse>", tail))

    def _chosen(
        self, parameters: dict[str, Any], capacity_type: str
    ) -> tuple[Override | None, list[Shortage]]:
        side = "SpotOptions" if capacity_type == "spot" else "OnDemandOptions"
        strategy = parameters.get(side, {}).get("AllocationStrategy", "lowest-price")
        left = self._overrides(parameters)
        shortages: list[Shortage] = []
        while True:
            chosen, refused = self._market.choose(left, capacity_type, strategy)
            shortages += refused
            if chosen is None or self._account.free_addresses(chosen.subnet) > 0:
                return chosen, shortages
            message = f"There are not enough free addresses in subnet '{chosen.subnet}'."
            shortages.append(Shortage(chosen, _NO_ADDRESSES, message))
            done = {s.override for s in shortages}
            left = [o for o in left if o not in done]

    def _overrides(self, parameters: dict[str, Any]) -> list[Override]:
        rows = []
        for number, config in enumerate(parameters.get("LaunchTemplateConfigs", [])):
            for position, row in enumerate(config.get("Overrides", [{}])):
                zone = row.get("AvailabilityZone", "")
                subnet = row.get("SubnetId") or self._account.default_subnet(
                    zone or f"{self._account.region}a"
                )
                priority = row.get("Priority")
                rows.append(
                    Override(
                        config=number,
                        position=position,
                        instance_type=row.get("InstanceType", ""),
                        zone=zone or self._account.zone_of(subnet),
                        subnet=subnet,
                        image=row.get("ImageId", ""),
                        priority=None if priority is None else float(priority),
                    )
                )
        return rows

    def _forwarded(self, request: Request, parameters: dict[str, Any], chosen: Override) -> Answer:
        """Let moto launch exactly the chosen override."""
        config = parameters["LaunchTemplateConfigs"][chosen.config]
        row = {
            **config.get("Overrides", [{}])[chosen.position],
            "SubnetId": chosen.subnet,
            "AvailabilityZone": chosen.zone,
        }
        only = [{**config, "Overrides": [row]}]
        body = encoded({**parameters, "LaunchTemplateConfigs": only})
        answer = self._account.forward(replace(request, body=body))
        if answer.status == 200:
            name = config["LaunchTemplateSpecification"].get("LaunchTemplateName", "")
            ids = [found.decode() for found in _IDS.findall(answer.body)]
            self._account.begin(ids, self._account.template_groups(name) if name else [])
        return answer


def _error_row(
    parameters: dict[str, Any], shortage: Shortage, capacity_type: str
) -> dict[str, Any]:
    chosen = shortage.override
    config = parameters["LaunchTemplateConfigs"][chosen.config]
    spec = config["LaunchTemplateSpecification"]
    return {
        "launchTemplateAndOverrides": {
            "launchTemplateSpecification": {
                "launchTemplateName": spec.get("LaunchTemplateName", ""),
                "version": spec.get("Version", ""),
            },
            "overrides": {
                "instanceType": chosen.instance_type,
                "subnetId": chosen.subnet,
                "availabilityZone": chosen.zone,
            },
        },
        "lifecycle": capacity_type,
        "errorCode": shortage.code,
        "errorMessage": shortage.message,
    }
