"""CreateFleet as AWS answers it: overrides that have capacity, and why not those before them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final
from xml.etree import ElementTree as ET

from reconciler.adapters.simulated.market import NO_CAPACITY, CapacityMarket, Override, Shortage
from reconciler.model.json import JsonDict
from reconciler_embedded.account import EmbeddedAccount
from reconciler_embedded.purchases import EmbeddedReservations
from reconciler_embedded.wire import Request, Response, encode_query, error, nest, xml

_IDS: Final = re.compile(rb"<item>(i-[0-9a-f]+)</item>")
_INSTANCES: Final = "{*}fleetInstanceSet"
_IDS_OF_ROW: Final = "{*}instanceIds"
_EMPTY: Final = (
    b"<CreateFleetResponse><requestId>request-id</requestId>"
    b"<fleetId>fleet-00000000-0000-4000-8000-000000000000</fleetId>"
    b"<fleetInstanceSet></fleetInstanceSet></CreateFleetResponse>"
)
_RESERVATION_FULL: Final = "ReservationCapacityExceeded"
_NO_ADDRESSES: Final = "InsufficientFreeAddressesInSubnet"


class Fleets:
    """Answers CreateFleet, and caches the answers by client token."""

    def __init__(
        self, account: EmbeddedAccount, market: CapacityMarket, reservations: EmbeddedReservations
    ) -> None:
        self._account = account
        self._market = market
        self._reservations = reservations
        self.honours_tokens = True
        self._by_token: dict[str, tuple[bytes, Response]] = {}

    def create(self, request: Request, request_id: str) -> Response:
        """Return the answer; a known token gets its earlier answer."""
        parameters = nest(request.form)
        if parameters.get("DryRun") == "true":
            text = "Request would have succeeded, but DryRun flag is set."
            return error("ec2", 412, "DryRunOperation", text, request_id)
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
        answer = self._launch(request, parameters)
        if token and answer.status == 200:
            self._by_token[token] = (request.body, answer)
        return answer

    def _launch(self, request: Request, parameters: JsonDict) -> Response:
        """Launch the requested number of instances, from one pool after the other."""
        target = parameters["TargetCapacitySpecification"]
        capacity_type = target.get("DefaultTargetCapacityType", "on-demand")
        side = "SpotOptions" if capacity_type == "spot" else "OnDemandOptions"
        strategy = parameters.get(side, {}).get("AllocationStrategy", "lowest-price")
        missing, candidates = int(target["TotalTargetCapacity"]), self._overrides(parameters)
        answers: list[Response] = []
        shortages: list[Shortage] = []
        while missing > 0:
            chosen, refused = self._market.choose(candidates, capacity_type, strategy)
            shortages += refused
            if chosen is None:
                break
            count, shortage = self._free_capacity(chosen, missing, capacity_type)
            if count:
                answers.append(self._launch_override(request, parameters, chosen, count))
                self._market.take(chosen, capacity_type, count)
                missing -= count
            shortages += [shortage] if shortage is not None else []
            exhausted = {s.override for s in shortages}
            candidates = [o for o in candidates if o not in exhausted]
        answer = _merge_answers(answers)
        if answer.status != 200:
            return answer
        errors = [_error_row(parameters, s, capacity_type) for s in shortages]
        tail = f"<errorSet>{xml(errors)}</errorSet></CreateFleetResponse>".encode()
        return replace(answer, body=answer.body.replace(b"</CreateFleetResponse>", tail))

    def _free_capacity(
        self, chosen: Override, missing: int, capacity_type: str
    ) -> tuple[int, Shortage | None]:
        """Return how many instances an override has capacity for, and the shortage if too few."""
        stock = self._market.stock(chosen, capacity_type)
        count = missing if stock is None else min(missing, stock)
        if chosen.reservation:
            left = self._reservations.free_count(
                chosen.reservation, self._account.running_instances()
            )
            if left < count:
                message = f"The capacity reservation {chosen.reservation} is used up."
                return left, Shortage(chosen, _RESERVATION_FULL, message)
        free = self._account.free_addresses(chosen.subnet)
        if free < count:
            message = f"There are not enough free addresses in subnet '{chosen.subnet}'."
            return free, Shortage(chosen, _NO_ADDRESSES, message)
        if count < missing:
            message = f"We do not have sufficient {chosen.instance_type} capacity for all."
            return count, Shortage(chosen, NO_CAPACITY, message)
        return count, None

    def _overrides(self, parameters: JsonDict) -> list[Override]:
        rows = []
        for number, config in enumerate(parameters.get("LaunchTemplateConfigs", [])):
            template = config["LaunchTemplateSpecification"].get("LaunchTemplateName", "")
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
                        reservation=self._account.template_reservation(template),
                    )
                )
        return rows

    def _launch_override(
        self, request: Request, parameters: JsonDict, chosen: Override, count: int
    ) -> Response:
        """Launch exactly the chosen override in moto, this number of times."""
        config = parameters["LaunchTemplateConfigs"][chosen.config]
        row = {
            **config.get("Overrides", [{}])[chosen.position],
            "SubnetId": chosen.subnet,
            "AvailabilityZone": chosen.zone,
        }
        only = [{**config, "Overrides": [row]}]
        target = {**parameters["TargetCapacitySpecification"], "TotalTargetCapacity": count}
        if chosen.reservation:
            target["DefaultTargetCapacityType"] = "on-demand"  # moto supports no other kind
        body = encode_query(
            {
                **parameters,
                "LaunchTemplateConfigs": only,
                "TargetCapacitySpecification": target,
            }
        )
        answer = self._account.forward(replace(request, body=body))
        if answer.status == 200:
            name = config["LaunchTemplateSpecification"].get("LaunchTemplateName", "")
            ids = [found.decode() for found in _IDS.findall(answer.body)]
            account = self._account
            if chosen.reservation:
                self._reservations.use(chosen.reservation, ids)
            if name:
                account.record_launch(
                    ids, account.template_groups(name), account.template_profile(name)
                )
            else:
                account.record_launch(ids, [])
        return answer


def _merge_answers(answers: list[Response]) -> Response:
    """Return the answer of one fleet: as AWS does, an entry for each pool with all its instances.

    moto has an entry for each instance. The first failure is the complete answer.
    """
    if not answers:
        return Response(200, _EMPTY, {"Content-Type": "text/xml"})
    failed = next((answer for answer in answers if answer.status != 200), None)
    if failed is not None:
        return failed
    root = ET.fromstring(answers[0].body)  # noqa: S314 - moto in this process wrote it
    ET.register_namespace("", root.tag[1:].partition("}")[0])
    rows = root.find(_INSTANCES)
    assert rows is not None
    rows[:] = [_merge_entries(answer) for answer in answers]
    return replace(answers[0], body=ET.tostring(root, encoding="utf-8"))


def _merge_entries(answer: Response) -> ET.Element:
    """Return the entry of one pool, with the ids of all entries of moto."""
    found = ET.fromstring(answer.body).find(_INSTANCES)  # noqa: S314 - as above
    assert found is not None
    first, *others = found
    ids = first.find(_IDS_OF_ROW)
    assert ids is not None
    for row in others:
        more = row.find(_IDS_OF_ROW)
        ids.extend(more if more is not None else ())
    return first


def _error_row(parameters: JsonDict, shortage: Shortage, capacity_type: str) -> JsonDict:
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
