"""What a plan does: commands and actions, and the nodes and budgets that limit them."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal

from reconciler.model.decision.equals import EqualCandidates
from reconciler.model.decision.part import Part
from reconciler.plan.value.nodes import PlannedImage

Decision = Literal["delete", "replace", "reboot"]


class PlannedCommand(Part, frozen=True, kw_only=True):
    """Nodes that are removed together, and the replacements that must be ready before.

    The decision may also be to reboot them.

    ``savings`` is USD an hour. ``forceful`` commands ignore budgets. ``message`` has details of the
    reason, such as the event of an interruption; most commands have none.
    ``savings_per_eviction`` is the savings per pod that a consolidation moves.
    ``termination_grace_period`` limits the drain in addition to that of each NodeClaim.
    ``equal_candidates`` are the nodes that might be removed just as well.
    """

    id: str
    reason: str
    decision: Decision
    nodes: tuple[str, ...]
    node_claims: tuple[str, ...] = ()
    replacements: tuple[str, ...] = ()
    savings: float | None = None
    score: float | None = None
    pods_evicted: int = 0
    savings_per_eviction: float | None = None
    forceful: bool = False
    message: str = ""
    termination_grace_period: str = ""
    equal_candidates: tuple[EqualCandidates, ...] = ()

    left_out: ClassVar = (
        "savings_per_eviction",
        "message",
        "termination_grace_period",
        "equal_candidates",
    )

    @property
    def removes_nodes(self) -> bool:
        """Whether its nodes are terminated in the end; a reboot keeps them."""
        return self.decision != "reboot"


class BlockedNode(Part, frozen=True, kw_only=True):
    """A node that a disruption method selected and that cannot be disrupted, with the reason."""

    node: str
    node_pool: str = ""
    reason: str = ""
    code: str = ""
    message: str


class ActionKind(StrEnum):
    """What an action does: launch a NodeClaim, validate a command, remove or reboot a node."""

    PROVISION = "provision"
    REPLACE = "replace"
    TERMINATE = "terminate"
    REBOOT = "reboot"


class Action(Part, frozen=True, kw_only=True):
    """An action. It starts when every action in ``depends_on`` has succeeded.

    ``cost_delta`` is USD an hour, negative for a removed node, None without a price. ``image`` is
    the image of a launch.
    """

    id: str
    kind: ActionKind
    node_pool: str | None = None
    node_claim: str | None = None
    node: str | None = None
    command: str | None = None
    depends_on: tuple[str, ...] = ()
    wave: int = 0
    cost_delta: float | None = None
    reason: str = ""
    instance_type: str | None = None
    zone: str | None = None
    capacity_type: str | None = None
    image: PlannedImage | None = None

    left_out: ClassVar = ("image",)
