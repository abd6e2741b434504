"""The story of ``reconciler demo``: a day of a shop's fleet, in seven chapters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from shlex import quote
from typing import TYPE_CHECKING, Final

from reconciler.demo.stage import FLEET, START, DemoStage, duplicate_launches
from reconciler.model.karpenter.labels import INSTANCE_TYPE
from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_cost
from reconciler.render.layout import table

if TYPE_CHECKING:
    from reconciler.demo.narrator import Narrator
    from reconciler.engine.reconcile import Pass
    from reconciler.plan.value.plan import Plan

POOLS: Final = ("web", "reports")
_SCARCE: Final = ("c7g.large", "us-east-1b")
_KILLED_AT: Final = 3
_OUTAGE_S: Final = 300.0
_ENTRIES_MAX: Final = 10_000
_TEXT_WIDTH: Final = 75
_BRANCH: Final = "graviton"


def print_introduction(narrator: Narrator) -> None:
    """Print the introduction while large modules are still loading."""
    narrator.title("A day in the life of an EC2 node fleet managed from git")
    narrator.paragraph(
        "The planner, the engine, git, SQLite and boto3 are real. EC2 and the cluster are "
        "simulated on this machine, and the clock runs fast. Nothing else is touched: no AWS "
        "account, no network, and no file outside one folder."
    )


def play_chapters(stage: DemoStage, narrator: Narrator, folder: str | None) -> None:
    """Play all chapters; ``folder`` is the folder as the user named it, None if it is temporary."""
    _first_fleet(stage, narrator)
    _pull_request(stage, narrator)
    _roll_out(stage, narrator)
    _no_capacity(stage, narrator)
    _disruption_window(stage, narrator)
    last = _crash(stage, narrator)
    _result(stage, narrator, last, folder)


def _first_fleet(stage: DemoStage, narrator: Narrator) -> None:
    narrator.chapter("A folder of YAML becomes a fleet")
    narrator.paragraph(
        "Two NodePools, an EC2NodeClass and the Deployments that run on them are committed to "
        "git. There are no nodes yet. What would the engine do, and why?"
    )
    stage.git("init", "--quiet", "--initial-branch=main", "--template=")
    _commit(stage, narrator, "A web shop and its nightly reports", "git init", "git add .")
    stage.seed()
    narrator.command("reconciler plan")
    narrator.quote(_excerpt(stage.plan()))
    narrator.paragraph("The fleet is shown on the right: ○ starting, ● ready, ◌ draining.")
    narrator.command("reconciler apply")
    stage.apply()


def _pull_request(stage: DemoStage, narrator: Narrator) -> None:
    narrator.chapter("A pull request shows its effect")
    stage.clock.set(START.replace(hour=10))
    narrator.paragraph(
        "A branch moves the web pool from Intel to Graviton by changing one value in the YAML. The "
        "reviewer sees which nodes drift, which are replaced now, which are deferred, and "
        "what this costs."
    )
    stage.git("switch", "--quiet", "--create", _BRANCH)
    stage.edit("nodes/web.yaml", "[amd64]", "[arm64]")
    _commit(stage, narrator, "Run the web on Graviton", f"git switch -c {_BRANCH}")
    narrator.command("reconciler plan --base main")
    narrator.quote(_excerpt(stage.plan(base="main")))


def _roll_out(stage: DemoStage, narrator: Narrator) -> None:
    narrator.chapter("Merged: one node at a time")
    narrator.paragraph(
        "The NodePool's budget is `nodes: 1`, so one node is replaced at a time. A node is "
        "drained only after its replacement is ready. So the web pool never has fewer ready "
        "nodes than before."
    )
    stage.git("switch", "--quiet", "main")
    narrator.command(f"git merge {_BRANCH}")
    stage.git("merge", "--quiet", "--no-ff", "-m", f"Merge {_BRANCH}", _BRANCH)
    narrator.command("reconciler apply")
    result = stage.apply()
    most, least = stage.reporter.most_disrupted["web"], stage.reporter.least_ready["web"]
    narrator.paragraph(
        f"At most {format_count(most, 'node')} drained at a time, and at least {least} stayed "
        f"ready. The fleet now costs {format_cost(result.plan.cost.after)}."
    )


def _no_capacity(stage: DemoStage, narrator: Narrator) -> None:
    kind, zone = _SCARCE
    narrator.chapter("EC2 has no capacity")
    stage.clock.set(START.replace(hour=14))
    narrator.paragraph(
        f"A sale begins, the frontend doubles, and EC2 has no {kind} left in {zone}. A launch "
        "request lists every suitable instance type, so EC2 picks the next cheapest at once. "
        "The offering is then marked unavailable, and the next plans avoid it for a while."
    )
    stage.ec2.market.refuse(kind, zone)
    stage.edit("workloads/frontend.yaml", "replicas: 6", "replicas: 12")
    _commit(stage, narrator, "The sale begins")
    narrator.command("reconciler apply")
    stage.apply()


def _disruption_window(stage: DemoStage, narrator: Narrator) -> None:
    narrator.chapter("A disruption window")
    stage.clock.set(START.replace(hour=17))
    narrator.paragraph(
        "The reports are switched off, so their node is empty. But its NodePool is closed "
        "during the day: `nodes: 0` from 06:00 for 16 hours. The plan shows what is deferred, "
        "why, and until when. The daemon sleeps until then."
    )
    stage.edit("workloads/reports.yaml", "replicas: 1", "replicas: 0")
    _commit(stage, narrator, "Switch the reports off")
    narrator.command("reconciler plan")
    narrator.quote(_excerpt(stage.plan()))
    narrator.command("reconciler run")
    stage.run_daemon(lambda store: not any(c.node_pool == "reports" for c in store.node_claims()))


def _crash(stage: DemoStage, narrator: Narrator) -> Pass:
    narrator.chapter("kill -9 in the middle of a launch")
    stage.clock.set(START.replace(hour=23))
    stage.ec2.market.clear()
    narrator.paragraph(
        "The sale needs even more nodes. `apply` now runs in its own process. It is killed "
        f"when EC2 has launched {_KILLED_AT} nodes, before EC2 can answer."
    )
    stage.edit("workloads/frontend.yaml", "replicas: 12", "replicas: 24")
    _commit(stage, narrator, "The night of the sale")
    narrator.command("reconciler apply &", "kill -9 %1")
    crash = stage.crash(_KILLED_AT)
    narrator.event(stage.clock.now(), "!", f"killed (signal {crash.signal})")
    narrator.paragraph(
        f"EC2 has launched {crash.launched} of {crash.in_doubt} nodes, but the engine has read "
        f"no answer. The journal, written before the calls, lists {crash.in_doubt} launches "
        "with unknown outcome. The next run checks EC2 first: existing nodes are recovered "
        "(=), and only missing ones are launched (+), with the same client tokens."
    )
    stage.clock.advance(_OUTAGE_S)
    narrator.command("reconciler apply")
    return stage.apply()


def _result(stage: DemoStage, narrator: Narrator, last: Pass, folder: str | None) -> None:
    narrator.chapter("Result")
    with stage.open_recorded() as state:
        claims = state.store.node_claims()
        entries = state.journal.entries(limit=_ENTRIES_MAX)
    cost = last.plan.cost.after
    types = _format_counts((c.metadata.labels[INSTANCE_TYPE] for c in claims), " × ")
    verbs = _format_counts((entry.shown_verb for entry in entries), " ")
    doubts = sum(entry.outcome is None for entry in entries)
    living, twice = len(stage.ec2.running_instances()), duplicate_launches(stage.ledger)
    rows = [
        ("fleet", "converged" if last.is_quiet else "not converged"),
        ("nodes", f"{len(claims)}: {types}"),
        ("cost", format_cost(cost)),
        ("journal", f"{format_count(len(entries), 'operation')}, {doubts} with unknown outcome"),
        ("operations", verbs),
        (
            "EC2",
            (
                f"{format_count(living, 'instance')} running; {len(stage.ledger)} launched, "
                f"{twice} "
                "launched twice"
            ),
        ),
    ]
    narrator.quote("\n".join(table(rows, "<<")))
    if folder is None:
        narrator.paragraph(
            "The demo folder is removed now; to keep it, run `reconciler demo --dir shop`. "
            "Then try:"
        )
    else:
        narrator.paragraph("The repository and the recorded state are kept. Try:")
    _suggest(narrator, folder or FLEET, "status", "history", "get nodeclaims")
    narrator.paragraph(
        "The simulated cluster ends with the demo. Plans are then made from the files:"
    )
    _suggest(narrator, folder or FLEET, "plan", "simulate", "advise")


def _suggest(narrator: Narrator, folder: str, *commands: str) -> None:
    """Show commands for the folder of the fleet, as they can be typed."""
    narrator.command(*(f"reconciler {command} {quote(folder)}" for command in commands))


def _format_counts(words: Iterable[str], between: str) -> str:
    """Return how often each word occurs: ``2 a, 1 b``."""
    counts = Counter(words)
    return ", ".join(f"{counts[word]}{between}{word}" for word in sorted(counts))


def _commit(stage: DemoStage, narrator: Narrator, message: str, *before: str) -> None:
    """Commit everything; ``before`` are the commands that a person would type first."""
    narrator.command(*before, f'git commit -am "{message}"')
    stage.git("add", "--all")
    stage.git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", message)


def _excerpt(plan: Plan) -> str:
    """Return the plan as text, without its header and the parts that the demo does not need."""
    from msgspec.structs import replace

    from reconciler.plan.render.text import render_text

    text = render_text(replace(plan, blocked=(), diagnostics=()), width=_TEXT_WIDTH)
    return text.partition("\n\n")[2]
