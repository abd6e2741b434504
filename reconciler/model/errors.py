"""The errors a caller is expected to handle.

One base class for the command line to catch, one subclass for each decision that a caller can
take. Each carries its facts as attributes and builds its message from them, so that no caller
parses text. Errors of boto3, git or SQL are translated where they enter and chained with ``from``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.text.counting import format_count

if TYPE_CHECKING:
    from reconciler.model.ownership import ClusterId


class ReconcilerError(Exception):
    """Base of every error that this package raises on purpose.

    ``where`` is a file:line:column, an API call with its request id, or a setting; ``remedy``
    says what to do.
    """

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        self.message = message
        self.where = where
        self.remedy = remedy
        place = f"{where}: " if where else ""
        advice = f" ({remedy})" if remedy.endswith("?") else f"; {remedy}" if remedy else ""
        super().__init__(f"{place}{message}{advice}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the attributes instead of the arguments of the constructor."""
        return _restore_error, (type(self), self.args, self.__dict__)


def _restore_error(
    kind: type[ReconcilerError], args: tuple[object, ...], facts: dict[str, object]
) -> ReconcilerError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class InvalidFleetError(ReconcilerError):
    """The desired state cannot be planned; nothing was changed.

    ``advice`` says what can be planned instead, if anything.
    """

    def __init__(self, diagnostics: Sequence[Diagnostic], advice: str = "") -> None:
        assert diagnostics, "an invalid fleet must say why"
        self.diagnostics = tuple(sorted(diagnostics, key=lambda d: d.order))
        errors = [d for d in self.diagnostics if d.severity is Severity.ERROR] or self.diagnostics
        more = len(errors) - 1
        rest = f" (and {more} more: `reconciler validate` lists them)" if more else ""
        super().__init__(f"{errors[0]}{rest}{f'; {advice}' if advice else ''}")


class UnreadableError(ReconcilerError):
    """An input cannot be read or is malformed; unknown is not empty, so we stop."""


class MissingFleetError(UnreadableError):
    """The folder of a fleet does not exist, or has no file of one: at a base, the fleet is new."""


class OutputError(ReconcilerError):
    """Standard output cannot be written: its device is full or fails."""


class UsageError(ReconcilerError):
    """The command line or a setting is wrong."""


class UnnamedClusterError(ReconcilerError):
    """No cluster name is set, and the operation needs one."""


class StalePlanError(ReconcilerError):
    """A saved plan no longer matches its inputs, or was already applied; plan again."""

    def __init__(self, moved: Sequence[str], *, plan: str = "the saved plan") -> None:
        self.moved = tuple(moved)
        super().__init__(
            f"{plan} is stale: {'; '.join(moved)}", remedy="run `reconciler plan` again"
        )


class LockedError(ReconcilerError):
    """Another process holds this state directory or fleet."""


class LeaseHeldError(LockedError):
    """Another process acts for this fleet or for its cluster; this process may act when it ends."""


class FleetConflictError(ReconcilerError):
    """Another fleet has nodes in the cluster, and one cluster has one fleet."""


def format_claim_count(count: int) -> str:
    """Return a number of NodeClaims in words."""
    return format_count(count, "NodeClaim")


class FleetMovedError(ReconcilerError):
    """The fleet has nodes in another account or region, where it would lose sight of them."""

    def __init__(
        self, fleet: str, count: int, before: ClusterId, after: ClusterId, where: str
    ) -> None:
        there, here = f"account {before.account}", f"account {after.account}"
        remedy = f"use credentials of {there}"
        if before.region != after.region:
            there, here = before.region, after.region
            remedy = f"set aws.region to {there}"
        super().__init__(
            f"fleet {fleet} has {format_claim_count(count)} in {there}, and would act in {here}, "
            "where it cannot see their instances",
            where=where,
            remedy=f"{remedy} until the fleet has no nodes, or create another fleet",
        )


class LeaseLostError(ReconcilerError):
    """The process may no longer act for the fleet: it must stop, and acquire the lease again.

    ``why`` says how the lease was lost, empty where it was never held.
    """

    def __init__(self, message: str, *, why: str = "", where: str = "") -> None:
        self.why = why
        super().__init__(
            f"{message}: {why}" if why else message,
            where=where,
            remedy="nothing more was written; run the command again",
        )


class ClockSetBackError(ReconcilerError):
    """The clock was set back during the run, so work that is due at a later time would wait."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f"the clock was set back by {seconds:.0f} s; postponed work is checked again now",
            remedy="check the time synchronization of this machine",
        )


class SettingsChangedError(ReconcilerError):
    """A revision changes settings that a process uses from its start: it has to begin again."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = tuple(keys)
        super().__init__(
            f"settings have changed: {', '.join(keys)}", remedy="run the command again"
        )


class StateError(ReconcilerError):
    """The recorded state cannot be opened, or was written by a newer release."""


class PolicyError(ReconcilerError):
    """A policy of the repository forbids the plan; the message explains how to allow it."""


class TransientCloudError(ReconcilerError):
    """The call may succeed if repeated with the same client token."""


class CloudError(ReconcilerError):
    """The cloud refused a call for a reason that a retry does not fix."""


class ClusterError(ReconcilerError):
    """The Kubernetes API refused or failed a call."""
