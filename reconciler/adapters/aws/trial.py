"""Calls tried without effect: EC2 says whether it would carry them out.

With ``DryRun`` EC2 answers ``DryRunOperation`` where the call is allowed, and a refusal where it
is not. Any other answer decides nothing: what a call names may be missing while the permission
is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from reconciler.adapters.aws.errors import (
    Failure,
    boto_errors,
    code_of,
    failure_of,
    our_error,
)
from reconciler.model.errors import ReconcilerError, TransientCloudError

_WOULD: Final = "DryRunOperation"


class Verdict(StrEnum):
    """What a trial says of a call."""

    ALLOWED = "allowed"
    DENIED = "denied"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Trial:
    """How a trial ended; ``error`` is what AWS said where it did not simply agree."""

    verdict: Verdict
    code: str = ""
    error: ReconcilerError | None = None

    @property
    def is_passing(self) -> bool:
        """Whether the same trial may end otherwise in a moment."""
        return isinstance(self.error, TransientCloudError)


def tried(name: str, call: Callable[..., Any], **parameters: Any) -> Trial:
    """Make a call, ``name`` as in ``ec2:CreateFleet``, and return what AWS says of it.

    An imitation that does not know ``DryRun`` of a reading call answers it: that is leave as well.
    """
    try:
        call(**parameters)
    except boto_errors() as error:
        code = code_of(error)
        if code == _WOULD:
            return Trial(Verdict.ALLOWED)
        ours = our_error(name, error)
        denied = failure_of(error) is Failure.UNAUTHORIZED
        return Trial(Verdict.DENIED if denied else Verdict.UNDECIDED, code, ours)
    return Trial(Verdict.ALLOWED)
