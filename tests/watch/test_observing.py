"""What Karpenter did is read from successive observations of its NodeClaims."""

from __future__ import annotations

from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.prediction import KarpenterActionKind, Prediction
from reconciler.watch.observing import KarpenterActions, ObservedAction
from tests.watch.claims import PRICES, START, after, claim, command, node

Step = tuple[float, list[NodeClaim]]
BEFORE = Prediction(START, (node(),), (command("Empty", "node-a"),), 7)


def observed(*steps: Step) -> list[ObservedAction]:
    """Return the actions in observations; the prediction in force is numbered by the step."""
    actions, found = KarpenterActions(), []
    for number, (at, claims) in enumerate(steps):
        prediction = Prediction(after(at), sequence=number)
        found += actions.observe(claims, after(at), prediction, PRICES)
    return found


def test_what_existed_at_the_start_is_no_action() -> None:
    there = [claim("a"), claim("b", disrupted=("Drifted", -5))]
    assert observed((0, there), (10, there), (20, there)) == []


def test_a_batch_of_launches_counts_once_it_has_been_quiet() -> None:
    one, two = claim("a", at=1), claim("b", "m5.xlarge", at=2)
    steps: list[Step] = [(0, []), (1, [one]), (2, [one, two]), (6, [one, two])]
    assert observed(*steps) == []
    found = observed(*steps, (7.5, [one, two]))
    assert [[n.name for n in f.action.launches] for f in found] == [["node-a", "node-b"]]
    # the prediction in force before a part of the batch was seen
    assert [f.prediction.sequence for f in found] == [1]


def test_launches_of_two_passes_are_two_batches() -> None:
    one, two = claim("a", at=1), claim("b", at=4)
    found = observed((0, []), (1, [one]), (4, [one, two]), (10, [one, two]))
    assert [[n.name for n in f.action.launches] for f in found] == [["node-a"], ["node-b"]]
    assert [f.prediction.sequence for f in found] == [1, 2]


def test_a_batch_waits_for_instance_types_but_not_forever() -> None:
    early, late = claim("a", "", at=1), claim("a", at=1)
    assert observed((0, []), (1, [early]), (60, [early])) == []
    known = observed((0, []), (1, [early]), (60, [late]))
    assert [n.price for n in known[0].action.launches] == [0.096]
    unknown = observed((0, []), (1, [early]), (60, [early]), (122, [early]))
    assert [n.instance_type for n in unknown[0].action.launches] == [""]


def test_marks_of_one_reason_that_follow_each_other_are_one_command() -> None:
    marks = [
        claim("a", disrupted=("Underutilized", 10)),
        claim("b", disrupted=("Underutilized", 11)),
        claim("c", disrupted=("Underutilized", 13)),
        claim("d", disrupted=("Empty", 11)),
    ]
    start = [claim(name) for name in "abcd"]
    found = observed((0, start), (13, marks), (20, marks))
    named = [
        (f.action.command.reason, [n.name for n in f.action.command.nodes])
        for f in found
        if f.action.command is not None
    ]
    assert named == [
        ("Underutilized", ["node-a", "node-b"]),
        ("Empty", ["node-d"]),
        ("Underutilized", ["node-c"]),
    ]


def test_a_nodeclaim_right_after_a_command_replaces_its_nodes() -> None:
    start, marked = [claim("a")], [claim("a", disrupted=("Underutilized", 10))]
    fresh = [*marked, claim("r", "c5.large", at=10), claim("later", at=12)]
    found = observed((0, start), (10, fresh), (17, fresh))
    first, second = (f.action for f in found)
    assert first.command is not None
    # consolidation launches at most one replacement; the other one is for pending pods
    assert [n.instance_type for n in first.command.replacements] == ["c5.large"]
    assert [n.name for n in second.launches] == ["node-later"]


def test_a_replacement_belongs_to_the_last_command_that_had_started() -> None:
    start = [claim("a"), claim("b")]
    marked = [claim("a", disrupted=("Drifted", 10)), claim("b", disrupted=("Drifted", 12))]
    fresh = [*marked, claim("for-a", at=11), claim("for-b", at=12), claim("also-b", at=13)]
    found = observed((0, start), (13, fresh), (20, fresh))
    commands = [f.action.command for f in found if f.action.command is not None]
    assert [[n.name for n in c.replacements] for c in commands] == [
        ["node-for-a"],
        ["node-for-b", "node-also-b"],
    ]


def test_empty_nodes_have_no_replacement() -> None:
    start, marked = [claim("a")], [claim("a", disrupted=("Empty", 10))]
    fresh = [*marked, claim("r", at=10)]
    found = observed((0, start), (10, fresh), (17, fresh))
    assert sorted(f.action.kind for f in found) == [
        KarpenterActionKind.COMMAND,
        KarpenterActionKind.LAUNCH,
    ]


def test_a_node_is_disrupted_again_after_a_command_was_rolled_back() -> None:
    marked = [claim("a", disrupted=("Drifted", 10))]
    again = [claim("a", disrupted=("Drifted", 60))]
    free = [claim("a")]
    found = observed((0, free), (10, marked), (20, marked), (30, free), (60, again), (70, again))
    assert [f.action.at for f in found] == [after(10), after(60)]


def test_the_price_of_an_unknown_offering_is_unknown() -> None:
    fresh = [claim("a", "m9.large", at=1)]
    found = observed((0, []), (1, fresh), (10, fresh))
    assert [n.price for n in found[0].action.launches] == [None]
