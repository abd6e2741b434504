"""The judgements of a search: each is of some candidates that are made together."""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.cli.advice.candidates import AdviceCandidate
from reconciler.cli.advice.changes import DesiredChange, digests_of_files, with_changes
from reconciler.cli.advice.judging import ChangeVerdict, Judge
from reconciler.cli.sweeps.evaluation import address_of
from reconciler.source.rewrite import RewriteError

Selection = tuple[AdviceCandidate, ...]


@dataclass(frozen=True)
class Judgements:
    """Selections of candidates, each judged by itself (``sweeps.evaluation.Evaluations``)."""

    judge: Judge

    @property
    def result(self) -> type[ChangeVerdict]:
        """The type of the results."""
        return ChangeVerdict

    def evaluate(self, key: Selection) -> ChangeVerdict:
        """Judge the changes of all candidates of a selection together."""
        workload = key[0].workload
        if workload is not None:
            return self.judge.loosened(workload.constraint)
        return self.judge.judged(_changes(key))

    def address(self, key: Selection) -> str | None:
        """Return the address of a verdict, None where the changes cannot be made in the files."""
        workload = key[0].workload
        if workload is not None:
            one = workload.constraint
            return address_of("constraint", one.owner, one.constraint, self.judge.facts)
        try:
            files = with_changes(self.judge.files, _changes(key))
        except RewriteError:
            return None
        return address_of("judgement", digests_of_files(files), self.judge.facts)


def _changes(selection: Selection) -> list[DesiredChange]:
    return [change for candidate in selection for change in candidate.changes]
