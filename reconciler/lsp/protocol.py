"""The messages that cannot be served: each request gets its error (JSON-RPC), none is left open.

The package that speaks the protocol logs such a message, and the editor waits for an answer.
"""

from __future__ import annotations

import re
from typing import Any, Final

from cattrs import transform_error
from lsprotocol import types
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInvalidParams,
    JsonRpcInvalidRequest,
    JsonRpcServerNotInitialized,
)
from pygls.protocol import JsonRPCProtocol, LanguageServerProtocol

from reconciler.model.text.visible import neutralize

Message = Any
"""A message of the protocol: its types are those of a package of the extra."""

_PATH: Final = re.compile(r"\$[.\w\[\]]*", re.ASCII)
_UNDERSCORED: Final = re.compile(r"_([a-z])")
_REASON_MAX: Final = 300
"""Characters of the reason of an error, which quotes the message."""


class AnsweringProtocol(LanguageServerProtocol):  # type: ignore[misc]
    """The protocol with an error for each request that it cannot serve."""

    _is_initialized = False

    def structure_message(self, data: Message) -> Message:
        """Return an object of a message as it is: only the complete message is of the protocol."""
        return data

    def handle_message(self, message: Message) -> None:
        """Serve a message; a request that is not served gets an error."""
        fields = message if isinstance(message, dict) else {}
        number, method = fields.get("id"), fields.get("method")
        try:
            self._expect_served(fields, method)
            if method is not None and self.get_message_type(method) is None:
                fields = {"params": None, **fields}  # an unknown method is answered as such
            served = super().structure_message(fields)
        except JsonRpcException as error:
            if "id" in fields and "method" in fields:
                is_number = isinstance(number, str | int) and not isinstance(number, bool)
                answered = _explained(error).to_response_error()
                self._send_response(number if is_number else None, error=answered)
            return
        self._is_initialized = self._is_initialized or method == types.INITIALIZE
        super().handle_message(served)

    def _expect_served(self, fields: dict[str, Any], method: Message) -> None:
        """Check the state of the server for a message.

        Raises:
            JsonRpcException: it is not a message, or there is no server for it before the start or
                after the end.
        """
        if fields.get("jsonrpc") != JsonRPCProtocol.VERSION:
            raise JsonRpcInvalidRequest("the message is not of JSON-RPC 2.0")
        if method is not None and not isinstance(method, str):
            raise JsonRpcInvalidRequest("the method is not a string")
        if method in (None, types.EXIT):
            return
        if self._shutdown:
            raise JsonRpcInvalidRequest("the server has been shut down")
        if not self._is_initialized and method != types.INITIALIZE:
            raise JsonRpcServerNotInitialized("the server has not been initialized")


def _explained(error: JsonRpcException) -> JsonRpcException:
    """Return an error with the fields that are wrong, if a message could not be read."""
    cause = error.__cause__
    if cause is None:
        return error
    reason = _PATH.sub(_as_sent, "; ".join(transform_error(cause)))
    return JsonRpcInvalidParams(neutralize(f"invalid params: {reason}"[:_REASON_MAX]))


def _as_sent(path: re.Match[str]) -> str:
    """Return the path of a field with the names of the message, not those of its type here."""
    return _UNDERSCORED.sub(lambda letter: letter[1].upper(), path[0])
