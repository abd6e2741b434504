"""Which pods are decided together because their specs are equivalent."""

from __future__ import annotations

from typing import Any

from reconciler.model.json import decode
from reconciler.model.kubernetes.pod import Pod
from reconciler.placement.pods.shape import spec_key


def a_pod(container: str, cpu: str = "500m", **status: Any) -> Pod:
    requests = {"requests": {"cpu": cpu}}
    return decode(
        {
            "metadata": {"name": "p", "namespace": "shop"},
            "spec": {"containers": [{"name": container, "resources": requests}]},
            "status": status,
        },
        Pod,
    )


def test_pods_that_differ_in_the_names_of_containers_are_equivalent() -> None:
    assert spec_key(a_pod("main")) == spec_key(a_pod("worker-8f2"))


def test_pods_that_differ_in_requests_are_not_equivalent() -> None:
    assert spec_key(a_pod("main")) != spec_key(a_pod("main", "501m"))


def test_a_resized_container_is_found_by_its_name() -> None:
    resized = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}
    assert spec_key(a_pod("main", **resized)) != spec_key(a_pod("other", **resized))
