"""The story that ``reconciler demo`` tells: a day of a shop's fleet, in seven chapters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from reconciler.cli.stage import FLEET, START, Crash, Stage, launched_twice

if TYPE_CHECKING:
    from reconciler.cli.narrator import Narrator
    from reconciler.plan.plan import Plan

POOLS: Final = ("web", "reports")
_SCARCE: Final = ("c7g.large", "us-east-1b")
_KILLED_AT: Final = 3
_TEXT_WIDTH: Final = 75
_BRANCH: Final = "graviton"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the story, as facts."""

    converged: bool
    nodes: int
    cost_an_hour: float
    instances: int
    launched_twice: int
    in_doubt: int
    crash: Crash
    asked_in_crash: int
    most_disrupted: int
    least_ready: int
    refused: tuple[str, ...]
    night: datetime


def open_with(narrator: Narrator) -> None:
    """Say what this is, while what is heavy is still being loaded."""
    narrator.title("A day of a fleet of EC2 nodes that git drives")
    narrator.say(
        "The planner, the engine, git, SQLite and boto3 are the real ones. EC2 and the cluster "
        "are imitated on this machine, and the clock of the story runs fast. Nothing else is "
        "touched: no account, no network, no file outside one folder."
    )


def play(stage: Stage, narrator: Narrator, kept: str | None) -> Outcome:
    """Play every chapter and return what came of it."""
    _first_fleet(stage, narrator)
    _pull_request(stage, narrator)
    most, least = _roll_out(stage, narrator)
    refused = _no_capacity(stage, narrator)
    night = _at_night(stage, narrator)
    crash, asked = _crash(stage, narrator)
    outcome = _outcome(
        stage, crash, asked=asked, most=most, least=least, refused=refused, night=night
    )
    _ending(stage, narrator, outcome, kept)
    return outcome


def _first_fleet(stage: Stage, narrator: Narrator) -> None:
    narrator.chapter("A folder of YAML becomes a fleet")
    narrator.say(
        "Two NodePools, an EC2NodeClass and the Deployments that run on them, committed to git. "
        "There is no node yet. What would the engine do, and why?"
    )
    stage.git("init", "--quiet", "--initial-branch=main", "--template=")
    _commit(stage, narrator, "A web shop and its nightly reports")
    stage.seed()
    narrator.command("reconciler plan")
    narrator.quote(_excerpt(stage.plan()))
    narrator.say("On the right is the fleet: ○ a node that starts, ● a ready one, ◌ one that drains.")
    narrator.command("reconciler apply")
    stage.apply()


def _pull_request(stage: Stage, narrator: Narrator) -> None:
    narrator.chapter("A pull request says what it would do")
    stage.clock.set(START.replace(hour=10))
    narrator.say(
        "A branch moves the web nodes from Intel to Graviton: one word of YAML. Its reviewer "
        "sees which nodes that drifts, in which order they would go, and the dollars."
    )
    stage.git("switch", "--quiet", "--create", _BRANCH)
    stage.edit("nodes/web.yaml", "[amd64]", "[arm64]")
    _commit(stage, narrator, "Run the web on Graviton")
    narrator.command("reconciler plan --base main")
    narrator.quote(_excerpt(stage.plan("--base", "main")))


def _roll_out(stage: Stage, narrator: Narrator) -> tuple[int, int]:
    """Return how many web nodes were at most about to go, and how many at least ready."""
    from reconciler.plan.wording import dollars

    narrator.chapter("Merged: one node at a time")
    narrator.say(
        "The NodePool's budget says `nodes: 1`. So one node is replaced at a time, and it drains "
        "only once its replacement is ready: the web never has fewer nodes than before."
    )
    stage.git("switch", "--quiet", "main")
    narrator.command(f"git merge {_BRANCH}")
    stage.git("merge", "--quiet", "--no-ff", "-m", f"Merge {_BRANCH}", _BRANCH)
    narrator.command("reconciler apply")
    result = stage.apply()
    most, least = stage.reporter.most_disrupted["web"], stage.reporter.least_ready["web"]
    narrator.say(
        f"At no moment did more than {most} node drain, or fewer than {least} serve. The fleet now "
        f"costs {dollars(result.plan.cost.after)} an hour."
    )
    return most, least


def _no_capacity(stage: Stage, narrator: Narrator) -> tuple[str, ...]:
    """Return the offerings that EC2 refused."""
    kind, zone = _SCARCE
    narrator.chapter("EC2 has no capacity")
    stage.clock.set(START.replace(hour=14))
    narrator.say(
        f"A sale begins: the frontend doubles. And EC2 has no {kind} left in {zone}. The launch "
        "names every type that would do, so it takes the next cheapest; the refusal is "
        "remembered, and the next plans leave that offering alone for a while."
    )
    stage.ec2.market.refuse(kind, zone)
    stage.edit("workloads/frontend.yaml", "replicas: 6", "replicas: 12")
    _commit(stage, narrator, "The sale begins")
    narrator.command("reconciler apply")
    stage.apply()
    with stage.recorded() as state:
        held = state.store.unavailable(stage.clock.now())
    return tuple(f"{u.instance_type}/{u.zone}/{u.capacity_type}" for u in held)


def _at_night(stage: Stage, narrator: Narrator) -> datetime:
    """Return when the node of the reports went."""
    narrator.chapter("Not before 22:00")
    stage.clock.set(START.replace(hour=17))
    narrator.say(
        "The reports are switched off, so their node is empty. But its NodePool is closed by "
        "day: `nodes: 0` from 06:00 for 16 hours. The plan says what waits, for what, and until "
        "when; the daemon sleeps until just then."
    )
    stage.edit("workloads/reports.yaml", "replicas: 1", "replicas: 0")
    _commit(stage, narrator, "Switch the reports off")
    narrator.command("reconciler plan")
    narrator.quote(_excerpt(stage.plan()))
    narrator.command("reconciler run")
    stage.keep(lambda store: not any(c.node_pool == "reports" for c in store.node_claims()))
    return stage.clock.now()


def _crash(stage: Stage, narrator: Narrator) -> tuple[Crash, int]:
    """Return what the killed process left, and how many nodes it was to launch."""
    narrator.chapter("kill -9 in the middle of a launch")
    stage.clock.set(stage.clock.now().replace(hour=23, minute=0, second=0))
    stage.ec2.market.clear()
    stage.edit("workloads/frontend.yaml", "replicas: 12", "replicas: 24")
    narrator.say(
        "The sale needs more nodes still. `apply` is now a process of its own, and it is killed "
        f"when EC2 has launched {_KILLED_AT} of them and before it can answer."
    )
    _commit(stage, narrator, "The night of the sale")
    asked = len(stage.plan().node_claims)
    narrator.command("reconciler apply &", "kill -9 %1")
    crash = stage.crash(_KILLED_AT)
    narrator.event(stage.clock.now(), "!", f"killed (signal {crash.signal})")
    narrator.say(
        f"EC2 has launched {crash.launched} of {asked} nodes, and not one answer was read. The "
        f"journal, written before the calls, has {crash.in_doubt} launches in doubt. The next "
        "run looks at EC2 first: what is there is taken in (=), and only what is missing is "
        "launched (+), under the same client tokens."
    )
    stage.clock.advance(60)
    narrator.command("reconciler apply")
    stage.apply()
    return crash, asked


def _outcome(
    stage: Stage,
    crash: Crash,
    *,
    asked: int,
    most: int,
    least: int,
    refused: tuple[str, ...],
    night: datetime,
) -> Outcome:
    plan = stage.plan()
    with stage.recorded() as state:
        return Outcome(
            converged=plan.is_empty,
            nodes=len(state.store.node_claims()),
            cost_an_hour=plan.cost.after,
            instances=len(stage.ledger),
            launched_twice=launched_twice(stage.ledger),
            in_doubt=len(state.journal.in_doubt()),
            crash=crash,
            asked_in_crash=asked,
            most_disrupted=most,
            least_ready=least,
            refused=refused,
            night=night,
        )


def _ending(stage: Stage, narrator: Narrator, outcome: Outcome, kept: str | None) -> None:
    from reconciler.plan.layout import table
    from reconciler.plan.wording import counted, dollars, monthly

    narrator.chapter("What is left")
    cost = outcome.cost_an_hour
    living = len(stage.ec2.living())
    state = "converged: nothing left to do" if outcome.converged else "not converged"
    rows = [
        ("fleet", f"{state}"),
        ("nodes", _types(stage)),
        ("dollars", f"{dollars(cost)} an hour, {monthly(cost)} a month"),
        (
            "EC2",
            f"{counted(living, 'instance')}, {outcome.instances} launched all day, "
            f"{outcome.launched_twice} twice",
        ),
        ("journal", _journal(stage)),
    ]
    narrator.quote("\n".join(table(rows, "<<")))
    if kept is None:
        narrator.say("The folder is removed now. `reconciler demo --dir shop` keeps it:")
    folder = kept or "shop"
    narrator.command(*(f"reconciler {c} {folder}" for c in ("status", "history", "get nodeclaims")))


def _types(stage: Stage) -> str:
    with stage.recorded() as state:
        claims = state.store.node_claims()
    types = Counter(c.metadata.labels["node.kubernetes.io/instance-type"] for c in claims)
    return f"{len(claims)}: " + ", ".join(f"{types[t]} × {t}" for t in sorted(types))


def _journal(stage: Stage) -> str:
    with stage.recorded() as state:
        entries = state.journal.entries(limit=10_000)
        doubt = len(state.journal.in_doubt())
    verbs = Counter(e.intent.verb.value for e in entries)
    said = ", ".join(f"{verbs[verb]} {verb}" for verb in sorted(verbs))
    return f"{len(entries)} effects ({said}), {doubt} in doubt"


def _commit(stage: Stage, narrator: Narrator, message: str) -> None:
    stage.git("add", "--all")
    narrator.command(f'git commit -m "{message}"')
    stage.git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", message)


def _excerpt(plan: Plan) -> str:
    """Return the plan as text, without its header and what is beside the point of the story."""
    from msgspec.structs import replace

    from reconciler.plan.text import render_text

    text = render_text(replace(plan, blocked=(), diagnostics=()), width=_TEXT_WIDTH)
    return text.partition("\n\n")[2]
