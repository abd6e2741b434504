"""The story that ``reconciler demo`` tells: a day of a shop's fleet, in seven chapters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from reconciler.cli.stage import FLEET, START, Stage, launched_twice
from reconciler.model.labels import INSTANCE_TYPE

if TYPE_CHECKING:
    from reconciler.cli.narrator import Narrator
    from reconciler.engine.reconcile import Pass
    from reconciler.plan.plan import Plan

POOLS: Final = ("web", "reports")
_SCARCE: Final = ("c7g.large", "us-east-1b")
_KILLED_AT: Final = 3
_OUTAGE_S: Final = 300.0
_ENTRIES_MAX: Final = 10_000
_TEXT_WIDTH: Final = 75
_BRANCH: Final = "graviton"


def open_with(narrator: Narrator) -> None:
    """Say what this is, while what is heavy is still being loaded."""
    narrator.title("A day of a fleet of EC2 nodes that git drives")
    narrator.say(
        "The planner, the engine, git, SQLite and boto3 are the real ones. EC2 and the cluster "
        "are imitated on this machine, and the clock of the story runs fast. Nothing else is "
        "touched: no account, no network, no file outside one folder."
    )


def play(stage: Stage, narrator: Narrator, kept: str | None) -> None:
    """Play every chapter; ``kept`` is the folder as the user named it, None where it goes."""
    _first_fleet(stage, narrator)
    _pull_request(stage, narrator)
    _roll_out(stage, narrator)
    _no_capacity(stage, narrator)
    _at_night(stage, narrator)
    last = _crash(stage, narrator)
    _ending(stage, narrator, last, kept)


def _first_fleet(stage: Stage, narrator: Narrator) -> None:
    narrator.chapter("A folder of YAML becomes a fleet")
    narrator.say(
        "Two NodePools, an EC2NodeClass and the Deployments that run on them, committed to git. "
        "There is no node yet. What would the engine do, and why?"
    )
    stage.git("init", "--quiet", "--initial-branch=main", "--template=")
    _commit(stage, narrator, "A web shop and its nightly reports", "git init", "git add .")
    stage.seed()
    narrator.command("reconciler plan")
    narrator.quote(_excerpt(stage.plan()))
    narrator.say("Beside each moment is the fleet: ○ a node that starts, ● ready, ◌ draining.")
    narrator.command("reconciler apply")
    stage.apply()


def _pull_request(stage: Stage, narrator: Narrator) -> None:
    narrator.chapter("A pull request says what it would do")
    stage.clock.set(START.replace(hour=10))
    narrator.say(
        "A branch moves the web from Intel to Graviton: one word of YAML. Its reviewer sees which "
        "nodes that drifts, which goes now and which wait, and the dollars of that step."
    )
    stage.git("switch", "--quiet", "--create", _BRANCH)
    stage.edit("nodes/web.yaml", "[amd64]", "[arm64]")
    _commit(stage, narrator, "Run the web on Graviton", f"git switch -c {_BRANCH}")
    narrator.command("reconciler plan --base main")
    narrator.quote(_excerpt(stage.plan("--base", "main")))


def _roll_out(stage: Stage, narrator: Narrator) -> None:
    from reconciler.plan.wording import counted, dollars

    narrator.chapter("Merged: one node at a time")
    narrator.say(
        "The NodePool's budget says `nodes: 1`: one node is replaced at a time. And a node drains "
        "only when its replacement is ready, so the web never has fewer of them than before."
    )
    stage.git("switch", "--quiet", "main")
    narrator.command(f"git merge {_BRANCH}")
    stage.git("merge", "--quiet", "--no-ff", "-m", f"Merge {_BRANCH}", _BRANCH)
    narrator.command("reconciler apply")
    result = stage.apply()
    most, least = stage.reporter.most_disrupted["web"], stage.reporter.least_ready["web"]
    narrator.say(
        f"At no moment did more than {counted(most, 'node')} drain, or fewer than {least} serve. "
        f"The fleet now costs {dollars(result.plan.cost.after)} an hour."
    )


def _no_capacity(stage: Stage, narrator: Narrator) -> None:
    kind, zone = _SCARCE
    narrator.chapter("EC2 has no capacity")
    stage.clock.set(START.replace(hour=14))
    narrator.say(
        f"A sale begins, the frontend doubles, and EC2 has no {kind} left in {zone}. A launch "
        "names every type that would do, so it gets the next cheapest at once. The refusal is "
        "remembered: the next plans leave that offering alone for a while."
    )
    stage.ec2.market.refuse(kind, zone)
    stage.edit("workloads/frontend.yaml", "replicas: 6", "replicas: 12")
    _commit(stage, narrator, "The sale begins")
    narrator.command("reconciler apply")
    stage.apply()


def _at_night(stage: Stage, narrator: Narrator) -> None:
    narrator.chapter("Not before 22:00")
    stage.clock.set(START.replace(hour=17))
    narrator.say(
        "The reports are switched off, so their node is empty. But its NodePool is closed by "
        "day: `nodes: 0` from 06:00 for 16 hours. The plan says what waits, for what, and until "
        "when. The daemon sleeps until just then."
    )
    stage.edit("workloads/reports.yaml", "replicas: 1", "replicas: 0")
    _commit(stage, narrator, "Switch the reports off")
    narrator.command("reconciler plan")
    narrator.quote(_excerpt(stage.plan()))
    narrator.command("reconciler run")
    stage.keep(lambda store: not any(c.node_pool == "reports" for c in store.node_claims()))


def _crash(stage: Stage, narrator: Narrator) -> Pass:
    narrator.chapter("kill -9 in the middle of a launch")
    stage.clock.set(START.replace(hour=23))
    stage.ec2.market.clear()
    narrator.say(
        "The sale needs more nodes still. `apply` is now a process of its own, and it is killed "
        f"when EC2 has launched {_KILLED_AT} of them, before it can answer."
    )
    stage.edit("workloads/frontend.yaml", "replicas: 12", "replicas: 24")
    _commit(stage, narrator, "The night of the sale")
    narrator.command("reconciler apply &", "kill -9 %1")
    crash = stage.crash(_KILLED_AT)
    narrator.event(stage.clock.now(), "!", f"killed (signal {crash.signal})")
    narrator.say(
        f"EC2 has launched {crash.launched} of {crash.in_doubt} nodes, and not one answer was "
        f"read. The journal, written before the calls, has {crash.in_doubt} launches in doubt. "
        "The next run looks at EC2 first: what is there is taken in (=), and only what is "
        "missing is launched (+), under the same client tokens."
    )
    stage.clock.advance(_OUTAGE_S)
    narrator.command("reconciler apply")
    return stage.apply()


def _ending(stage: Stage, narrator: Narrator, last: Pass, kept: str | None) -> None:
    from reconciler.plan.layout import table
    from reconciler.plan.wording import counted, dollars, monthly

    narrator.chapter("What is left")
    with stage.recorded() as state:
        claims = state.store.node_claims()
        entries = state.journal.entries(limit=_ENTRIES_MAX)
    cost = last.plan.cost.after
    types = _counts((c.metadata.labels[INSTANCE_TYPE] for c in claims), " × ")
    verbs = _counts((entry.intent.verb.value for entry in entries), " ")
    doubts = sum(entry.outcome is None for entry in entries)
    living, twice = len(stage.ec2.living()), launched_twice(stage.ledger)
    rows = [
        ("fleet", "converged: nothing left to do" if last.is_quiet else "not converged"),
        ("nodes", f"{len(claims)}: {types}"),
        ("dollars", f"{dollars(cost)} an hour, {monthly(cost)} a month"),
        ("journal", f"{counted(len(entries), 'effect')}, {doubts} in doubt"),
        ("effects", verbs),
        ("EC2", f"{counted(living, 'instance')}; {len(stage.ledger)} launched, {twice} twice"),
    ]
    narrator.quote("\n".join(table(rows, "<<")))
    if kept is None:
        narrator.say("The folder is removed now. `reconciler demo --dir shop` keeps it. Then try:")
    else:
        narrator.say("The repository and everything that is recorded stay. Try:")
    folder = kept or FLEET
    narrator.command(
        *(f"reconciler {command} {folder}" for command in ("status", "history", "get nodeclaims"))
    )


def _counts(words: Iterable[str], between: str) -> str:
    """Return how often each word occurs: ``2 a, 1 b``."""
    counts = Counter(words)
    return ", ".join(f"{counts[word]}{between}{word}" for word in sorted(counts))


def _commit(stage: Stage, narrator: Narrator, message: str, *before: str) -> None:
    """Commit everything; ``before`` are the commands that a person would type first."""
    narrator.command(*before, f'git commit -am "{message}"')
    stage.git("add", "--all")
    stage.git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", message)


def _excerpt(plan: Plan) -> str:
    """Return the plan as text, without its header and what is beside the point of the story."""
    from msgspec.structs import replace

    from reconciler.plan.text import render_text

    text = render_text(replace(plan, blocked=(), diagnostics=()), width=_TEXT_WIDTH)
    return text.partition("\n\n")[2]
