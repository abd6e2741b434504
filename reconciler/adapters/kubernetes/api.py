"""Calls of the Kubernetes API: repeated where that may help, and bounded in every way.

``reconciler check`` checks whether it answers, and which permissions it grants us.

A response that is no success becomes an ``ApiError``: its HTTP status shows callers what to do, and
its message names the call, the API's message and the remedy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

import msgspec

from reconciler.adapters.kubernetes.access import Access, expect_one_cluster
from reconciler.adapters.kubernetes.kinds import PERMISSIONS, POD, Kind, Permission, permissions_of
from reconciler.model.decode import decode, decode_json, describe_mismatch
from reconciler.model.diagnostics import Check, Verdict, failed_check, passed_check, unknown_check
from reconciler.model.errors import ClusterError, ReconcilerError
from reconciler.model.json import JsonDict
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import Settings
from reconciler.ports.calls import Calls
from reconciler.ports.progress import CallMeter

if TYPE_CHECKING:
    from urllib3 import HTTPResponse

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409
GONE: Final = 410
TOO_MANY: Final = 429
NO_ANSWER: Final = 0
"""Used as a status: the call may or may not have had its effect."""
SILENT: Final = "no answer in time"
"""Used as a reason: the connection was there, and nothing came for too long."""

_TRANSIENT: Final = frozenset({NO_ANSWER, TOO_MANY, 500, 502, 503, 504})
ALLOW_IT: Final = "grant it by RBAC; docs/kubernetes contains the full ClusterRole"
_REMEDIES: Final = {
    UNAUTHORIZED: "renew the credentials in the kubeconfig",
    FORBIDDEN: ALLOW_IT,
    TOO_MANY: "it will be retried",
    NO_ANSWER: "check whether `kubectl get --raw /version` works from this machine",
}
_MESSAGE_MAX: Final = 300

PAGE: Final = 500
_STARTS: Final = 3

ATTEMPTS: Final = 4
_CONNECT_S: Final = 5.0
_PAUSE_S: Final = 0.5
_PAUSE_MAX_S: Final = 10.0
_PART: Final = 65536
"""How many bytes of a response are read at a time."""
_OK: Final = range(200, 300)
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class ApiError(ClusterError):
    """The Kubernetes API rejected a call or did not respond.

    ``status`` is that of HTTP, ``NO_ANSWER`` without one; ``reason`` is the API's own name for it;
    ``retry_after_s`` is the pause that it requests.
    """

    def __init__(
        self, call: str, status: int, reason: str, message: str, retry_after_s: float = 0.0
    ) -> None:
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s
        remedy = _REMEDIES.get(status, "it will be retried" if status in _TRANSIENT else "")
        head = f"HTTP {status} {reason}".rstrip() if status else reason
        text = " ".join(message.split())[:_MESSAGE_MAX]
        super().__init__(f"{head}: {text}" if text else head, where=call, remedy=remedy)

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed if it is repeated."""
        return self.status in _TRANSIENT


class _Status(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


def response_error(call: str, status: int, phrase: str, body: bytes, retry_after: str) -> ApiError:
    """Return the error for a response of the API."""
    try:
        details = decode_json(body, _Status)
    except msgspec.MsgspecError:
        details = _Status(message=body[:_MESSAGE_MAX].decode(errors="replace"))
    seconds = float(retry_after) if retry_after.isdecimal() else 0.0
    return ApiError(call, status, details.reason or phrase, details.message, seconds)


# Lists of objects, page by page: all of them, or an error. The items of a page are split without
# decoding them; the reader knows their kind, which the API does not repeat in every item.


class _Metadata(msgspec.Struct, frozen=True):
    continuation: str = msgspec.field(default="", name="continue")
    version: str = msgspec.field(default="", name="resourceVersion")


class Page(msgspec.Struct, frozen=True):
    """A part of a list; an empty list of the API may have no items at all."""

    kind: str
    metadata: _Metadata
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class ObjectList:
    """The JSON of every object of a kind, and the ``resourceVersion`` at which that was true.

    The version is empty if the cluster does not have the kind.
    """

    items: Sequence[bytes | msgspec.Raw] = ()
    version: str = ""


def list_objects(api: Api, kind: Kind, selector: str = "", most: int | None = None) -> ObjectList:
    """Return every object of a kind that a field selector selects, or the first ``most``.

    A list is started again if its continue token has expired. Raises: ClusterError: it could not be
    read to its end; one without its last pages is returned only with ``most``.
    """
    for left in reversed(range(_STARTS)):
        try:
            pages = list(_list_pages(api, kind, selector, most))
        except ApiError as error:
            if error.status == NOT_FOUND and kind.optional:
                return ObjectList()
            if error.status != GONE or not left:
                raise
        else:
            items = list(chain.from_iterable(page.items or () for page in pages))
            return ObjectList(items[:most], pages[0].metadata.version)
    raise AssertionError("the last start returns or raises")


def list_items(api: Api, kind: Kind, selector: str = "") -> Sequence[bytes | msgspec.Raw]:
    """Return the JSON of every object of a kind, as ``list_objects`` does."""
    return list_objects(api, kind, selector).items


def read_objects(api: Api, kind: Kind) -> Iterator[JsonDict]:
    """Yield the objects of a kind with their kind, which a list of the API does not repeat."""
    stated = {"apiVersion": kind.api_version, "kind": kind.kind}
    for item in list_items(api, kind):
        yield stated | kind.decode(item)


def _list_pages(api: Api, kind: Kind, selector: str, most: int | None) -> Iterator[Page]:
    query = {"limit": str(PAGE)} | ({"fieldSelector": selector} if selector else {})
    count, known = 0, set[str]()
    while True:
        page = _decode_page(api.call("GET", kind.path, query), kind)
        yield page
        after = page.metadata.continuation
        count += len(page.items or ())
        if not after or (most is not None and count >= most):
            return
        if after in known:
            raise ClusterError("the list does not end", where=f"GET {kind.path}")
        known.add(after)
        query["continue"] = after


def _decode_page(content: bytes, kind: Kind) -> Page:
    try:
        page = decode_json(content, Page)
    except msgspec.MsgspecError as error:
        what = f"invalid list: {describe_mismatch(error)}"
        raise ClusterError(what, where=f"GET {kind.path}") from error
    if page.kind not in (f"{kind.kind}List", "List"):
        raise ClusterError(f"expected a list, got a {page.kind[:80]}", where=f"GET {kind.path}")
    return page


def _allow_every_call() -> None:
    """Allow every call."""


def _ignore_answer(method: str, path: str, body: object, answer: bytes | None) -> None:
    del method, path, body, answer


def _ignore_time(stated: datetime, sent: datetime, received: datetime) -> None:
    del stated, sent, received


def _is_never_an_answer(error: ApiError) -> bool:
    del error
    return False


def resource_of(path: str) -> str:
    """Return the resource in a path of the API, without namespaces and names.

    ``/api/v1/namespaces/shop/pods/api-0/eviction`` is ``pods/eviction``.
    """
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join(parts[::2]) or path


@dataclass
class Api:
    """One API server. ``connect`` returns the access, again if the credentials have expired.

    ``wait`` passes seconds between two attempts; a response may take ``timeout_s``. ``confirm`` is
    called before each attempt, and what it raises ends the call before anything is sent. ``meter``
    receives each attempt. ``on_answer`` receives method, path, body and response of each call, and
    None as the response if the object was not found. ``on_time`` receives the time that a response
    states, and those of this machine at the request and at the response.
    """

    connect: Callable[[], Access]
    wait: Callable[[float], None]
    timeout_s: float = 30.0
    confirm: Callable[[], None] = _allow_every_call
    meter: CallMeter | None = None
    on_answer: Callable[[str, str, object, bytes | None], None] = _ignore_answer
    on_time: Callable[[datetime, datetime, datetime], None] = _ignore_time
    _connecting: Lock = field(default_factory=Lock, repr=False)
    _streams: set[HTTPResponse] = field(default_factory=set, repr=False)
    _is_interrupted: bool = field(default=False, repr=False)
    _access: Access | None = field(default=None, repr=False)

    @property
    def access(self) -> Access:
        """The access, determined on first use.

        Raises: ClusterError, UsageError: there is none.
        """
        with self._connecting:  # the threads of all watches need it at the same time
            if self._access is None:
                self._access = self.connect()
            return self._access

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        *,
        content: str = JSON,
        is_answer: Callable[[ApiError], bool] = _is_never_an_answer,
    ) -> bytes:
        """Return the body of the answer.

        ``is_answer`` is whether a rejection is a valid result, which is not retried.

        Raises: ApiError: the API rejected the call, or did not respond to any attempt.
        """
        target = f"{path}?{urlencode(query, quote_via=quote)}" if query else path
        renewed = False
        pause = _PAUSE_S
        for left in reversed(range(ATTEMPTS)):
            self.confirm()
            begin = time.perf_counter()
            try:
                answer = self._call_once(method, target, body, content)
            except ApiError as error:
                self._measure(method, path, str(error.status), begin)
                if error.status == UNAUTHORIZED and left and not renewed:
                    renewed = True
                    continue
                if not left or not error.is_transient or is_answer(error):
                    if error.status == NOT_FOUND:
                        self.on_answer(method, path, body, None)
                    raise
                self.wait(min(max(pause, error.retry_after_s), _PAUSE_MAX_S))
                pause *= 2
            else:
                self._measure(method, path, "ok", begin)
                self.on_answer(method, path, body, answer)
                return answer
        raise AssertionError("the last attempt returns or raises")

    def _measure(self, method: str, path: str, outcome: str, begin: float) -> None:
        if self.meter is not None:
            seconds = time.perf_counter() - begin
            self.meter("kubernetes", f"{method} {resource_of(path)}", outcome, seconds)

    def stream_lines(
        self, path: str, query: Mapping[str, str], silence_s: float
    ) -> Generator[bytes, None, None]:
        """Yield a response line by line, as it arrives, until the API ends it, without retries.

        The API may be silent for ``silence_s``. Raises: ApiError: the API rejected the call, did
        not respond, or was silent for too long.
        """
        target = f"{path}?{urlencode(query, quote_via=quote)}"
        with self._translate_errors(f"GET {target}"):
            answer = self._request("GET", target, None, JSON, silence_s)
            self._streams.add(answer)
            try:
                if self._is_interrupted:  # after the call began, and before it was in the set
                    raise ApiError(f"GET {target}", NO_ANSWER, "interrupted", "")
                rest = b""
                for part in answer.stream(_PART):
                    *complete, rest = (rest + part).split(b"\n")
                    yield from complete
            finally:
                self._streams.discard(answer)
                answer.close()

    def interrupt(self) -> None:
        """End every response that is being read line by line, in any thread, and read no other."""
        self._is_interrupted = True
        for answer in tuple(self._streams):
            with suppress(ValueError, RuntimeError, OSError):  # it has already ended
                answer.shutdown()

    def _call_once(self, method: str, target: str, body: object, content: str) -> bytes:
        with self._translate_errors(f"{method} {target}"):
            answer: bytes = self._request(method, target, body, content, self.timeout_s).read()
            return answer

    def _request(
        self, method: str, target: str, body: object, content: str, silence_s: float
    ) -> HTTPResponse:
        """Make a call once, by the client's connection, without its models.

        If it is not authorized, the access is determined again for the next one.
        """
        client = self.access.client
        headers = {"Accept": JSON, "User-Agent": client.user_agent}
        if body is not None:
            headers["Content-Type"] = content
        client.update_params_for_auth(headers, [], ["BearerToken"], target, method, body)
        sent = datetime.now(UTC)
        answer: HTTPResponse = client.rest_client.request(
            method,
            f"{self.access.server}{target}",
            headers=headers,
            body=body,
            _request_timeout=(_CONNECT_S, silence_s),
        ).response
        self._report_time(answer.headers.get("Date", ""), sent)
        if answer.status in _OK:
            return answer
        if answer.status == UNAUTHORIZED:
            self._access = None
        retry_after = answer.headers.get("Retry-After", "")
        call = f"{method} {target}"
        raise response_error(call, answer.status, answer.reason or "", answer.read(), retry_after)

    def _report_time(self, stated: str, sent: datetime) -> None:
        """Report the time of the API server, if a response states it."""
        received = datetime.now(UTC)
        with suppress(ValueError):
            at = parsedate_to_datetime(stated)
            self.on_time(at if at.tzinfo is not None else at.replace(tzinfo=UTC), sent, received)

    @contextmanager
    def _translate_errors(self, call: str) -> Iterator[None]:
        """Convert a connection error to our error."""
        from kubernetes.client.exceptions import ApiException
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError, ReadTimeoutError

        try:
            yield
        except ApiException as error:  # of TLS: a retry changes nothing
            raise ApiError(call, -1, "no trusted connection", str(error.reason)) from error
        except ReadTimeoutError as error:
            raise ApiError(call, NO_ANSWER, SILENT, f"from {self.access}") from error
        except (HTTPError, OSError, ConfigException) as error:
            what = f"{type(error).__name__} from {self.access}"
            raise ApiError(call, NO_ANSWER, "no answer", what) from error


class _Version(msgspec.Struct, frozen=True):
    git_version: str = msgspec.field(default="?", name="gitVersion")


class AccessAnswer(msgspec.Struct, frozen=True):
    """Whether the API server allows a call, and why not if it says so."""

    allowed: bool
    reason: str = ""


class _Review(msgspec.Struct, frozen=True):
    status: AccessAnswer


def cluster_checks(api: Api, settings: Settings, *, writes: bool) -> Iterator[Check]:
    """Yield whether the API responds and is the right one, then each permission.

    Without ``writes``, only the permissions of a plan are checked. Nothing is tried: the API itself
    reports what it would allow.
    """
    try:
        access = api.access
        version = decode_json(api.call("GET", "/version"), _Version)
    except (ReconcilerError, msgspec.MsgspecError) as error:
        remedy = error.remedy if isinstance(error, ReconcilerError) else ""
        text = f"{error.where}: {error.message}" if isinstance(error, ReconcilerError) else error
        text = f"not reachable: {text}".replace(": cluster: ", ": ", 1)
        yield failed_check("cluster", "", text, remedy)
        return
    text = f"{version.git_version}, with credentials of {access.name}"
    yield passed_check("cluster", access.server, text)
    try:
        expect_one_cluster(access, settings)
    except ReconcilerError as error:
        yield failed_check("cluster", access.server, error.message, error.remedy)
    for permission in permissions_of(writes=writes, settings=settings):
        yield _permission_check(api, permission)


def find_pods(api: Api, selector: str) -> tuple[Pod, ...]:
    """Return the first pods of any namespace that match a label selector and can be read.

    Raises:
        ReconcilerError: the API server did not list them.
    """
    target = f"/api/v1/pods?labelSelector={quote(selector, safe='')}&limit=100"
    found = []
    for raw in _decode_page(api.call("GET", target), POD).items or ():
        with suppress(msgspec.MsgspecError):
            found.append(decode(decode_json(raw), Pod))
    return tuple(found)


def missing_permissions(api: Api, calls: Calls) -> list[str]:
    """Return which permissions of ``run`` are missing, each with the rule that grants it.

    All are checked at the same time. Permissions without a result are not reported as missing.
    """
    checks = {p.name: partial(_permission_check, api, p) for p in PERMISSIONS}
    answers = calls.call_all(checks)
    missing = []
    for permission in PERMISSIONS:
        check = answers[permission.name].value
        if isinstance(check, Check) and check.verdict is Verdict.FAILED:
            missing.append(
                f"missing permission: {permission.verb} {permission.resource} "
                f"({permission.why}); add to the ClusterRole: {permission.rule}"
            )
    return missing


def review_access(api: Api, verb: str, group: str, resource: str) -> AccessAnswer:
    """Return whether the API server allows us a verb on ``resource``, or ``resource/part`` of it.

    Raises:
        ClusterError: it does not answer.
        MsgspecError: its answer cannot be read.
    """
    name, _, part = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": name}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**attributes, **({"subresource": part} if part else {})}},
    }
    return decode_json(api.call("POST", REVIEWS, body=body), _Review).status


def _permission_check(api: Api, permission: Permission) -> Check:
    try:
        answer = review_access(api, permission.verb, permission.group, permission.resource)
    except (ReconcilerError, msgspec.MsgspecError) as error:
        return unknown_check("rbac", permission.name, f"cannot check: {error}")
    if answer.allowed:
        return passed_check("rbac", permission.name, permission.why)
    message = f"is forbidden{': ' if answer.reason else ''}{answer.reason}"
    return failed_check("rbac", permission.name, f"{message} ({permission.why})", ALLOW_IT)
