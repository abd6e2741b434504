"""Any writes in any order, with reopening in between, give the contents of a dict."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from reconciler.adapters.database.state import DatabaseState
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.ports.journal import IntentOutcome, JournalEntry, Outcome
from reconciler.ports.state import CommandPhase, RunningCommand, Unavailable
from tests.contracts.records import NOW, a_claim, a_command, an_intent, an_unavailable
from tests.examples import examples
from tests.postgres import a_database
from tests.states import open_state

NAMES = st.sampled_from(["a", "b", "c", "d"])
SECONDS = st.integers(0, 5).map(lambda n: NOW + timedelta(seconds=n))
TEXTS = st.text(max_size=20)


class Machine(RuleBasedStateMachine):
    """The recorded state beside a model of it in dicts."""

    location: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.url = a_database() if self.location == "server" else self.folder.name
        self.state: DatabaseState = open_state(self.url, "web")
        self.claims: dict[str, NodeClaim] = {}
        self.commands: dict[str, RunningCommand] = {}
        self.offerings: dict[str, Unavailable] = {}
        self.journal: dict[str, JournalEntry] = {}
        self.shelf: dict[str, bytes] = {}
        self.serial = 0

    begun = Bundle("begun")

    @rule(names=st.lists(NAMES, max_size=3), node=st.sampled_from(["", "n"]), label=TEXTS)
    def put_claims(self, names: list[str], node: str, label: str) -> None:
        claims = [a_claim(name, node=node, label=label) for name in names]
        self.state.store.put_node_claims(claims)
        self.claims |= {c.name: c for c in claims}

    @rule(name=NAMES, reason=TEXTS)
    def forget(self, name: str, reason: str) -> None:
        self.state.store.forget_node_claims({name: reason}, NOW)
        self.claims.pop(name, None)

    @rule(name=NAMES, phase=st.sampled_from(CommandPhase), at=SECONDS)
    def put_command(self, name: str, phase: CommandPhase, at: Any) -> None:
        command = a_command(name, phase, started_at=at)
        self.state.store.put_command(command)
        self.commands[name] = command

    @rule(zone=NAMES, until=SECONDS, refusals=st.integers(1, 9))
    def put_unavailable(self, zone: str, until: Any, refusals: int) -> None:
        offering = an_unavailable(zone, until=until, refusals=refusals)
        self.state.store.put_unavailable([offering])
        known = self.offerings.get(zone)
        if known is None or known.until <= until or known.refusals < refusals:
            self.offerings[zone] = offering

    @rule(target=begun, names=st.lists(NAMES, min_size=1, max_size=3), reason=TEXTS)
    def begin(self, names: list[str], reason: str) -> Any:
        intents = [an_intent(name, reason=reason) for name in names]
        self.state.journal.begin(intents)
        for intent in intents:
            if intent.id not in self.journal:
                sequence = len(self.journal) + 1
                self.journal[intent.id] = JournalEntry(sequence=sequence, intent=intent)
        return multiple(*names)

    @rule(name=begun, outcome=st.sampled_from(Outcome), message=TEXTS)
    def finish(self, name: str, outcome: Outcome, message: str) -> None:
        self.state.journal.finish([IntentOutcome(name, outcome, message)], NOW)
        entry = self.journal[name]
        self.journal[name] = JournalEntry(
            entry.sequence, entry.intent, outcome, NOW, message.replace("\0", "\ufffd")
        )

    @rule(name=NAMES, content=st.binary(max_size=20))
    def shelve(self, name: str, content: bytes) -> None:
        self.state.shelf.write(name, content)
        self.shelf[name] = content

    @rule()
    def reopen(self) -> None:
        self.state.close()
        self.state = open_state(self.url, "web")

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        store, journal = self.state.store, self.state.journal
        assert list(store.node_claims()) == [self.claims[n] for n in sorted(self.claims)]
        over = (CommandPhase.DONE, CommandPhase.ROLLED_BACK)
        running = [c for c in self.commands.values() if c.phase not in over]
        assert list(store.commands()) == sorted(running, key=lambda c: (c.started_at, c.id))
        later = NOW + timedelta(seconds=2)
        refused = [o for z, o in sorted(self.offerings.items()) if o.until > later]
        assert list(store.unavailable(later)) == refused
        entries = sorted(self.journal.values(), key=lambda e: e.sequence)
        assert list(journal.in_doubt()) == [e for e in entries if e.outcome is None]
        assert list(journal.entries()) == entries[::-1]
        assert {n: self.state.shelf.read(n) for n in self.shelf} == self.shelf

    @invariant()
    def the_serial_never_falls(self) -> None:
        serial = self.state.store.serial()
        assert serial >= self.serial
        self.serial = serial

    def teardown(self) -> None:
        self.state.close()
        self.folder.cleanup()


class ServerMachine(Machine):
    location = "server"


def run(machine: type[Machine], number: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=number,
            stateful_step_count=25,
            derandomize=True,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


@pytest.mark.property
def test_a_state_file_behaves_like_a_dict() -> None:
    run(Machine, examples(60))


@pytest.mark.exhaustive
@pytest.mark.property
def test_a_state_server_behaves_like_a_dict() -> None:
    run(ServerMachine, examples(25))
