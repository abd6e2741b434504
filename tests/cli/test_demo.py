"""The demo runs once, isolated; its records must agree with its output."""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reconciler.adapters.database.history import GoneClaim
from reconciler.adapters.database.state import DatabaseState
from reconciler.cli.main import main
from reconciler.installation import install_remedy
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.ports.journal import JournalEntry, Outcome, Verb
from reconciler.ports.state import CommandPhase, RunningCommand
from tests.states import open_state

pytestmark = pytest.mark.exhaustive  # a default run plays the demo as the tutorial does

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180
CPU_S_MAX = 25.0
"""Seconds of work that the demo may take; measured: 6. Wall time is the machine's own affair."""
NIGHT = datetime(2026, 3, 2, 22, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Played:
    """A completed demo."""

    stage: Path
    out: str
    cpu_s: float
    elsewhere: tuple[str, ...]


def environment(home: Path) -> dict[str, str]:
    """Return an environment that would mislead a process that uses it."""
    nowhere = "http://192.0.2.1:9"
    folders = {"HOME": home / "home", "TMPDIR": home / "tmp", "XDG_CACHE_HOME": home / "cache"}
    for folder in (*folders.values(), home / "here"):
        folder.mkdir(parents=True)
    return {
        **{name: str(folder) for name, folder in folders.items()},
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "AWS_PROFILE": "of-somebody-else",
        "AWS_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": nowhere,
        "AWS_ACCESS_KEY_ID": "real",
        "AWS_SECRET_ACCESS_KEY": "real",
        "HTTP_PROXY": nowhere,
        "http_proxy": nowhere,
        "GIT_DIR": str(home / "nowhere"),
        "RECONCILER_STATE": str(home / "state-of-somebody-else"),
        "RECONCILER_CLUSTER": "none",
    }


def files_below(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()))


def work_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    home, stage = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("stage") / "shop"
    before = work_of_children()
    done = subprocess.run(
        [sys.executable, "-m", "reconciler", "demo", "--dir", str(stage)],
        env=environment(home),
        cwd=home / "here",
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return Played(stage, done.stdout, work_of_children() - before, files_below(home))


@pytest.fixture
def state(played: Played) -> Iterator[DatabaseState]:
    with open_state(str(played.stage / ".reconciler"), "shop", create=False) as state:
        yield state


def launches(state: DatabaseState) -> list[JournalEntry]:
    entries = state.journal.entries(limit=1000)
    return [e for e in reversed(entries) if e.intent.verb is Verb.LAUNCH]


def gone_claims(state: DatabaseState) -> list[GoneClaim]:
    names = dict.fromkeys(entry.intent.target for entry in launches(state))
    return [gone for name in names if (gone := state.history.gone_claim(name)) is not None]


def since(claim: NodeClaim, condition: str) -> datetime:
    found = claim.condition(condition)
    assert found is not None
    assert found.last_transition_time is not None
    return found.last_transition_time


def roll_out(state: DatabaseState) -> list[RunningCommand]:
    commands = [c for c in state.history.commands() if c.reason == "Drifted"]
    return sorted(commands, key=lambda c: c.started_at)


def test_the_demo_writes_only_to_its_folder(played: Played) -> None:
    assert played.elsewhere == ()
    assert (played.stage / ".reconciler" / "state.db").is_file()


def test_the_demo_does_not_take_long(played: Played) -> None:
    assert played.cpu_s < CPU_S_MAX


def test_without_a_terminal_the_output_is_plain_text_of_eighty_columns(played: Played) -> None:
    assert not re.search(r"[^\S\n ]|[\x00-\x09\x0b-\x1f\x7f]", played.out)
    lines = [row for row in played.out.splitlines() if str(played.stage) not in row]
    assert max(map(len, lines)) <= 80


def test_the_git_history_contains_the_steps_of_the_demo(played: Played) -> None:
    log = ["git", "-C", str(played.stage), "log", "--format=%P|%an|%ad", "--date=iso-strict"]
    rows = subprocess.run(log, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    assert len(rows) == 6
    assert sum(" " in row.split("|")[0] for row in rows) == 1, "one merge"
    assert {row.split("|")[1] for row in rows} == {"Demo"}


def test_the_plans_show_drift_and_when_deferred_nodes_are_disrupted(played: Played) -> None:
    assert "3 nodes drifted" in played.out
    assert "not before 22:00 UTC" in played.out


def test_the_demo_ends_with_a_converged_fleet(state: DatabaseState) -> None:
    claims = state.store.node_claims()
    assert Counter(c.node_pool for c in claims) == {"web": 12}
    assert all(c.is_true("Initialized") and not c.is_deleting for c in claims)
    assert state.store.commands() == []
    assert state.journal.in_doubt() == []


def test_launches_and_instances_correspond_one_to_one(state: DatabaseState) -> None:
    entries = launches(state)
    assert [e.outcome for e in entries] == [Outcome.SUCCEEDED] * 16
    assert len({e.message for e in entries}) == len({e.intent.target for e in entries}) == 16
    claims = (*state.store.node_claims(), *(g.claim for g in gone_claims(state)))
    assert len({c.status.provider_id for c in claims}) == len(claims) == 16


def test_the_rollout_replaces_one_node_at_a_time(state: DatabaseState) -> None:
    gone = {g.claim.name: g.claim for g in gone_claims(state)}
    commands = roll_out(state)
    assert [c.phase for c in commands] == [CommandPhase.DONE] * 3
    ends = [since(gone[name], "InstanceTerminating") for c in commands for name in c.node_claims]
    assert all(end <= c.started_at for end, c in zip(ends, commands[1:], strict=False))


def test_no_node_drains_before_its_replacement_is_ready(state: DatabaseState) -> None:
    ready = {c.name: since(c, "Initialized") for c in state.store.node_claims()}
    gone = {g.claim.name: g.claim for g in gone_claims(state)}
    for command in roll_out(state):
        (old,), (new,) = command.node_claims, command.replacements
        deleted_at = gone[old].metadata.deletion_timestamp
        assert deleted_at is not None
        assert ready[new] <= deleted_at


def test_a_refused_offering_falls_back_to_another_type(state: DatabaseState) -> None:
    sale = datetime(2026, 3, 2, 14, tzinfo=UTC)
    (refused,) = state.store.unavailable(sale)
    assert (refused.instance_type, refused.zone) == ("c7g.large", "us-east-1b")
    assert refused.code == "InsufficientInstanceCapacity"
    labels = [c.metadata.labels for c in state.store.node_claims()]
    others = [row for row in labels if row["node.kubernetes.io/instance-type"] != "c7g.large"]
    assert [row["topology.kubernetes.io/zone"] for row in others] == ["us-east-1b"]


def test_the_empty_node_is_removed_when_its_window_opens(state: DatabaseState) -> None:
    (gone,) = (g for g in gone_claims(state) if g.claim.node_pool == "reports")
    (command,) = (c for c in state.history.commands() if c.reason == "Empty")
    assert command.started_at == NIGHT
    assert NIGHT < gone.at < NIGHT + timedelta(minutes=5)


def test_after_the_crash_existing_instances_are_recovered_and_the_rest_launched(
    played: Played, state: DatabaseState
) -> None:
    night = [e for e in launches(state) if e.intent.at > NIGHT]
    assert len(night) == 6
    pauses = [e.finished_at - e.intent.at for e in night if e.finished_at is not None]
    assert min(pauses) > timedelta(minutes=1), "no answer was read before the next run"
    ready = {c.name: since(c, "Initialized") for c in state.store.node_claims()}
    assert len(re.findall(r"(?m) \(recovered\)( +[●○ ]+)?$", played.out)) == 3
    # Instances that were launched before the crash are minutes older than the others.
    assert sorted(Counter(ready[e.intent.target] for e in night).values()) == [3, 3]


def test_the_commands_that_the_demo_suggests_run_as_they_are_printed(
    played: Played, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RECONCILER_STATE", "KUBECONFIG", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    ending = played.out[played.out.index("Try:") :]
    suggested = re.findall(r"\$ reconciler (.*)", ending)
    assert [words.split()[0] for words in suggested] == [
        "status", "history", "get", "plan", "simulate", "advise",
    ]  # fmt: skip
    for words in suggested:
        assert main(shlex.split(words)) == 0, words
    out, err = capsys.readouterr()
    assert out.count("web-") >= 12
    assert err == ""


@pytest.mark.exhaustive
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "reconciler", "demo"],
        env=environment(tmp_path),
        cwd=tmp_path / "here",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        while "reconciler apply" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (130, "Interrupted\n")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_without_the_embedded_extra_one_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "moto", None)
    assert main(["demo"]) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert install_remedy("embedded") in err


def test_a_non_empty_folder_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["demo", "--dir", str(tmp_path)]) == 1
    assert "--dir" in capsys.readouterr().err
    assert files_below(tmp_path) == ("mine.txt",)
