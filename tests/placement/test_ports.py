"""Nodes whose pods use a host port are found for all nodes at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.catalog.table import indices
from reconciler.model.kubernetes.pod import HostPort
from reconciler.placement.nodes.ports import PortIndex, UsedPorts
from tests.examples import examples
from tests.placement.builders import a_node, a_pod, a_pool, placed

_ports = st.lists(
    st.builds(
        HostPort,
        st.sampled_from(["0.0.0.0", "::", "10.0.0.1", "10.0.0.2", "not an address"]),
        st.sampled_from([80, 443]),
        st.sampled_from(["TCP", "UDP"]),
    ),
    max_size=3,
)


@settings(max_examples=examples(300))
@given(st.lists(_ports, max_size=6), _ports)
def test_the_nodes_in_conflict_are_those_found_one_by_one(
    used: list[list[HostPort]], ports: list[HostPort]
) -> None:
    found = PortIndex(used).conflicting(ports)
    assert set(indices(found)) == {i for i, u in enumerate(used) if UsedPorts(u).conflict(ports)}


def test_a_pod_that_has_ended_uses_no_port() -> None:
    for phase, node in (("Running", None), ("Succeeded", "n-0")):
        running = a_pod("first", node="n-0", ports=[80])
        running["status"] = {"phase": phase}
        found = placed([a_pool("default"), *a_node("n-0"), running, a_pod("second", ports=[80])])
        assert found.on_nodes.get("default/second") == node
