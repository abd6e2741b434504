"""Situations from public reports have the answer that their authors needed."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from reconciler.cli.main import main
from tests.cases import FOLDER, Answer, check_complete, parameters


class Outcome:
    """What one command printed as text, and its exit code; ``plan`` is its JSON."""

    def __init__(self, code: int, text: str, plan: Any = None) -> None:
        self.code = code
        self.text = " ".join(text.split())
        self.plan = plan

    @property
    def zones(self) -> list[str]:
        return sorted(c["launch"]["zone"] for c in self.plan["nodeClaims"])


def all_placed(pods: int, nodes: int | None = None, *zones: str) -> Answer:
    """Return a check that every pod is placed, on that many new nodes, in these zones."""

    def check(outcome: Outcome) -> None:
        assert outcome.plan["unschedulable"] == []
        assert len(outcome.plan["placements"]) == pods
        assert nodes is None or len(outcome.plan["nodeClaims"]) == nodes
        assert not zones or set(outcome.zones) == set(zones)

    return check


def mentions(*words: str, code: int | None = None) -> Answer:
    """Return a check that the output has all the words, and that the exit code is ``code``."""

    def check(outcome: Outcome) -> None:
        for word in words:
            assert word in outcome.text, outcome.text
        assert code is None or outcome.code == code

    return check


def both(*checks: Answer) -> Answer:
    """Return a check that makes several."""

    def check(outcome: Outcome) -> None:
        for one in checks:
            one(outcome)

    return check


def three_in_each_zone(outcome: Outcome) -> None:
    all_placed(6, None, "us-east-1a", "us-east-1b")(outcome)
    zones = {c["name"]: c["launch"]["zone"] for c in outcome.plan["nodeClaims"]}
    counts = Counter(zones[p["nodeClaim"]] for p in outcome.plan["placements"])
    assert set(counts.values()) == {3}


ANSWERS: Final[dict[str, Answer]] = {
    "001-spread-affinity-policy": all_placed(4),
    "001c-zone-other-pool": three_in_each_zone,
    "009-affinity-pvc": all_placed(2, None, "us-east-1c"),
    "009f-memory-order": all_placed(2, None, "us-east-1c"),
    "010-two-zones-pv": mentions("us-east-1a", "us-east-1b", "volumes are in different zones"),
    "012-volume-limits": all_placed(40, 2),
    "019-gpu-fraction": mentions("nvidia.com/gpu", "integer", code=3),
    "020-static-pv-folder": all_placed(1, 1, "us-east-1b"),
    "020b-static-efs-folder": all_placed(2),
    "020d-efs-immediate-folder": all_placed(2),
    "020f-pvc-named-sc-missing": both(
        all_placed(1), mentions("StorageClass gp3 is not in the folder")
    ),
    "021-drift-tgp-dnd": mentions("Steady state: 1 → 1 node,"),
    "032-expired-pdb": mentions("never ends", "PodDisruptionBudget"),
    "057-govcloud": mentions("us-gov-west-1", "every zone is assumed", "instanceTypes=live"),
    "058-china-g5": mentions("cn-north-1", "every zone is assumed", "instanceTypes=live"),
    "059-localzone": mentions("us-east-1-bos-1a", "local zones are not in the bundled data"),
    "069d-repair-early": mentions(
        "Unhealthy", "since 2026-11-01 11:45 UTC", "not before 12:15 UTC"
    ),
    "078-reserved-only": mentions("reservations", "not looked up"),
    "102c-vcpu-quota": mentions("VcpuLimitExceeded", "quota"),
    "105-memory-gib": mentions("MiB", "16384"),
    "108-limits-typo": mentions("warning", "cpus", "limits nothing"),
    "113-zoneid": mentions("zone ids", "assume"),
    "114-automode": mentions("EKS Auto Mode", "not supported"),
    "117-eks-capacitytype": mentions("warning", "eks.amazonaws.com/capacityType"),
    "118-zone-without-type-counted": all_placed(12),
    "118c-gpu-mixed-pool": all_placed(12),
    "118h-gen5": all_placed(12),
    "118m-smallest": all_placed(6),
    "120-mismatchlabelkeys": all_placed(4, 2),
    "120d-one-tenant": all_placed(3, 1),
    "149-cronjob": mentions("CronJob", "not planned"),
    "153b-anti-zone-3": mentions("Steady state: 0 → 3 nodes", "later pass"),
    "153f-two-replicas": mentions("2 nodes launched", "2 nodes at the end"),
    "153k-bound-to-claim": all_placed(1, 1, "us-east-1b"),
    "156-gte-toleration": mentions("Gt", "1.35"),
    "160-new-never-joins": mentions("never joined", "default/app-00000"),
    "166-consolidate-spread": mentions("topology spread"),
    "169-do-not-disrupt-duration": mentions("13:00"),
}
OPEN: Final = frozenset({})


def test_every_case_is_answered() -> None:
    check_complete("reports", ANSWERS)


def _run(case: Path, capsys: pytest.CaptureFixture[str]) -> Outcome:
    command = shlex.split(json.loads((case / "case.json").read_text())["command"])
    words = [str(case / w) if (case / w).exists() else w for w in command[1:]]
    if words[0] == "plan":
        words += ["--set", "packing=default"]
    code = main(words)
    text = "\n".join(capsys.readouterr())
    plan = None
    if words[0] == "plan" and code == 0:
        main([*words, "-o", "json"])
        plan = json.loads(capsys.readouterr().out)
    return Outcome(code, text, plan)


@pytest.mark.parametrize("case", parameters("reports", ANSWERS, OPEN))
def test_a_reported_situation_is_answered(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    ANSWERS[case](_run(FOLDER / "reports" / case, capsys))
