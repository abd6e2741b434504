"""Watches a running Karpenter: observe, compare, predict, again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from reconciler.model.errors import ReconcilerError
from reconciler.model.karpenter.prediction import Prediction, PredictionVerdict, Score
from reconciler.watch.causes import Evidence, explain_miss
from reconciler.watch.episodes.episode import episode_of
from reconciler.watch.observing import KarpenterActions
from reconciler.watch.predicting import prediction_of, prices_of
from reconciler.watch.scoring import score_action

if TYPE_CHECKING:
    from reconciler.catalog.catalog import Catalog
    from reconciler.model.json import JsonDict
    from reconciler.model.karpenter.nodeclaim import NodeClaim
    from reconciler.plan.make.inputs import Inputs
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.predictions import PredictionLog
    from reconciler.watch.causes import KarpenterEvent
    from reconciler.watch.end.quiet import EndWatch, ScoredEnd
    from reconciler.watch.episodes.episode import Episode
    from reconciler.watch.observing import Prices

KEPT: Final = timedelta(days=90)
"""How long predictions and their scores are kept."""
_FORGET_EVERY: Final = timedelta(hours=1)
_REMINDED_EVERY: Final = timedelta(minutes=10)
"""How often a problem that lasts is reported."""
_OBSERVATIONS_KEPT: Final = 20
"""How many observations are kept to save a wrong prediction with what it was made from."""


class ClusterObservation(Protocol):
    """The objects of the cluster at a time; two of them are equal if nothing has changed."""

    def objects(self) -> Sequence[JsonDict]:
        """Return every object with its kind."""

    def node_claims(self) -> Sequence[NodeClaim]:
        """Return the NodeClaims."""


class PlannedCluster(NamedTuple):
    """A plan by Karpenter's rules, and the catalog that it was made with.

    ``until`` is when time alone may change the plan, None if it does not. ``inputs`` are those of
    the plan, for an observer.
    """

    plan: Plan
    catalog: Catalog
    until: datetime | None = None
    inputs: Inputs | None = None


class WatchObserver(Protocol):
    """Watches the steps of a session."""

    def planned(self, planned: PlannedCluster, prediction: Prediction) -> None:
        """Receive a plan, and what it predicts.

        Raises:
            ReconcilerError: it cannot be recorded; the session continues.
        """

    def step_ended(self) -> None:
        """Receive that the cluster was observed."""


@dataclass
class KarpenterWatch:
    """Predicts what Karpenter does next, records that first, and scores what it then does.

    ``observe`` reads the cluster, ``predict`` plans it. ``save`` keeps an episode and returns its
    name. ``on_scored`` receives each score, and ``on_problem`` what could not be read.
    ``read_events`` lists Karpenter's Events, once predictions were wrong. ``publish`` receives
    every observation, after its scores. ``observer`` receives each plan. ``ends`` predicts the
    fleet once nothing is left to do, None for not at all.
    """

    observe: Callable[[], ClusterObservation]
    predict: Callable[[Sequence[JsonDict], datetime], PlannedCluster]
    log: PredictionLog
    save: Callable[[Episode], str] | None
    on_scored: Callable[[Score], None]
    on_problem: Callable[[ReconcilerError], None]
    read_events: Callable[[], Sequence[KarpenterEvent]] = tuple
    publish: Callable[[ClusterObservation, datetime], None] | None = None
    observer: WatchObserver | None = None
    ends: EndWatch | None = None
    _actions: KarpenterActions = field(default_factory=KarpenterActions)
    _prediction: Prediction | None = None
    _catalog: Catalog | None = None
    _prices: Prices = field(default_factory=dict)
    _priced: Sequence[NodeClaim] | None = None
    _seen: ClusterObservation | None = None
    _until: datetime | None = None
    _forgotten_at: datetime | None = None
    _problem: tuple[str, datetime] | None = None
    _observations: dict[int, ClusterObservation] = field(default_factory=dict)

    def step(self, now: datetime) -> None:
        """Observe once. After a problem, what happened meanwhile is not scored.

        Raises:
            ReconcilerError: the first observation failed, or the record cannot be written.
        """
        try:
            observed = self.observe()
            claims = observed.node_claims()
            self._compare(observed, now)
            if self._is_due(observed, now):
                self._predict(observed, claims, now)
            if self.ends is not None:
                self._keep([self._save_end(ended, now) for ended in self.ends.step(now)])
            if self.publish is not None:
                self.publish(observed, now)
            if self.observer is not None:
                self.observer.step_ended()
            self._problem = None
        except ReconcilerError as error:
            if self._prediction is None:
                raise
            self._actions, self._seen = KarpenterActions(), None
            self._report(error, now)

    def _report(self, error: ReconcilerError, now: datetime) -> None:
        """Report a problem unless it is the last one, and was reported a short time ago."""
        if self._problem is not None:
            reported, at = self._problem
            if reported == str(error) and now - at < _REMINDED_EVERY:
                return
        self._problem = str(error), now
        self.on_problem(error)

    def _compare(self, observed: ClusterObservation, now: datetime) -> None:
        """Score what Karpenter has done by now."""
        if self._prediction is None or self._catalog is None:
            return
        claims = observed.node_claims()
        if claims is not self._priced:
            self._prices, self._priced = prices_of(self._catalog, claims), claims
        found = self._actions.observe(claims, now, self._prediction, self._prices)
        scores = [score_action(one.action, one.prediction) for one in found]
        if any(score.verdict is PredictionVerdict.WRONG for score in scores):
            events = self._events()
            scores = [
                self._complete(score, one.prediction, events, observed, now)
                for score, one in zip(scores, found, strict=True)
            ]
        self._keep(scores)

    def _keep(self, scores: Sequence[Score]) -> None:
        if scores:
            self.log.score(scores)
        for score in scores:
            self.on_scored(score)

    def _events(self) -> Sequence[KarpenterEvent]:
        try:
            return self.read_events()
        except ReconcilerError as error:  # the verdict is the same without them
            self.on_problem(error)
            return ()

    def _complete(
        self,
        score: Score,
        prediction: Prediction,
        events: Sequence[KarpenterEvent],
        observed: ClusterObservation,
        now: datetime,
    ) -> Score:
        """Return the score of a wrong prediction with its cause and its episode."""
        before = self._observations.get(prediction.sequence)
        if score.verdict is not PredictionVerdict.WRONG or before is None:
            return score
        objects = before.objects()
        claims = [*before.node_claims(), *observed.node_claims()]
        evidence = Evidence(events, claims, [*objects, *observed.objects()])
        cause = explain_miss(score, prediction, evidence)
        score = msgspec.structs.replace(score, cause=cause)
        return self._with_episode(score, lambda: episode_of(score, prediction, objects, now))

    def _save_end(self, ended: ScoredEnd, now: datetime) -> Score:
        """Return the score of an end; one outside of the range is saved."""
        score, prediction, objects, fleet = ended
        if score.verdict is not PredictionVerdict.OUTSIDE:
            return score
        return self._with_episode(score, lambda: episode_of(score, prediction, objects, now, fleet))

    def _with_episode(self, score: Score, episode: Callable[[], Episode]) -> Score:
        """Save an episode, if any are; return the score with its name."""
        if self.save is None:
            return score
        try:
            saved = self.save(episode())
        except ReconcilerError as error:  # the score counts without it
            self.on_problem(error)
            return score
        return msgspec.structs.replace(score, episode=saved)

    def _is_due(self, observed: ClusterObservation, now: datetime) -> bool:
        if self._seen is None or self._seen != observed:
            return True
        return self._until is not None and now >= self._until

    def _predict(
        self, observed: ClusterObservation, claims: Sequence[NodeClaim], now: datetime
    ) -> None:
        """Plan, and record the prediction if it differs from the last one."""
        objects = observed.objects()
        planned = self.predict(objects, now)
        is_first = self._prediction is None
        prices = prices_of(planned.catalog, claims)
        made = prediction_of(planned.plan, claims, prices)
        if self._prediction is None or not made.says_the_same(self._prediction):
            made = self.log.record(made)
            self._prediction = made
            self._observations[made.sequence] = observed
            while len(self._observations) > _OBSERVATIONS_KEPT:
                self._observations.pop(min(self._observations))
        self._catalog, self._seen, self._until = planned.catalog, observed, planned.until
        self._prices, self._priced = prices, claims
        if is_first:  # what exists now was there before the first prediction
            self._actions.observe(claims, now, self._prediction, prices)
        if self.ends is not None and planned.inputs is not None:
            self.ends.planned(objects, planned.inputs, planned.plan, claims, prices)
        if self.observer is not None:
            self._show(self.observer, planned, self._prediction)
        if self._forgotten_at is None or now - self._forgotten_at >= _FORGET_EVERY:
            self.log.forget(now - KEPT)
            self._forgotten_at = now

    def _show(
        self, observer: WatchObserver, planned: PlannedCluster, prediction: Prediction
    ) -> None:
        if self.ends is not None:
            prediction = msgspec.structs.replace(prediction, end=self.ends.expected)
        try:
            observer.planned(planned, prediction)
        except ReconcilerError as error:  # predictions are made and scored without it
            self.on_problem(error)
