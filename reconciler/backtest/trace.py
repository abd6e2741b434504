"""Traces of workloads: which pods were created when, what they request, and how long they run.

Two formats are read, plain or gzipped, and recognized by their first line:

- ours, JSON Lines: a header (``kind: Trace``), a line for each class of pods with its labels and
  spec, and for each pod with its class and its times in seconds from the beginning. A trace that
  was recorded from a fleet also has lines for its DaemonSets and nodes, spot prices and refusals;
- openb, the CSV of Alibaba's ``cluster-trace-gpu-v2023``. GPUs of any model become
  ``nvidia.com/gpu``, and a share of a GPU is rounded up to one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from reconciler.backtest.market import (
    NO_MARKET,
    PRICE_MAX,
    MarketTrace,
    TracedPrices,
    TracedRefusal,
    market_of,
)
from reconciler.model.decode import decode_json, describe_mismatch, expect_values
from reconciler.model.errors import UnreadableError
from reconciler.model.history import RecordedNode
from reconciler.model.kubernetes.cluster import DaemonSet, DaemonSetSpec, PodTemplate
from reconciler.model.kubernetes.metadata import Metadata, OwnerReference
from reconciler.model.kubernetes.pod import Container, Pod, PodSpec, ResourceRequirements
from reconciler.model.kubernetes.taint import Toleration
from reconciler.model.resources import CPU, MEMORY
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.visible import one_line
from reconciler.observed.isolation import OBJECT_BYTES_MAX, check_spec
from reconciler.source.compressed import decompress

API: Final = "reconciler/v1"
KIND: Final = "Trace"
NAMESPACE: Final = "trace"
GPU: Final = "nvidia.com/gpu"
BYTES_MAX: Final = 1 << 30
"""The maximum size of a trace after decompression."""
PODS_MAX: Final = 2_000_000
SECONDS_MAX: Final = 10 * 366 * 86_400
SECONDS_DIGITS: Final = 6
"""Times are rounded to the microsecond."""
_SPLIT: Final = "split it into shorter traces"
_LINE: Final = re.compile(rb"\S[^\n]*")
_OPENB: Final = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
"""The columns of openb that are read; others are ignored."""
_AMOUNT_MAX: Final = 10**12


@dataclass(frozen=True, slots=True)
class TracedPod:
    """A pod of a trace; times are seconds from its beginning.

    ``life`` is how long the pod runs once it is bound, None to the end of the trace; without a
    time when it was ``bound``, it ran from its creation. ``pod`` has no name of a node; pods of one
    class share its spec.
    """

    created: float
    life: float | None
    pod: Pod
    bound: float | None = None

    @property
    def started(self) -> float:
        """When it started."""
        return self.created if self.bound is None else self.bound

    @property
    def deleted(self) -> float | None:
        """When it ended, None if it runs to the end of the trace."""
        return None if self.life is None else round(self.started + self.life, SECONDS_DIGITS)

    def with_name(self, name: str) -> Pod:
        """Return the pod with another name."""
        return msgspec.structs.replace(
            self.pod, metadata=msgspec.structs.replace(self.pod.metadata, name=name)
        )


class TracedNode(RecordedNode, frozen=True, forbid_unknown_fields=True):
    """A node that the fleet had; times are as those of a pod, ``price`` is in USD an hour."""

    price: float | None
    created: float
    deleted: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Pods by the time of their creation; ``rounded`` of them requested a share of a GPU.

    ``seconds`` is the length. A trace that was recorded from a fleet has the ``nodes`` that ran
    the pods, the ``daemons`` of all its time, the ``market`` it launched in, and when it began.
    ``digest`` is the SHA-256 of what it was read from, without compression.
    """

    pods: tuple[TracedPod, ...]
    seconds: float
    rounded: int = 0
    nodes: tuple[TracedNode, ...] = ()
    daemons: tuple[DaemonSet, ...] = ()
    begin: datetime | None = None
    market: MarketTrace = NO_MARKET
    digest: str = field(default="", compare=False)

    @property
    def workload_only(self) -> Trace:
        """The same trace without spot prices and refusals."""
        if not self.market:
            return self
        return replace(self, market=NO_MARKET, digest=f"{self.digest} workload")


class TraceHeader(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """The first line of our own format; ``rounded_gpus`` and ``begin`` are as in ``Trace``."""

    api_version: str
    kind: str
    seconds: float
    rounded_gpus: int = 0
    begin: datetime | None = None


class TraceClass(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A class of pods in our own format; or a DaemonSet, with a pod on every eligible node.

    A class without an ``owner`` is one of Jobs, of which each has one pod.
    """

    name: str = msgspec.field(name="class")
    spec: PodSpec
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner: OwnerReference | None = None
    is_daemon_set: bool = msgspec.field(default=False, name="daemonSet")


class TraceRow(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A pod in our own format; times are seconds from the beginning."""

    pod: str
    pod_class: str = msgspec.field(name="class")
    created: float
    bound: float | None = None
    deleted: float | None = None


def read_trace(content: bytes, where: str) -> Trace:
    """Return the trace in ``content``, from the file ``where``.

    Raises:
        UnreadableError: it is too large, or a line cannot be read.
    """
    plain = decompress(content, BYTES_MAX, where, size_remedy=_SPLIT)
    expect_values(plain, where, remedy=_SPLIT)
    digest = sha256(plain).hexdigest()
    plain = plain.removeprefix(b"\xef\xbb\xbf")
    first = next(_text_lines(plain, where), (1, ""))[1]
    if first.startswith("{"):
        return replace(_parse_own_format(plain, where), digest=digest)
    columns = [column.strip() for column in first.split(",")]
    if set(_OPENB) <= set(columns):
        return replace(_parse_openb(plain, where), digest=digest)
    raise UnreadableError(
        f"is not a trace: its first line is {quote_value(first, 80)}",
        where=f"{where}:1",
        remedy=f"pass a trace of reconciler, or a CSV with the columns {', '.join(_OPENB)}",
    )


def _text_lines(plain: bytes, where: str) -> Iterator[tuple[int, str]]:
    """Yield each line that is not blank, with its number, without the spaces around it.

    Lines are cut one by one: a list of a billion empty ones takes more memory than a machine has.
    """
    number, position = 1, 0
    for found in _LINE.finditer(plain):
        number += plain.count(b"\n", position, found.start())
        position = found.start()
        if found.end() - position > OBJECT_BYTES_MAX:
            raise _line_error(where, number, f"has more than {OBJECT_BYTES_MAX >> 20} MiB")
        try:
            yield number, found[0].rstrip().decode()
        except UnicodeDecodeError as error:
            raise _line_error(where, number, "is not UTF-8") from error


def _line_error(where: str, line: int, message: str) -> UnreadableError:
    return UnreadableError(message, where=f"{where}:{line}", remedy="correct or remove the line")


def _parse_own_format(plain: bytes, where: str) -> Trace:
    classes: dict[str, TraceClass] = {}
    pods: list[TracedPod] = []
    nodes: list[TracedNode] = []
    market: list[TracedPrices | TracedRefusal] = []
    names: set[str] = set()
    header: TraceHeader | None = None
    for count, (number, line) in enumerate(_text_lines(plain, where), 1):
        try:
            if header is None:
                header = _parse_header(line, where)
            elif '"spec"' in line:
                made = _parse_class(line, where, number)
                classes[made.name] = made
            elif '"nodePool"' in line:
                nodes.append(_parse_node(line, where, number))
            elif '"spotPrices"' in line or '"refusedFrom"' in line:
                market.append(_parse_market(line, where, number))
            else:
                row = decode_json(line, TraceRow)
                if row.pod in names:
                    raise _line_error(
                        where, number, f"pod {quote_value(row.pod, 80)} is defined twice"
                    )
                names.add(row.pod)
                pods.append(_parse_pod(row, classes, where, number))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _line_error(where, number, one_line(describe_mismatch(error))[:200]) from error
        _expect_within_limit(len(pods), "pods", where, number)
        _expect_within_limit(count - len(pods), "classes, nodes and prices", where, number)
    if header is None:
        raise _line_error(where, 1, "is empty")
    daemons = [made for made in classes.values() if made.is_daemon_set]
    return replace(
        _make_trace(pods, header.seconds, header.rounded_gpus),
        nodes=tuple(sorted(nodes, key=lambda node: (node.created, node.node))),
        daemons=tuple(traced_daemon(made.name, made) for made in sorted(daemons, key=_class_name)),
        begin=header.begin,
        market=market_of(market),
    )


def _parse_class(line: str, where: str, number: int) -> TraceClass:
    made = decode_json(line, TraceClass)
    try:
        check_spec(made.spec)
    except ValueError as error:
        raise _line_error(where, number, one_line(str(error))[:200]) from error
    return made


def _parse_market(line: str, where: str, number: int) -> TracedPrices | TracedRefusal:
    item: TracedPrices | TracedRefusal
    if '"spotPrices"' in line:
        item = decode_json(line, TracedPrices)
    else:
        item = decode_json(line, TracedRefusal)
    problem = item.problem(SECONDS_MAX)
    if problem:
        raise _line_error(where, number, one_line(problem))
    return item


def _class_name(made: TraceClass) -> str:
    return made.name


def _parse_node(line: str, where: str, number: int) -> TracedNode:
    node = decode_json(line, TracedNode)
    _expect_order(node.created, None, node.deleted, where, number)
    if node.price is not None and not 0 <= node.price <= PRICE_MAX:
        raise _line_error(where, number, f"price: {node.price} is not between 0 and {PRICE_MAX:,}")
    return node


class _TracedClass(Protocol):
    """What classes of pods have in common, in a file and in the record of the daemon."""

    @property
    def spec(self) -> PodSpec: ...
    @property
    def labels(self) -> dict[str, str]: ...
    @property
    def annotations(self) -> dict[str, str]: ...
    @property
    def owner(self) -> OwnerReference | None: ...


def traced_pod(
    key: str, kind: _TracedClass, created: float, bound: float | None, deleted: float | None
) -> TracedPod:
    """Return the pod ``namespace/name`` of a class, with its times in seconds."""
    namespace, _, name = key.rpartition("/")
    pod = _make_pod(name, kind, namespace or NAMESPACE)
    return TracedPod(created, _life(created, bound, deleted), pod, bound)


def traced_daemon(key: str, kind: _TracedClass) -> DaemonSet:
    """Return the DaemonSet ``namespace/name`` whose pods are of a class."""
    namespace, _, name = key.rpartition("/")
    template = Metadata(labels=kind.labels, annotations=kind.annotations)
    return DaemonSet(
        metadata=Metadata(name=name, namespace=namespace or NAMESPACE),
        spec=DaemonSetSpec(template=PodTemplate(metadata=template, spec=kind.spec)),
    )


def with_unique_names(pods: Iterable[TracedPod]) -> Iterator[TracedPod]:
    """Yield the pods, each with a unique name: a StatefulSet reuses the names of its pods."""
    names: set[str] = set()
    numbers: dict[str, int] = {}
    for traced in pods:
        pod, key = traced.pod, traced.pod.key
        while pod.key in names:
            numbers[key] = number = numbers.get(key, 1) + 1
            pod = traced.with_name(f"{traced.pod.metadata.name}-{number}")
        names.add(pod.key)
        yield replace(traced, pod=pod)


def _parse_header(line: str, where: str) -> TraceHeader:
    header = decode_json(line, TraceHeader)
    if (header.api_version, header.kind) != (API, KIND):
        raise _line_error(
            where, 1, f"is {header.api_version} {header.kind}, not {API} {KIND}"[:200]
        )
    if header.rounded_gpus < 0:
        raise _line_error(where, 1, f"roundedGpus: {header.rounded_gpus} is negative")
    if not 0 <= header.seconds <= SECONDS_MAX:
        raise _line_error(where, 1, f"seconds: {header.seconds} is not between 0 and {SECONDS_MAX}")
    return header


def _parse_pod(
    row: TraceRow, classes: Mapping[str, TraceClass], where: str, line: int
) -> TracedPod:
    kind = classes.get(row.pod_class)
    if kind is None or kind.is_daemon_set:
        name = one_line(row.pod_class[:80])
        raise _line_error(where, line, f"class {quote_value(name)} is not defined on a line before")
    _expect_order(row.created, row.bound, row.deleted, where, line)
    return traced_pod(row.pod, kind, row.created, row.bound, row.deleted)


def _life(created: float, bound: float | None, deleted: float | None) -> float | None:
    if deleted is None:
        return None
    return round(deleted - (created if bound is None else bound), SECONDS_DIGITS)


def _expect_order(
    created: float, bound: float | None, deleted: float | None, where: str, line: int
) -> None:
    times = [t for t in (created, bound, deleted) if t is not None]
    if not all(0 <= t <= SECONDS_MAX for t in times):
        raise _line_error(where, line, f"a time is not between 0 and {SECONDS_MAX} seconds")
    if times != sorted(times):
        raise _line_error(where, line, "the times are not in the order created, bound, deleted")


def _make_pod(name: str, kind: _TracedClass, namespace: str = NAMESPACE) -> Pod:
    metadata = Metadata(
        name=name,
        namespace=namespace,
        labels=kind.labels,
        annotations=kind.annotations,
        owner_references=(kind.owner or job_of(name),),
    )
    return Pod(metadata=metadata, spec=kind.spec)


def job_of(name: str) -> OwnerReference:
    """Return the owner of a pod whose class has none: a separate Job."""
    return OwnerReference("Job", name, "batch/v1", controller=True)


def _parse_openb(plain: bytes, where: str) -> Trace:
    pods: list[TracedPod] = []
    kinds: dict[tuple[int, int, int], TraceClass] = {}
    names: set[str] = set()
    rounded, last = 0, 0.0
    for number, row in _read_rows(plain, where):
        facts = _parse_numbers(row, where, number)
        name = str(row["name"])
        if not name or name in names:
            raise _line_error(
                where, number, f"name: {quote_value(name, 80)} is empty or not unique"
            )
        names.add(name)
        gpus = int(facts["num_gpu"])
        rounded += gpus == 1 and 0 < facts["gpu_milli"] < 1000
        size = (int(facts["cpu_milli"]), int(facts["memory_mib"]), gpus)
        kind = kinds.setdefault(size, TraceClass("", _pod_spec(*size)))
        created, deleted = facts["creation_time"], facts["deletion_time"]
        bound = facts.get("scheduled_time")
        _expect_order(created, bound, deleted, where, number)
        pods.append(
            TracedPod(created, _life(created, bound, deleted), _make_pod(name, kind), bound)
        )
        last = max(last, deleted)
        _expect_within_limit(len(pods), "pods", where, number)
    return _make_trace(pods, last, rounded)


def _read_rows(plain: bytes, where: str) -> Iterator[tuple[int, dict[str, str]]]:
    columns: list[str] = []
    for number, line in _text_lines(plain, where):
        try:
            fields = next(csv.reader([line], strict=True))
        except csv.Error as error:
            raise _line_error(where, number, f"cannot be read as CSV: {error}") from error
        if columns and len(fields) != len(columns):
            why = "does not have as many fields as the first line"
            raise _line_error(where, number, why)
        if columns:
            yield number, dict(zip(columns, fields, strict=True))
        columns = columns or fields


def _parse_numbers(row: Mapping[str, str], where: str, line: int) -> dict[str, float]:
    """Return the numbers of a row; only the time of scheduling may be missing."""
    found: dict[str, float] = {}
    for column in _OPENB[1:]:
        text = row[column].strip()
        if not text and column in ("scheduled_time", "gpu_milli"):
            if column == "gpu_milli":
                found[column] = 0.0
            continue
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not 0 <= number <= _AMOUNT_MAX:
            raise _line_error(
                where, line, f"{column}: {quote_value(text, 40)} is not a non-negative number"
            )
        found[column] = number
    return found


def _pod_spec(cpu_milli: int, memory_mib: int, gpus: int) -> PodSpec:
    amounts: dict[str, str | int | float] = {CPU: f"{cpu_milli}m", MEMORY: f"{memory_mib}Mi"}
    tolerations: tuple[Toleration, ...] = ()
    if gpus:
        amounts[GPU] = str(gpus)
        tolerations = (Toleration(key=GPU, operator="Exists"),)
    needs = ResourceRequirements(requests=amounts, limits={GPU: str(gpus)} if gpus else {})
    return PodSpec(containers=(Container("main", needs),), tolerations=tolerations)


def _expect_within_limit(count: int, what: str, where: str, line: int) -> None:
    if count > PODS_MAX:
        raise UnreadableError(
            f"has more than {PODS_MAX:,} {what}", where=f"{where}:{line}", remedy=_SPLIT
        )


def _make_trace(pods: list[TracedPod], seconds: float, rounded: int = 0) -> Trace:
    ordered = sorted(pods, key=lambda p: (p.created, p.pod.namespace, p.pod.metadata.name))
    return Trace(tuple(ordered), seconds, rounded)
