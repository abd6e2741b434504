"""A small Kubernetes API on a port of this machine: objects in memory, and the rules that matter.

It implements what callers rely on: paginated lists whose tokens expire, resource versions and
conflicts between writers, preconditions, evictions refused by budgets, graceful deletion, RBAC with
the rules of a ClusterRole. Tests insert faults before calls.
"""

from __future__ import annotations

import copy
import json
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Event, RLock, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from reconciler.adapters.kubernetes.kinds import (
    EVENT,
    OBSERVED,
    OF_KARPENTER,
    VOLUME_ATTACHMENT,
)
from reconciler.source.plainyaml import dump

TOKEN = "s3cret"
Object = dict[str, Any]
KINDS = {
    (kind.group, kind.resource): kind
    for kind in (*OBSERVED, *OF_KARPENTER, VOLUME_ATTACHMENT, EVENT)
}
GRANTED_TO_ALL: list[Object] = [
    {
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
        "verbs": ["create"],
    },
    {
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["selfsubjectreviews"],
        "verbs": ["create"],
    },
    {"nonResourceURLs": ["/api", "/api/*", "/healthz", "/version"], "verbs": ["get"]},
]
"""The rules of ``system:basic-user`` and ``system:discovery``, which every account has."""
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v\w+)"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[a-z0-9]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?"
)
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


class RefusedError(Exception):
    """An error response."""

    def __init__(self, status: int, reason: str, message: str = "", retry_after: str = "") -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message
        self.retry_after = retry_after


class ResetError(Exception):
    """The connection breaks, before the call has its effect or (``late``) after."""

    def __init__(self, *, late: bool = False) -> None:
        super().__init__()
        self.late = late


@dataclass(frozen=True)
class Call:
    """A call as received."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    group: str
    namespace: str
    resource: str
    name: str
    part: str

    @property
    def verb(self) -> str:
        if self.method == "GET" and not self.name:
            return "watch" if "watch" in self.query else "list"
        return _VERBS[self.method]

    @property
    def permission(self) -> tuple[str, str, str]:
        part = f"/{self.part}" if self.part else ""
        return self.verb, self.group, f"{self.resource}{part}"


@dataclass
class Kube:
    """The objects of a cluster, and the permissions.

    ``fault`` is called before each call and may raise. ``rules`` are those of a ClusterRole, None
    if everything is allowed. ``namespaced`` has those of Roles by namespace. ``lists_rules`` is
    whether the server can list the rules of its client completely. ``leaving`` keeps deleted pods
    of a node as terminating until ``sweep``. A watch sends the existing objects, or the events
    after its ``resourceVersion``, then ``told`` line by line and a bookmark, and ends, unless it
    continues (``watches``) with changes until its timeout. Lists omit ``hidden`` objects. ``date``
    is stated in place of the time.
    """

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    rules: list[Object] | None = None
    namespaced: dict[str, list[Object]] = field(default_factory=dict)
    lists_rules: bool = True
    fault: Callable[[Call], None] = lambda _: None
    page_max: int = 500
    token: str = TOKEN
    leaving: bool = False
    absent: frozenset[str] = frozenset(
        {"capacitybuffers", "nodeclaims", "nodepools", "nodeoverlays"}
    )
    injected: list[bytes] = field(default_factory=list)
    watches: bool = False
    hidden: frozenset[str] = frozenset()
    date: str | None = None
    objects: dict[tuple[str, str, str, str], Object] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    applied: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    lock: Any = field(default_factory=RLock)
    sent: int = 0
    streams: dict[int, int] = field(default_factory=dict)
    _version: int = 100
    _events: list[tuple[int, tuple[str, str], bytes]] = field(default_factory=list)
    _compacted: int = 0

    def __post_init__(self) -> None:
        self.news, self.progress = Condition(self.lock), Condition(self.lock)

    _tokens: dict[str, tuple[int, str, str]] = field(default_factory=dict)

    def add(self, item: Object) -> Object:
        """Add an object, replacing one of the same name."""
        with self.lock:
            kind = next(k for k in KINDS.values() if k.kind == item["kind"])
            item = copy.deepcopy(item)
            meta = item["metadata"]
            if kind.kind in ("Pod", "PodDisruptionBudget", "PersistentVolumeClaim", "DaemonSet"):
                meta.setdefault("namespace", "default")
            self._version += 1
            meta.setdefault("uid", f"uid-{self._version}")
            meta["resourceVersion"] = str(self._version)
            key = (kind.group, kind.resource, meta.get("namespace", ""), meta["name"])
            known = key in self.objects
            self.objects[key] = item
            self._send_event("MODIFIED" if known else "ADDED", item)
            return item

    def of(self, resource: str) -> dict[str, Object]:
        """Return the objects of a kind by name."""
        with self.lock:
            return {key[3]: o for key, o in sorted(self.objects.items()) if key[1] == resource}

    def change(self, resource: str, name: str, change: Callable[[Object], None]) -> None:
        """Change an object as another writer would."""
        with self.lock:
            item = self.of(resource)[name]
            change(item)
            self._touch(item)

    def delete(self, resource: str, name: str) -> None:
        """Delete an object as ``kubectl delete`` does: one with finalizers waits for them."""
        with self.lock:
            key = next(k for k in self.objects if (k[1], k[3]) == (resource, name))
            self._delete(key, self.objects[key], None)

    def remove(self, resource: str, name: str) -> None:
        """Remove an object regardless of its finalizers."""
        with self.lock:
            for key in [k for k in self.objects if (k[1], k[3]) == (resource, name)]:
                self._remove(key)

    def sweep(self) -> None:
        """Remove every terminating pod."""
        with self.lock:
            for key, item in list(self.objects.items()):
                if key[1] == "pods" and "deletionTimestamp" in item["metadata"]:
                    self._remove(key)

    def expire_tokens(self) -> None:
        """Expire the continue tokens of lists."""
        self._tokens.clear()

    def compact(self) -> None:
        """Drop the event history, so that no watch can start before now."""
        with self.lock:
            self._compacted = self._version

    def catch_up(self) -> None:
        """Return after every open watch has sent all events until now."""
        until = time.monotonic() + 10.0
        with self.progress:
            wanted = len(self._events)
            while any(sent < wanted for sent in self.streams.values()):
                assert time.monotonic() < until, "a watch sends nothing"
                self.progress.wait(0.05)

    def made(self) -> list[str]:
        """Return the calls that were made, abbreviated."""
        return [f"{c.method} {c.path}" for c in self.calls]

    def answer(self, call: Call) -> Object:
        """Execute a call."""
        if call.path == "/version":
            return {"gitVersion": "v1.33.2"}
        if call.resource == "selfsubjectaccessreviews":
            return self._reviewed(call.body["spec"]["resourceAttributes"])
        if call.resource == "selfsubjectrulesreviews":
            return self._listed_rules(call.body["spec"]["namespace"])
        if not self._allows(*call.permission):
            message = f"{call.resource} is forbidden: User cannot {call.verb} {call.resource}"
            raise RefusedError(403, "Forbidden", message)
        if (call.group, call.resource) not in KINDS or call.resource in self.absent:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        if call.verb in ("list", "watch"):
            if int(call.query.get("resourceVersion", self._compacted)) < self._compacted:
                raise RefusedError(410, "Expired", "too old resource version")
            return self._list(call)
        if call.verb == "create" and not call.name:
            return self._create(call)
        return self._carried_out(call)

    def _carried_out(self, call: Call) -> Object:
        key = (call.group, call.resource, call.namespace, call.name)
        item = self.objects.get(key)
        if "fieldManager" in call.query:
            return self._apply(key, item, call)
        if item is None:
            raise RefusedError(404, "NotFound", f'{call.resource} "{call.name}" not found')
        if call.part == "eviction":
            return self._evict(key, item, call.body)
        if call.method == "GET":
            return item
        if call.method == "PATCH":
            return self._patch(key, item, call.body)
        return self._delete(key, item, call.body)

    def _allows(self, verb: str, group: str, resource: str) -> bool:
        return self.rules is None or any(
            group in r["apiGroups"] and resource in r["resources"] and verb in r["verbs"]
            for r in self.rules
            if "nonResourceURLs" not in r
        )

    def _reviewed(self, review: Object) -> Object:
        part = f"/{review['subresource']}" if "subresource" in review else ""
        allowed = self._allows(review["verb"], review["group"], review["resource"] + part)
        return {"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}

    def _listed_rules(self, namespace: str) -> Object:
        """Return the rules in a namespace; a server with a webhook lists only those of RBAC."""
        everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        rules = everything if self.rules is None else self.rules
        found = [*GRANTED_TO_ALL, *rules, *self.namespaced.get(namespace, ())]
        status: Object = {
            "resourceRules": [rule for rule in found if "nonResourceURLs" not in rule],
            "nonResourceRules": [rule for rule in found if "nonResourceURLs" in rule],
            "incomplete": not self.lists_rules,
        }
        if not self.lists_rules:
            status["resourceRules"] = [*GRANTED_TO_ALL[:2]]
            status["evaluationError"] = "webhook authorizer does not support user rule resolution"
        return {"kind": "SelfSubjectRulesReview", "status": status}

    def _list(self, call: Call) -> Object:
        kind = KINDS[call.group, call.resource]
        wanted = call.query.get("fieldSelector", "")
        rows = [
            {k: v for k, v in item.items() if k not in ("kind", "apiVersion")}
            for key, item in sorted(self.objects.items())
            if key[:2] == (call.group, call.resource) and _selected(item, wanted)
            if key[3] not in self.hidden
        ]
        start, token = 0, call.query.get("continue")
        if token is not None:
            if token not in self._tokens:
                raise RefusedError(410, "Expired", "The provided continue parameter is too old")
            start = self._tokens[token][0]
        size = min(int(call.query.get("limit", "500")), self.page_max)
        meta: Object = {"resourceVersion": str(self._version)}
        if start + size < len(rows):
            meta["continue"] = f"{call.resource}-{start + size}"
            self._tokens[meta["continue"]] = (start + size, call.resource, wanted)
        page = rows[start : start + size]
        return {"kind": f"{kind.kind}List", "metadata": meta, "items": page or None}

    def watched(self, call: Call) -> Iterator[bytes]:
        """Yield the events of a watch; anything may change between two of them."""
        if "resourceVersion" in call.query:
            yield from self._followed(call, int(call.query["resourceVersion"]))
            return
        sent: dict[str, Object] = {}
        while True:
            with self.lock:
                wanted = call.query.get("fieldSelector", "")
                there = {
                    item["metadata"]["uid"]: copy.deepcopy(item)
                    for key, item in sorted(self.objects.items())
                    if key[:2] == (call.group, call.resource) and _selected(item, wanted)
                }
                kinds = {uid: "MODIFIED" if uid in sent else "ADDED" for uid in there}
                news = [(kinds[u], item) for u, item in there.items() if sent.get(u) != item]
                news += [("DELETED", item) for uid, item in sent.items() if uid not in there]
                sent = there
            for kind, item in news:
                yield json.dumps({"type": kind, "object": item}).encode() + b"\n"
            yield from self.injected
            if not self.watches:
                return
            yield b""

    def _followed(self, call: Call, version: int) -> Iterator[bytes]:
        """Yield the events after a version, and a bookmark at the end."""
        until = time.monotonic() + float(call.query.get("timeoutSeconds", "60"))
        seen, reached, stream = 0, version, id(call)
        try:
            while True:
                with self.news:
                    if self.watches and seen == len(self._events):
                        self.news.wait(0.05)
                    news = self._events[seen:]
                    seen, reached = len(self._events), self._version
                for at, kind, line in news:
                    if at > version and kind == (call.group, call.resource):
                        yield line
                yield from self.injected
                with self.progress:
                    self.streams[stream] = seen
                    self.progress.notify_all()
                if not self.watches or time.monotonic() >= until:
                    break
        finally:
            with self.progress:
                self.streams.pop(stream, None)
                self.progress.notify_all()
        if call.query.get("allowWatchBookmarks") == "true":
            kind = KINDS[call.group, call.resource]
            meta = {"resourceVersion": str(reached)}
            bookmark = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}
            yield json.dumps({"type": "BOOKMARK", "object": bookmark}).encode() + b"\n"

    def _create(self, call: Call) -> Object:
        name = call.body["metadata"].get("name", "")
        if (call.group, call.resource, call.namespace, name) in self.objects:
            raise RefusedError(409, "AlreadyExists", f'{call.resource} "{name}" already exists')
        return self.add(call.body)

    def _patch(self, key: tuple[str, str, str, str], item: Object, patch: Object) -> Object:
        meta = item["metadata"]
        of_object = patch.get("metadata", {})
        expected = of_object.get("resourceVersion", meta["resourceVersion"])
        if expected != meta["resourceVersion"]:
            raise RefusedError(409, "Conflict", "the object has been modified")
        added = set(of_object.get("finalizers") or ()) - set(meta.get("finalizers") or ())
        if added and "deletionTimestamp" in meta:
            raise RefusedError(422, "Invalid", "no new finalizers if the object is being deleted")
        _merge(item, copy.deepcopy(patch))
        self._touch(item)
        if "deletionTimestamp" in meta and "finalizers" in meta and not meta["finalizers"]:
            self._remove(key)
        return item

    def _apply(self, key: tuple[str, str, str, str], item: Object | None, call: Call) -> Object:
        """Apply on the server: all of ``spec`` is the manager's, and of the labels what it names.

        Without ``force`` it takes no field that another writer has set otherwise. An object that
        does not exist is created, which needs that right as well.
        """
        body = copy.deepcopy(call.body)
        if item is None:
            if not self._allows("create", call.group, call.resource):
                message = f"{call.resource} is forbidden: User cannot create {call.resource}"
                raise RefusedError(403, "Forbidden", message)
            return self.add(body)
        meta, wanted = item["metadata"], body["metadata"]
        if wanted.pop("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
            raise RefusedError(409, "Conflict", "the object has been modified")
        if "spec" not in body:
            return self._apply_annotations(item, wanted, call.query["fieldManager"])
        if call.query.get("force") != "true" and item.get("spec", {}) != body["spec"]:
            raise RefusedError(409, "Conflict", "Apply failed with 1 conflict: .spec")
        item["spec"] = body["spec"]
        _merge(meta, wanted)
        self._touch(item)
        return item

    def _apply_annotations(self, item: Object, wanted: Object, manager: str) -> Object:
        """Apply annotations: those of other managers stay, and our own that are missing go."""
        meta = item["metadata"]
        if wanted.get("uid", meta["uid"]) != meta["uid"]:
            raise RefusedError(409, "Conflict", "uid mismatch")
        have = meta.setdefault("annotations", {})
        ours = {
            name: value
            for name, value in self.applied.get((meta["uid"], manager), {}).items()
            if have.get(name) == value  # else another writer has taken it over
        }
        new = wanted.get("annotations") or {}
        for name, value in new.items():
            if have.get(name, value) != value and name not in ours:
                raise RefusedError(409, "Conflict", f"Apply failed with 1 conflict: {name}")
        for name in ours.keys() - new.keys():
            del have[name]
        have.update(new)
        self.applied[meta["uid"], manager] = dict(new)
        self._touch(item)
        return item

    def _evict(self, key: tuple[str, str, str, str], pod: Object, body: Object) -> Object:
        _same(pod, body.get("deleteOptions") or {})
        if "deletionTimestamp" not in pod["metadata"]:
            budgets = [b for b in self.of("poddisruptionbudgets").values() if _covers(b, pod)]
            if len(budgets) > 1:
                message = "This pod has more than one PodDisruptionBudget, which is not supported"
                raise RefusedError(500, "InternalError", message)
            if budgets:
                status = budgets[0].setdefault("status", {})
                if status.get("disruptionsAllowed", 0) <= 0:
                    message = "Cannot evict pod as it would violate the pod's disruption budget."
                    raise RefusedError(429, "TooManyRequests", message)
                status["disruptionsAllowed"] -= 1
                self._touch(budgets[0])
        self._leave(key, pod, pod["spec"].get("terminationGracePeriodSeconds", 30))
        return {"kind": "Status", "status": "Success"}

    def _delete(self, key: tuple[str, str, str, str], item: Object, body: Object | None) -> Object:
        _same(item, body or {})
        if key[1] == "pods":
            self._leave(key, item, (body or {}).get("gracePeriodSeconds", 30))
        elif item["metadata"].get("finalizers"):
            now = f"{self.now():%Y-%m-%dT%H:%M:%SZ}"
            if item["metadata"].setdefault("deletionTimestamp", now) == now:
                self._touch(item)
        else:
            self._remove(key)
        if key in self.objects or key[1] == "pods":
            return item
        return {"kind": "Status", "status": "Success"}

    def _leave(self, key: tuple[str, str, str, str], pod: Object, grace_s: int) -> None:
        if not self.leaving:
            self._remove(key)
            return
        by = f"{self.now() + timedelta(seconds=grace_s):%Y-%m-%dT%H:%M:%SZ}"
        meta = pod["metadata"]
        meta["deletionTimestamp"] = min(by, meta.get("deletionTimestamp", by))
        meta["deletionGracePeriodSeconds"] = grace_s
        self._touch(pod)

    def _touch(self, item: Object) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._send_event("MODIFIED", item)

    def _remove(self, key: tuple[str, str, str, str]) -> None:
        item = self.objects.pop(key)
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._send_event("DELETED", item)

    def _send_event(self, what: str, item: Object) -> None:
        kind = next(k for k in KINDS.values() if k.kind == item["kind"])
        line = json.dumps({"type": what, "object": item}).encode() + b"\n"
        with self.news:
            self._events.append((self._version, (kind.group, kind.resource), line))
            self.news.notify_all()


def _selected(item: Object, selector: str) -> bool:
    return all(_has_field(item, part) for part in selector.split(","))


def _has_field(item: Object, selector: str) -> bool:
    path, _, value = selector.partition("=")
    found: Any = item
    for name in path.split(".") if path else ():
        found = found.get(name, {})
    return not path or (found or "") == value


def _covers(budget: Object, pod: Object) -> bool:
    wanted = budget["spec"]["selector"]["matchLabels"].items()
    return wanted <= pod["metadata"].get("labels", {}).items()


def _same(item: Object, options: Object) -> None:
    for name, value in options.get("preconditions", {}).items():
        if value != item["metadata"][name]:
            raise RefusedError(409, "Conflict", f"the {name} in the precondition does not match")


def _merge(into: Object, patch: Object) -> None:
    """Apply a JSON merge patch (RFC 7386)."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


@contextmanager
def serving(kube: Kube) -> Iterator[str]:
    """Serve on loopback while the block runs, and yield the URL."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.kube = kube
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_kubeconfig(path: Path, server: str, *, token: str = TOKEN, user: Any = None) -> Path:
    """Write a kubeconfig whose current context is ``shop``."""
    named = {
        "clusters": [{"name": "shop", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": user or {"token": token}}],
        "contexts": [{"name": "shop", "context": {"cluster": "shop", "user": "me"}}],
    }
    whole = {"apiVersion": "v1", "kind": "Config", "current-context": "shop", **named}
    path.write_text(dump(whole))
    return path


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    kube: Kube
    pause = Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        kube, call = self.server.kube, self._call()
        with kube.lock:
            kube.calls.append(call)
            late = False
            try:
                late = self._admitted(call)
                status, answer_body, wait = 200, kube.answer(call), ""
            except RefusedError as refused:
                status, wait = refused.status, refused.retry_after
                answer_body = {
                    "kind": "Status",
                    "reason": refused.reason,
                    "message": refused.message,
                }
            except ResetError:
                late = True
            body = b"" if late else json.dumps(answer_body).encode()
        if late:
            self._break()
            return
        if status == 200 and call.verb == "watch":
            self._stream(kube.watched(call))
            return
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if wait:
            self.send_header("Retry-After", wait)
        self.end_headers()
        kube.sent += len(body)
        self.wfile.write(body)

    do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - as http.server names them

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the time that responses state."""
        stated = self.server.kube.date
        return super().date_time_string(timestamp) if stated is None else stated

    def _admitted(self, call: Call) -> bool:
        """Apply faults; return whether the answer is lost."""
        if self.headers.get("Authorization") != f"Bearer {self.server.kube.token}":
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        try:
            self.server.kube.fault(call)
        except ResetError as broken:
            if not broken.late:
                raise
            return True
        return False

    def _call(self) -> Call:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        content = self.rfile.read(length) if length else b""
        found = _PATH.fullmatch(url.path)
        parts = found.groupdict("") if found is not None else {}
        return Call(
            self.command,
            url.path,
            {key: values[0] for key, values in parse_qs(url.query).items()},
            json.loads(content) if content else None,
            parts.get("group", ""),
            unquote(parts.get("namespace", "")),
            parts.get("resource", ""),
            unquote(parts.get("name", "")),
            parts.get("part", ""),
        )

    def _stream(self, parts: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in parts:
            if part == b"RESET":
                self._break()
                return
            if part:
                self.server.kube.sent += len(part)
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            else:
                self.server.pause.wait(0.01)
        self.wfile.write(b"0\r\n\r\n")

    def _break(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server has it
        """Say nothing."""
