"""The requests of a launch, as values: what ``plan -o requests`` prints and ``apply`` sends."""

from __future__ import annotations

import base64
import subprocess
import sys
import tomllib
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import tomli_w
from msgspec.structs import replace as with_fields

from reconciler.adapters.aws.bootstrap.family import parse_parts
from reconciler.adapters.aws.launch.requests import launch_requests, request_rows, unique_requests
from reconciler.adapters.aws.nodeclass.amis import alias_paths
from reconciler.adapters.aws.nodeclass.images import types_of
from reconciler.catalog.catalog import bundled_catalog
from reconciler.model.errors import CloudError
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimSpec
from reconciler.model.karpenter.nodeclass import (
    AMI,
    BlockDevice,
    BlockDeviceMapping,
    ConnectionTracking,
    EC2NodeClass,
    EC2NodeClassStatus,
    EnclaveOptions,
    NetworkInterface,
    SecurityGroup,
    Subnet,
)
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.settings import ClusterKind, MinValuesPolicy
from reconciler.ports.cloud import Launch, LaunchOption
from tests.awsmodels import session
from tests.contracts.cloud import SETTINGS, a_class, a_launch, a_type
from tests.yamltext import load

CONTROL_PLANE = replace(
    SETTINGS,
    cluster_endpoint="https://web.example.com",
    cluster_ca_bundle="Y2E=",
    cluster_dns="10.0.0.10",
    cluster_cidr="10.0.0.0/16",
)


def arch(value: str) -> tuple[NodeSelectorRequirement, ...]:
    return (NodeSelectorRequirement("kubernetes.io/arch", Operator.IN, (value,)),)


def a_resolved_class(**spec: object) -> EC2NodeClass:
    status = EC2NodeClassStatus(
        subnets=(
            Subnet("subnet-a1", "us-east-1a"),
            Subnet("subnet-a2", "us-east-1a"),
            Subnet("subnet-b", "us-east-1b"),
        ),
        security_groups=(SecurityGroup("sg-1"), SecurityGroup("sg-2")),
        amis=(
            AMI("ami-new", requirements=arch("arm64")),
            AMI("ami-old", requirements=arch("arm64")),
            AMI("ami-intel", requirements=arch("amd64")),
        ),
        instance_profile="nodes",
    )
    return with_fields(a_class(**spec), status=status)


def template(launch_request: Launch, number: int = 0, **settings: object) -> dict[str, object]:
    requests = launch_requests(launch_request, a_type, replace(CONTROL_PLANE, **settings))
    data: dict[str, object] = requests.templates[number]["LaunchTemplateData"]
    return data


def fleet(launch_request: Launch, **settings: object) -> dict[str, object]:
    return launch_requests(launch_request, a_type, replace(CONTROL_PLANE, **settings)).fleet


def user_data(launch_request: Launch) -> str:
    return base64.b64decode(str(template(launch_request)["UserData"])).decode()


def test_each_image_has_a_template_and_the_first_compatible_image_is_used() -> None:
    configs = fleet(a_launch("i", a_resolved_class()))["LaunchTemplateConfigs"]
    assert [
        sorted({(o["ImageId"], o["InstanceType"]) for o in config["Overrides"]})
        for config in configs
    ] == [[("ami-new", "m7g.large")], [("ami-intel", "m7i.large")]]
    names = [c["LaunchTemplateSpecification"]["LaunchTemplateName"] for c in configs]
    assert len(set(names)) == 2


@pytest.mark.parametrize("enabled", [False, True])
def test_a_template_enables_enclaves_where_the_class_does(enabled: bool) -> None:
    node_class = a_resolved_class(enclave_options=EnclaveOptions(enabled=enabled))

    assert template(a_launch("i", node_class))["EnclaveOptions"] == {"Enabled": enabled}


def test_an_override_names_type_zone_subnet_image_and_price() -> None:
    first = fleet(a_launch("i", a_resolved_class()))["LaunchTemplateConfigs"][0]["Overrides"]
    assert first == [
        {
            "InstanceType": "m7g.large",
            "AvailabilityZone": zone,
            "SubnetId": subnet,
            "ImageId": "ami-new",
            "Priority": 0.08,
        }
        for zone, subnet in (("us-east-1a", "subnet-a1"), ("us-east-1b", "subnet-b"))
    ]


def test_the_subnet_with_most_free_addresses_is_used() -> None:
    launch_request = a_launch("i", a_resolved_class(), "m7g.large")
    free = {"subnet-a1": 10, "subnet-a2": 11}
    rows = fleet(launch_request, subnet_free_addresses=free)["LaunchTemplateConfigs"][0][
        "Overrides"
    ]
    assert [row["SubnetId"] for row in rows] == ["subnet-a2", "subnet-b"]


def test_the_name_of_a_template_depends_only_on_its_content() -> None:
    def names(launch_request: Launch) -> list[str]:
        requests = launch_requests(launch_request, a_type, CONTROL_PLANE)
        return [t["LaunchTemplateName"] for t in requests.templates]

    one = names(a_launch("i1", a_resolved_class()))
    assert names(a_launch("i2", a_resolved_class())) == one
    assert not set(names(a_launch("i1", a_resolved_class(detailed_monitoring=True)))) & set(one)


@pytest.mark.parametrize(
    ("capacity_type", "overlaid", "side", "strategy"),
    [
        ("spot", False, "SpotOptions", "price-capacity-optimized"),
        ("spot", True, "SpotOptions", "capacity-optimized-prioritized"),
        ("on-demand", False, "OnDemandOptions", "lowest-price"),
        ("on-demand", True, "OnDemandOptions", "prioritized"),
    ],
)
def test_the_allocation_strategy_depends_on_capacity_type_and_overlays(
    capacity_type: str, overlaid: bool, side: str, strategy: str
) -> None:
    option = LaunchOption("m7g.large", "us-east-1a", capacity_type, 0.1)
    launch_request = a_launch("i", a_resolved_class(), options=(option,), price_overlaid=overlaid)
    parameters = fleet(launch_request)
    assert parameters[side] == {"AllocationStrategy": strategy}
    assert len({"SpotOptions", "OnDemandOptions"} & parameters.keys()) == 1
    assert parameters["TargetCapacitySpecification"] == {
        "TotalTargetCapacity": 1,
        "DefaultTargetCapacityType": capacity_type,
    }


def test_tags_of_the_class_cannot_override_ours() -> None:
    launch_request = a_launch(
        "i", a_resolved_class(tags={"team": "a", "karpenter.sh/nodepool": "x"})
    )
    specs = fleet(launch_request)["TagSpecifications"]
    assert [s["ResourceType"] for s in specs] == ["fleet", "instance", "volume"]
    tags = {t["Key"]: t["Value"] for t in specs[1]["Tags"]}
    assert (tags["team"], tags["karpenter.sh/nodepool"]) == ("a", "general")


def test_a_long_intent_id_becomes_a_valid_client_token() -> None:
    token = fleet(a_launch("ü" * 80, a_resolved_class()))["ClientToken"]
    assert len(token) == 64
    assert token.isascii()
    assert fleet(a_launch("short", a_resolved_class()))["ClientToken"] == "short"


def test_no_more_than_sixty_types_are_offered() -> None:
    def any_type(_: str) -> object:
        return a_type("m7g.large")

    options = tuple(
        LaunchOption(f"m{n}.large", zone, "on-demand", float(n))
        for n in range(70)
        for zone in ("us-east-1a", "us-east-1b")
    )
    launch_request = a_launch("i", a_resolved_class(), options=options)
    rows = launch_requests(launch_request, any_type, SETTINGS).fleet["LaunchTemplateConfigs"][0][
        "Overrides"
    ]
    assert len(rows) == 120
    assert rows[-1]["InstanceType"] == "m59.large"


def test_missing_facts_of_a_launch_are_named() -> None:
    no_image = with_fields(
        a_resolved_class(), status=with_fields(a_resolved_class().status, amis=())
    )
    with pytest.raises(
        CloudError, match=r"no image of EC2NodeClass default is compatible with m7g.large"
    ):
        launch_requests(a_launch("i", no_image), a_type, SETTINGS)
    elsewhere = LaunchOption("m7g.large", "us-east-1f", "on-demand", 0.1)
    with pytest.raises(CloudError, match="no subnet in us-east-1f"):
        launch_requests(a_launch("i", a_resolved_class(), options=(elsewhere,)), a_type, SETTINGS)


def test_unsatisfied_min_values_are_rejected_unless_best_effort() -> None:
    asked = NodeSelectorRequirement("kubernetes.io/arch", Operator.EXISTS, min_values=2)
    claim = NodeClaim(Metadata(name="c"), NodeClaimSpec(requirements=(asked,)))
    wide = a_launch("i", a_resolved_class(), node_claim=claim)
    narrow = a_launch("i", a_resolved_class(), "m7g.large", node_claim=claim)
    assert launch_requests(wide, a_type, SETTINGS).fleet
    with pytest.raises(
        CloudError, match=r"only 1 values of kubernetes.io/arch remain .* minValues is 2"
    ):
        launch_requests(narrow, a_type, SETTINGS)
    assert launch_requests(
        narrow, a_type, replace(SETTINGS, min_values_policy=MinValuesPolicy.BEST_EFFORT)
    )


def test_al2023_on_a_real_cluster_needs_its_service_cidr() -> None:
    real = replace(SETTINGS, cluster=ClusterKind.KUBECONFIG)
    with pytest.raises(CloudError, match="set clusterCIDR"):
        launch_requests(a_launch("i", a_resolved_class()), a_type, real)
    other = a_resolved_class(ami_family="Bottlerocket")
    assert launch_requests(a_launch("i", other), a_type, real).fleet


@pytest.mark.parametrize(
    ("kind", "interruptible", "market", "target"),
    [
        ("default", False, None, "on-demand"),
        ("default", True, "interruptible-capacity-reservation", "reserved-capacity"),
        ("capacity-block", False, "capacity-block", "capacity-block"),
    ],
)
def test_a_reservation_has_a_separate_template(
    kind: str, interruptible: bool, market: str | None, target: str
) -> None:
    options = tuple(
        LaunchOption("m7g.large", f"us-east-1{z}", "reserved", 0.0, f"cr-{z}", kind, interruptible)
        for z in "ab"
    )
    requests = launch_requests(
        a_launch("i", a_resolved_class(), options=options), a_type, CONTROL_PLANE
    )
    data = [t["LaunchTemplateData"] for t in requests.templates]
    assert [d["CapacityReservationSpecification"] for d in data] == [
        {
            "CapacityReservationPreference": "capacity-reservations-only",
            "CapacityReservationTarget": {"CapacityReservationId": name},
        }
        for name in ("cr-a", "cr-b")
    ]
    markets = [d.get("InstanceMarketOptions", {}).get("MarketType") for d in data]
    assert markets == [market] * 2
    target_capacity = requests.fleet["TargetCapacitySpecification"]
    assert target_capacity["DefaultTargetCapacityType"] == target
    assert ("ReservedCapacityOptions" in requests.fleet) is interruptible
    assert ("OnDemandOptions" in requests.fleet) is (target == "on-demand")


def test_a_template_is_created_once_before_the_first_fleet_that_uses_it() -> None:
    requested_launches = [a_launch(f"i{n}", a_resolved_class()) for n in range(2)]
    rows = unique_requests(
        row for launch in requested_launches for row in request_rows(launch, a_type, CONTROL_PLANE)
    )
    assert [(row["operation"], row["nodeClaim"]) for row in rows] == [
        ("CreateLaunchTemplate", "general-i0"),
        ("CreateLaunchTemplate", "general-i0"),
        ("CreateFleet", "general-i0"),
        ("CreateFleet", "general-i1"),
    ]


FAMILIES = ("AL2", "AL2023", "Bottlerocket", "Windows2022", "Custom")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_request_is_valid_for_botocore(family: str) -> None:
    from botocore.validate import ParamValidator

    node_class = a_resolved_class(
        ami_family=family,
        instance_store_policy="RAID0",
        associate_public_ip_address=True,
        ip_prefix_count=2,
        connection_tracking=ConnectionTracking(udp_timeout=30),
        context="context",
        block_device_mappings=(
            BlockDeviceMapping("/dev/xvda", ebs=BlockDevice(volume_size="1Ti", iops=3000)),
        ),
        network_interfaces=(NetworkInterface(), NetworkInterface(0, 1, "efa-only")),
    )
    model = session().get_service_model("ec2")
    rows = request_rows(a_launch("i", node_class), a_type, CONTROL_PLANE)
    assert {row["operation"] for row in rows} == {"CreateLaunchTemplate", "CreateFleet"}
    for row in rows:
        shape = model.operation_model(row["operation"]).input_shape
        report = ParamValidator().validate(row["parameters"], shape)
        assert not report.has_errors(), report.generate_report()


def test_volumes_are_whole_gibibytes_rounded_up() -> None:
    mapping = BlockDeviceMapping("/dev/xvda", ebs=BlockDevice(volume_size="100G"))
    data = template(a_launch("i", a_resolved_class(block_device_mappings=(mapping,))))
    assert data["BlockDeviceMappings"] == [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 94}}]


def test_a_node_config_contains_all_kubelet_settings() -> None:
    claim = NodeClaim(
        Metadata(name="c", labels={"team": "a", "kubernetes.io/os": "linux"}),
        NodeClaimSpec(
            requirements=(NodeSelectorRequirement("example.com/disk", Operator.IN, ("fast",)),),
            taints=(Taint("gpu", "NoSchedule", "yes"),),
            startup_taints=(Taint("init", "NoExecute"),),
        ),
    )
    node_class = a_resolved_class(
        user_data="#!/bin/sh\necho hello\n", kubelet={"podsPerCore": 4, "clusterDNS": ["10.9.9.9"]}
    )
    shell, config = parse_parts(user_data(a_launch("i", node_class, "m7g.large", node_claim=claim)))
    assert shell.content_type == 'text/x-shellscript; charset="us-ascii"'
    assert "echo hello" in shell.body
    spec = load(config.body)["spec"]
    assert spec["cluster"] == {
        "name": "web",
        "apiServerEndpoint": "https://web.example.com",
        "certificateAuthority": "Y2E=",
        "cidr": "10.0.0.0/16",
    }
    assert spec["kubelet"]["config"] == {
        "podsPerCore": 4,
        "maxPods": 29,
        "clusterDNS": ["10.9.9.9"],
        "registerWithTaints": [
            {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
            {"key": "init", "effect": "NoExecute"},
            {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
        ],
    }
    assert spec["kubelet"]["flags"] == [
        (
            '--node-labels="example.com/disk=fast,karpenter.sh/capacity-type=on-demand,'
            'karpenter.sh/do-not-sync-taints=true,team=a"'
        )
    ]


def test_node_configs_and_parts_of_the_user_come_first() -> None:
    own = "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\n"
    first, _ = parse_parts(user_data(a_launch("i", a_resolved_class(user_data=own), "m7g.large")))
    assert first.content_type == "application/node.eks.aws"
    mime = (
        'Content-Type: multipart/mixed; boundary="X"\nMIME-Version: 1.0\n\n'
        "--X\nContent-Type: text/cloud-config\n\na: 1\n--X\nContent-Type: text/x-shellscript\n\n"
        "echo\n--X--\n"
    )
    kinds = [
        part.content_type.partition(";")[0]
        for part in parse_parts(
            user_data(a_launch("i", a_resolved_class(user_data=mime), "m7g.large"))
        )
    ]
    assert kinds == ["text/cloud-config", "text/x-shellscript", "application/node.eks.aws"]


def test_custom_user_data_is_left_as_it_is() -> None:
    node_class = a_resolved_class(ami_family="Custom", user_data="  as it is\r\n")
    assert user_data(a_launch("i", node_class, "m7g.large")) == "  as it is\r\n"
    empty = a_resolved_class(ami_family="Custom")
    assert "UserData" not in template(a_launch("i", empty, "m7g.large"))


PART = "--B\nContent-Type: text/x-shellscript\n\necho\n"
ARCHIVES = {
    "lines after the end": (PART + "--B-- \t\nThe end.\n--B\nX: y\n\nz\n", ["echo"]),
    "no line ending after the last delimiter": (PART + "--B--", ["echo"]),
    "a last delimiter with a word behind it": (PART + "--B--x", ["echo"]),
    "text before the first part": ("To whom it may concern\n" + PART + "--B--\n", ["echo"]),
    "a delimiter's beginning within a part": (PART + "--Bx\n--B--\n", ["echo\n--Bx"]),
    "a part without a header": ("--B\n\necho\n--B--\n", ["echo"]),
    "an empty part": ("--B\nContent-Type: a/b\n\n--B--\n", [""]),
    "line endings of Windows": ((PART + "--B--\n").replace("\n", "\r\n"), ["echo"]),
    "quoted-printable": (
        "--B\nContent-Transfer-Encoding: quoted-printable\n\na=3Db=\nc\n--B--\n",
        ["a=bc"],
    ),
    "a multi-part within a part": (
        '--B\nContent-Type: multipart/mixed; boundary="C"\n\n--C\n\nx\n--C--\n--B--\n',
        ["--C\n\nx\n--C--"],
    ),
}


@pytest.mark.parametrize(("body", "expected"), ARCHIVES.values(), ids=ARCHIVES)
def test_multi_part_user_data_is_split_as_in_go(body: str, expected: list[str]) -> None:
    """The expectations are the results of ``mime/multipart`` of Go 1.26 for these texts."""
    parts = parse_parts(f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="B"\n\n{body}')
    assert [part.body for part in parts] == expected


@pytest.mark.parametrize("body", [PART, PART + "--B--x\n", "no part at all\n"])
def test_multi_part_user_data_without_an_end_is_refused(body: str) -> None:
    with pytest.raises(CloudError, match="cannot be read"):
        parse_parts(f'Content-Type: multipart/mixed; boundary="B"\n\n{body}')


def test_bottlerocket_keeps_the_users_own_settings_of_kubernetes() -> None:
    text = """
        [settings.kubernetes]
        "Registry-QPS" = 20
        max-pods = 4
        cluster-name = "mine"
        unknown-to-karpenter = 1
        [settings.kubernetes.static-pods.proxy]
        enabled = true
        [settings.kubernetes.node-labels]
        team = "a"
        [settings.motd]
        x = "y"
    """
    node_class = a_resolved_class(ami_family="Bottlerocket", user_data=text)
    settings = tomllib.loads(user_data(a_launch("i", node_class, "m7g.large")))["settings"]
    kubernetes = settings["kubernetes"]
    assert (kubernetes["registry-qps"], settings["motd"]) == (20, {"x": "y"})
    assert kubernetes["static-pods"] == {"proxy": {"enabled": True}}
    assert (kubernetes["cluster-name"], kubernetes["max-pods"]) == ("web", 29)
    assert kubernetes["node-labels"]["team"] == "a"
    assert "unknown-to-karpenter" not in kubernetes


@pytest.mark.parametrize("text", ["settings = 1", "[settings]\nkubernetes = []"])
def test_bottlerocket_settings_that_are_not_tables_are_rejected(text: str) -> None:
    with pytest.raises(CloudError, match="where a table is required"):
        user_data(
            a_launch("i", a_resolved_class(ami_family="Bottlerocket", user_data=text), "m7g.large")
        )


def test_invalid_toml_in_bottlerocket_settings_is_rejected() -> None:
    node_class = a_resolved_class(ami_family="Bottlerocket", user_data="[settings")
    with pytest.raises(CloudError, match="must be TOML"):
        template(a_launch("i", node_class, "m7g.large"))


def test_bottlerocket_settings_are_read_back_unchanged() -> None:
    own = {
        "a key.with dots": 'quotes " and \\ and \n',
        "empty": {},
        "n": [1, 2.5, True, ["x", []]],
        "tables": [{"a": 1}, {"b": {"c": "d"}}],
        "inner": {"x-y": {"z": "1"}},
        "at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    texts = [
        tomli_w.dumps({"top": "ü", "settings": dict(items)})
        for items in (own.items(), reversed(own.items()))
    ]
    classes = [a_resolved_class(ami_family="Bottlerocket", user_data=text) for text in texts]
    written, again = (user_data(a_launch("i", c, "m7g.large")) for c in classes)

    assert written == again
    read = tomllib.loads(written)
    assert (read["top"], read["settings"].pop("kubernetes")["max-pods"]) == ("ü", 29)
    assert read["settings"] == own


def test_aliases_resolve_to_the_published_parameters() -> None:
    base = "/aws/service/eks/optimized-ami/1.33/amazon-linux-2023"
    paths = [row.path for row in alias_paths("al2023@latest", "1.33")]
    assert paths[0] == f"{base}/x86_64/standard/recommended/image_id"
    assert len(paths) == 5
    pinned = alias_paths("al2023@v20260101", "1.33")[3].path
    assert pinned == (
        f"{base}/arm64/standard/amazon-eks-node-al2023-arm64-standard-1.33-v20260101/image_id"
    )
    rockets = [row.path for row in alias_paths("bottlerocket@v1.45.0", "1.33")]
    assert rockets[0] == "/aws/service/bottlerocket/aws-k8s-1.33/x86_64/1.45.0/image_id"
    assert alias_paths("plan9@latest", "1.33") == []


def test_requests_are_built_without_boto3() -> None:
    code = (
        "import sys, reconciler.adapters.aws.launch.requests, reconciler.adapters.aws.compute;"
        "print([m for m in ('boto3', 'botocore', 'moto') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_class_sets_the_maximum_number_of_pods() -> None:
    """The launch must equal the requests of the plan, with the pod density of the class."""
    find = types_of(bundled_catalog(), CONTROL_PLANE)
    for kubelet, count in (({}, 29), ({"maxPods": 17}, 17), ({"podsPerCore": 4}, 8)):
        node_class = a_resolved_class(kubelet=kubelet)
        kind = find(node_class)("m7g.large")
        assert kind is not None
        assert kind.capacity["pods"] == count * 1000
        launch_request = a_launch("i", node_class, "m7g.large")
        data = launch_requests(launch_request, find(node_class), CONTROL_PLANE).templates[0]
        config = base64.b64decode(data["LaunchTemplateData"]["UserData"]).decode()
        assert f"maxPods: {count}" in config
