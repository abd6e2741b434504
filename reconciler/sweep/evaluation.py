"""The parts of a sweep, and the addresses of its results.

An evaluation depends only on its inputs, so it does not matter where and how often it runs. Its
address is a digest of all inputs: equal addresses have equal results.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from hashlib import sha256
from typing import Protocol, TypeVar

import msgspec

from reconciler import build

K = TypeVar("K")
V = TypeVar("V")
K_contra = TypeVar("K_contra", contravariant=True)
V_co = TypeVar("V_co", covariant=True)


class Evaluations(Protocol[K_contra, V_co]):
    """Evaluations of one kind, by their keys. The value, keys and results can be pickled.

    A result can also be written as JSON and read again as ``result``.
    """

    @property
    def result(self) -> type[V_co]:
        """The type of the results."""

    def evaluate(self, key: K_contra) -> V_co:
        """Return the result of one evaluation.

        Raises:
            ReconcilerError: it has none.
        """

    def address(self, key: K_contra) -> str | None:
        """Return the address of the result (``address_of``), None if it must not be cached."""


class Evaluated(Protocol[V_co]):
    """The outcome of an evaluation; a future that is done is one."""

    def exception(self) -> BaseException | None:
        """Return the error, None if there is a result."""

    def result(self) -> V_co:
        """Return the result, or raise the error."""


class Executor(Protocol):
    """Runs evaluations somewhere."""

    def outcomes(
        self, work: Evaluations[K, V], keys: Sequence[K]
    ) -> Generator[tuple[int, Evaluated[V]], None, None]:
        """Yield the outcomes in any order, each with the position of its key.

        Evaluation stops when the caller stops iterating.
        """


def address_of(*facts: object) -> str:
    """Return the address of a result that depends on these facts and on this build alone.

    A fact is anything that JSON can express.
    """
    return sha256(msgspec.json.encode([build.ref(), *facts], order="sorted")).hexdigest()
