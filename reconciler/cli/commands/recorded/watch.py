"""``reconciler watch``: predict what a running Karpenter does next, and keep score."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from reconciler import exitcode
from reconciler.adapters.writing import PRIVATE, make_folder, write_file
from reconciler.assembly.inputs.folder import is_in_fleet
from reconciler.assembly.inputs.request import FleetRequest, ServingRequest
from reconciler.assembly.inputs.timings import current_time, read_time_or_span
from reconciler.assembly.inputs.watching import stop_on_signal
from reconciler.cli.parser import inputs, serving
from reconciler.model.errors import UsageError
from reconciler.model.karpenter.prediction import PredictionVerdict
from reconciler.model.text.visible import one_line
from reconciler.options import add_options, option, repeated, switch

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.model.json import JsonDict
    from reconciler.model.karpenter.prediction import Score
    from reconciler.watch.episodes.file import EpisodeFile
    from reconciler.watch.report import WatchReport
    from reconciler.watch.service import WatchedContext
    from reconciler.watch.session import ClusterObservation

SUBCOMMANDS: Final = {
    "start": "predict what Karpenter does next until it is stopped; the default",
    "report": "show how often the predictions were right, and those that were wrong",
    "replay": "predict the actions of saved episodes again",
}
"""Name of a subcommand → its line of help."""

DEFAULT_SUBCOMMAND: Final = "start"
_NOTHING_SERVED: Final = ServingRequest()
_FLEET_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """The cluster to watch, the period of a report, or the episodes to replay.

    ``episodes`` is the folder where episodes are saved, None to save none; ``anonymize`` is whether
    without names. ``contexts`` is empty for that of the settings. ``publish`` is None for nowhere.
    """

    subcommand: str
    fleet: FleetRequest | StateRequest
    contexts: tuple[str, ...] = repeated(
        "--context",
        "NAME",
        "context of the kubeconfig to use, one for each cluster to watch (repeatable)",
    )
    interval: timedelta = option(
        "--interval",
        "DURATION",
        "time between two observations (default: 500ms)",
        default=timedelta(milliseconds=500),
    )
    episodes: str | None = option(
        "--episodes",
        "DIR",
        "save up to 200 wrong predictions in this folder, for `watch replay`",
    )
    publish: str | None = option(
        "--publish",
        "PLACE",
        "write snapshots of the cluster to a file, s3://BUCKET/KEY, or git:BRANCH:PATH",
    )
    publish_interval: timedelta = option(
        "--publish-interval",
        "DURATION",
        "time between two published snapshots (default: 10m)",
        default=timedelta(minutes=10),
    )
    anonymize: bool = switch("--anonymize", "save and publish without names")
    may_write: bool = switch(
        "--allow-write-access",
        "start although the credentials could write; nothing is ever written",
    )
    serving: ServingRequest = _NOTHING_SERVED
    since: str = ""
    files: tuple[str, ...] = ()
    output: str = "text"

    def fleet_in(self, context: str) -> FleetRequest:
        """Return what is planned in a context; of several, each has a record of its own."""
        fleet = self.fleet
        assert isinstance(fleet, FleetRequest)
        own = (f"kubernetes.context={context}",) if context else ()
        if len(self.contexts) > 1:
            own = (*own, f"fleet={context_fleet(context)}")
        return replace(fleet, settings=(*fleet.settings, *own))


def context_fleet(context: str) -> str:
    """Return the name of the record of a context, one of several: EKS names them by their ARN."""
    if _FLEET_NAME.fullmatch(context):
        return context
    digest = hashlib.sha256(context.encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", context.rpartition("/")[2]).strip("-")[:50]
    return f"{readable or 'context'}-{digest}"


def add_subcommand(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the arguments of one subcommand."""
    add = parser.add_argument
    if name == "replay":
        add("files", metavar="FILE", nargs="+", help="episode that `reconciler watch` has saved")
        add("--anonymize", action="store_true", help="write the episodes without names to --out")
        add("--out", metavar="DIR", help="folder for the episodes without names")
        inputs.add_output(parser)
        inputs.add_flags(parser, ("catalog", "settings", "config"))
        return
    inputs.add_path(parser)
    if name == "report":
        add("--context", metavar="NAME", help="context of the cluster, if several are watched")
        add(
            "--since",
            metavar="DURATION|TIME",
            default="30d",
            help="start of the report: a time, or a duration before now (default: 30d)",
        )
        inputs.add_output(parser)
        inputs.add_flags(parser, inputs.RECORDED)
        return
    add_options(WatchRequest, parser)
    serving.add_serving(parser)
    inputs.add_flags(parser, inputs.ACTING)


def request_of(args: argparse.Namespace) -> WatchRequest:
    """Return the request in the arguments."""
    name = args.subcommand
    if name == "replay":
        fleet = FleetRequest(
            settings=tuple(args.settings),
            config=args.config,
            catalog=args.catalog,
            is_of_cluster=True,
        )
        if args.anonymize != (args.out is not None):
            raise UsageError(
                "--anonymize and --out go together",
                where="watch replay",
                remedy="pass both, as in `reconciler watch replay FILE --anonymize --out shared`",
            )
        return WatchRequest(
            subcommand=name,
            fleet=fleet,
            files=tuple(args.files),
            output=args.output,
            episodes=args.out,
            anonymize=args.anonymize,
        )
    if name == "report":
        known = inputs.state_request(args, args.path)
        if args.context:
            known = replace(
                known, settings=(*known.settings, f"fleet={context_fleet(args.context)}")
            )
        return WatchRequest(subcommand=name, fleet=known, since=args.since, output=args.output)
    fleet = inputs.fleet_request(args, args.path)
    settings = (*fleet.settings, "decide=karpenter")
    is_of_cluster = not (args.path or args.repo or args.below or is_in_fleet())
    fleet = replace(fleet, settings=settings, is_of_cluster=is_of_cluster)
    return inputs.request_from(
        WatchRequest,
        args,
        fleet=fleet,
        contexts=tuple(dict.fromkeys(args.contexts)),
        serving=serving.serving_request(args),
    )


def run(request: WatchRequest) -> int:
    """Watch until SIGTERM or SIGINT, print the report, or replay episodes.

    Raises:
        ReconcilerError: the cluster, the record or an episode cannot be read.
    """
    if request.subcommand == "report":
        return _print(_recorded_report(request), request.output)
    if request.subcommand == "replay":
        return _replay(request)
    return _watch(request)


def _print(report: WatchReport, output: str) -> int:
    if output == "text":
        from reconciler.watch.report import render_report

        sys.stdout.write(render_report(report))
        return exitcode.DONE
    if output in ("html", "markdown"):
        from reconciler.watch.page import render_html, render_markdown

        sys.stdout.write(render_html(report) if output == "html" else render_markdown(report))
        return exitcode.DONE
    import msgspec

    from reconciler.render.listing import format_document

    sys.stdout.write(format_document(msgspec.to_builtins(report), output))
    return exitcode.DONE


def _recorded_report(request: WatchRequest) -> WatchReport:
    from reconciler.adapters.database.state import open_state
    from reconciler.assembly.inputs.records import settings_of, state_location
    from reconciler.watch.report import report_of

    begin = read_time_or_span(request.since, "--since")
    now = current_time(request.fleet.now)
    since = now - begin if isinstance(begin, timedelta) else begin
    resolved = settings_of(request.fleet)
    location = state_location(request.fleet.path, resolved)
    # a fleet that is only watched has no other records, and does not count as one that is run
    with open_state(location, resolved.settings.fleet, create=False) as state:
        return report_of(state.predictions.scores(since), since)


def _replay(request: WatchRequest) -> int:
    """Replay the episodes; 1 if any action is predicted wrong."""
    from pathlib import Path

    from reconciler.assembly.inputs.files import read_bytes
    from reconciler.watch.end.simulating import EndSimulations
    from reconciler.watch.episodes.file import decode_episode
    from reconciler.watch.episodes.replay import replay
    from reconciler.watch.planning import planner_of
    from reconciler.watch.report import describe_score, report_of

    assert isinstance(request.fleet, FleetRequest)
    predict = planner_of(request.fleet)
    scores: list[Score] = []
    for file in request.files:
        episode, name = decode_episode(read_bytes(file), file), Path(file).name
        found = list(replay(episode, predict, EndSimulations().end_of))
        scores += found
        if request.output == "text":
            for score in found:
                cause = f" ({score.cause})" if score.cause else ""
                print(one_line(f"{name}: {describe_score(score)}{cause}"), flush=True)
        if request.episodes is not None:
            shared = _share(episode, request.fleet, os.path.join(request.episodes, name))
            again = replay(shared, predict, EndSimulations().end_of)
            if _verdicts(again) != _verdicts(found):
                warning = f"Warning: without names, {name} has other verdicts"
                print(one_line(warning), file=sys.stderr)
    _print(report_of(scores), request.output)
    wrong = any(score.verdict.is_wrong for score in scores)
    return exitcode.FAILED if wrong else exitcode.DONE


def _verdicts(scores: Iterable[Score]) -> list[PredictionVerdict]:
    return [score.verdict for score in scores]


def _share(episode: EpisodeFile, fleet: FleetRequest, path: str) -> EpisodeFile:
    """Write an episode without names, and return it.

    Raises:
        ReconcilerError: it cannot be anonymized or written.
    """
    from reconciler.watch.episodes.anonymizing import anonymize_episode
    from reconciler.watch.episodes.episode import encode_episode

    shared = anonymize_episode(episode, fleet)
    make_folder(os.path.dirname(path))
    write_file(path, encode_episode(shared), mode=PRIVATE)
    return shared


def _watch(request: WatchRequest) -> int:
    from reconciler.watch.service import watch_clusters

    clusters = [_cluster(request, name) for name in request.contexts or ("",)]
    with stop_on_signal() as stop:
        watch_clusters(clusters, stop, request.serving, _announce_pages)
    return exitcode.DONE


def _announce_pages(url: str) -> None:
    if url:
        print(f"Dashboard: {url}/", file=sys.stderr, flush=True)


def _cluster(request: WatchRequest, context: str) -> WatchedContext:
    """Return what to watch in one context; empty for that of the settings.

    Raises:
        UsageError: the place to publish has a form that is not written, or a key is too short.
    """
    from reconciler.watch.service import WatchedContext

    is_one_of_several = len(request.contexts) > 1
    fleet = request.fleet_in(context)
    where = f"{context}: " if is_one_of_several else ""

    def announce(server: str) -> None:
        print(f"Watching Karpenter in {one_line(server)}", file=sys.stderr, flush=True)

    def print_score(score: Score) -> None:
        from reconciler.watch.report import describe_score

        cause = f" ({score.cause})" if score.cause else ""
        text = f"{score.action.at:%H:%M:%S} {where}{describe_score(score)}{cause}"
        print(one_line(text), flush=True)

    def warn(problem: object) -> None:
        print(f"Warning: {one_line(f'{where}{problem}')}", file=sys.stderr, flush=True)

    save = None
    if request.episodes is not None:
        from reconciler.watch.episodes.anonymizing import encoder_without_names
        from reconciler.watch.episodes.episode import encode_episode
        from reconciler.watch.episodes.folder import episode_saver

        encode = encoder_without_names(fleet) if request.anonymize else encode_episode
        own = context_fleet(context) if is_one_of_several else ""
        save = episode_saver(os.path.join(request.episodes, own), warn, encode)
    return WatchedContext(
        context_fleet(context) if is_one_of_several else context or "cluster",
        fleet,
        request.interval,
        announce,
        print_score,
        warn,
        request.may_write,
        save,
        _publisher(request, fleet, warn),
    )


def _publisher(
    request: WatchRequest, fleet: FleetRequest, warn: Callable[[object], None]
) -> Callable[[ClusterObservation, datetime], None] | None:
    """Return what publishes observations as snapshots, None if nothing is to be published.

    Raises:
        UsageError: the place has a form that is not written, or a key is too short.
    """
    from reconciler.assembly.capturing import anonymize_objects, read_key
    from reconciler.assembly.snapshots import destination_of
    from reconciler.watch.publishing import SnapshotPublisher

    if request.publish is None:
        return None
    if request.publish == "-":
        raise UsageError(
            "snapshots cannot be published on standard output",
            where="--publish",
            remedy="pass a file, s3://BUCKET/KEY or git:BRANCH:PATH",
        )
    if len(request.contexts) > 1:
        raise UsageError(
            "the snapshots of several clusters cannot be published at one place",
            where="--publish",
            remedy="start one `reconciler watch` for each context",
        )
    destination = destination_of(request.publish, fleet, remote=None, author=None)

    def prepare(objects: Sequence[JsonDict]) -> Sequence[JsonDict]:
        if not request.anonymize:
            return objects
        return anonymize_objects(objects, fleet, has_fleet=not fleet.is_of_cluster)

    read_key()
    return SnapshotPublisher(destination.write, request.publish_interval, prepare, warn).publish
