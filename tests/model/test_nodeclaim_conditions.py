"""What is looked up of a NodeClaim's conditions is what a search of them finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimStatus
from reconciler.model.kubernetes.metadata import Condition, Metadata, condition, is_true

KINDS = ("Launched", "Registered", "Initialized")
conditions = st.lists(
    st.builds(
        Condition,
        st.sampled_from(KINDS),
        st.sampled_from(("True", "False", "Unknown")),
        st.sampled_from(("", "first", "second")),
    ),
    max_size=5,
).map(tuple)


@given(conditions)
def test_the_first_condition_of_a_type_counts(found: tuple[Condition, ...]) -> None:
    claim = NodeClaim(Metadata(name="a"), status=NodeClaimStatus(conditions=found))
    for kind in KINDS:
        assert claim.condition(kind) == condition(found, kind)
        assert claim.is_true(kind) == is_true(found, kind)
