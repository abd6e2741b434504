"""The peak requests of a pod: init containers, sidecars, pod level, overhead, limits alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.placement.builders import Object, a_pod, a_pool, a_type, placed

TYPES = (a_type("ten", 10, 1.0), a_type("eleven", 11, 1.1), a_type("twelve", 12, 1.2))


def _container(cpu: str, *, sidecar: bool = False, limits: bool = False) -> Object:
    amounts = {"cpu": cpu, "memory": "1Gi"}
    made: Object = {"name": "c", "resources": {"limits" if limits else "requests": amounts}}
    return {**made, "restartPolicy": "Always"} if sidecar else made


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        # of ten cores, pods can use 9.9
        ({"containers": [_container("6"), _container("4.5")]}, "eleven"),
        ({"initContainers": [_container("10")]}, "eleven"),
        ({"initContainers": [_container("10"), _container("4", sidecar=True)]}, "eleven"),
        ({"initContainers": [_container("4.9", sidecar=True), _container("5")]}, "eleven"),
        ({"initContainers": [_container("4.9", sidecar=True), _container("6")]}, "eleven"),
        ({"initContainers": [_container("4.9", sidecar=True), _container("7")]}, "twelve"),
        ({"initContainers": [_container("7"), _container("3", sidecar=True)]}, "ten"),
        ({"overhead": {"cpu": "4"}}, "eleven"),
        ({"resources": {"requests": {"cpu": "11"}}}, "twelve"),
        ({"resources": {"requests": {"cpu": "1"}}, "containers": [_container("11")]}, "ten"),
        ({"containers": [_container("10", limits=True)]}, "eleven"),
    ],
)
def test_the_smallest_type_that_fits_the_peak_comes_first(spec: dict[str, Any], kind: str) -> None:
    pod = a_pod("app-0")
    pod["spec"] |= {"containers": [_container("6")], **spec}

    (claim,) = placed([a_pool(), pod], types=TYPES).claims

    assert claim.types[0].name == kind
