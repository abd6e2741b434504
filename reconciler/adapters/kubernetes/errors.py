"""The border where an answer of the Kubernetes API becomes an error of ours.

What a caller must decide is told by the HTTP status; the sentence names the call, what the API
said, and what to do.
"""

from __future__ import annotations

from typing import Final

import msgspec

from reconciler.model.errors import ClusterError

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409
GONE: Final = 410
TOO_MANY: Final = 429
NO_ANSWER: Final = 0
"""In place of a status: the call may or may not have had its effect."""

_PASSING: Final = frozenset({NO_ANSWER, TOO_MANY, 500, 502, 503, 504})
ALLOW_IT: Final = "grant it by RBAC; docs/kubernetes contains the full ClusterRole"
_REMEDIES: Final = {
    UNAUTHORIZED: "renew the credentials in the kubeconfig",
    FORBIDDEN: ALLOW_IT,
    TOO_MANY: "it will be retried",
    NO_ANSWER: "check whether `kubectl get --raw /version` works from this machine",
}
_SAID_MAX: Final = 300


class ApiError(ClusterError):
    """The Kubernetes API refused a call or did not answer it.

    ``status`` is that of HTTP, ``NO_ANSWER`` without one; ``reason`` is the API's own word for it;
    ``retry_after_s`` how long it asks to be left alone.
    """

    def __init__(
        self, call: str, status: int, reason: str, message: str, retry_after_s: float = 0.0
    ) -> None:
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s
        remedy = _REMEDIES.get(status, "it will be retried" if status in _PASSING else "")
        head = f"HTTP {status} {reason}".rstrip() if status else reason
        text = " ".join(message.split())[:_SAID_MAX]
        super().__init__(f"{head}: {text}" if text else head, where=call, remedy=remedy)

    @property
    def passes(self) -> bool:
        """Whether the same call may succeed if it is repeated."""
        return self.status in _PASSING


class _Status(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


def refusal(call: str, status: int, phrase: str, body: bytes, retry_after: str) -> ApiError:
    """Return the error that an answer of the API stands for."""
    try:
        said = msgspec.json.decode(body, type=_Status)
    except msgspec.MsgspecError:
        said = _Status(message=body[:_SAID_MAX].decode(errors="replace"))
    seconds = float(retry_after) if retry_after.isdecimal() else 0.0
    return ApiError(call, status, said.reason or phrase, said.message, seconds)
