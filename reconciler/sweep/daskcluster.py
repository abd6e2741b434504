"""Evaluates on the workers of a Dask cluster.

The scheduler holds what is evaluated, and each worker gets it once; both need this package. What a
lost worker was evaluating is evaluated again by another one. Values travel as pickles, which Dask's
own settings protect (TLS with ``tls://``): whoever reaches the scheduler can run code on its
workers, and the workers can run code here. Without TLS, only this machine is connected to.
"""

from __future__ import annotations

import logging
import pickle
import re
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Generic, Protocol

from reconciler import DISTRIBUTION, __version__
from reconciler.model.errors import ReconcilerError, UnreadableError, UsageError
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.visible import one_line
from reconciler.sweep.evaluation import Evaluated, Evaluations, K, V, V_co

if TYPE_CHECKING:
    from distributed import Client

_ADDRESS: Final = re.compile(r"(tcp|tls)://([^/\s@]+):\d{1,5}")
_CERTIFICATES: Final = tuple(
    f"DASK_DISTRIBUTED__COMM__TLS__{name}" for name in ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY")
)
"""The variables from which Dask reads whom to trust, and who this is."""
_CONNECT_S: Final = 10
_WORKERS_S: Final = 60
"""How long a cluster without any worker may take to get one."""


class DaskCluster:
    """Evaluates on the cluster of a scheduler (``evaluation.Executor``).

    Raises:
        UsageError: the address is wrong, or the package is missing.
    """

    def __init__(self, address: str) -> None:
        found = _ADDRESS.fullmatch(address)
        if found is None:
            remedy = "use tls://HOST:PORT, or tcp://127.0.0.1:PORT"
            raise UsageError(
                f"invalid address {quote_value(address)}", where="--scheduler", remedy=remedy
            )
        if found[1] == "tcp" and not _is_loopback(found[2]):
            raise UsageError(
                f"{quote_value(address)} is another machine, without TLS: whoever is between can "
                "run code here and on the workers",
                where="--scheduler",
                remedy="use tls://HOST:PORT, or a tunnel, such as `kubectl port-forward`",
            )
        try:
            import distributed  # noqa: F401 - whether it is there
        except ImportError as error:
            from reconciler.installation import install_remedy

            remedy = install_remedy("dask")
            raise UsageError("needs Dask", where="--scheduler", remedy=remedy) from error
        if found[1] == "tls":
            _expect_certificates()
        self._address = address

    def outcomes(
        self, work: Evaluations[K, V], keys: Sequence[K]
    ) -> Generator[tuple[int, Evaluated[V]], None, None]:
        """Yield the outcomes as they come.

        Raises:
            UnreadableError: the scheduler cannot be reached, or has no workers.
        """
        if not keys:
            return
        from distributed import as_completed

        with _connect(self._address) as client, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sending large graph")
            shared = client.submit(_load_work, pickle.dumps(work), __version__, pure=False)
            futures = client.map(_evaluate, keys, work=shared, pure=False)
            positions = {future.key: index for index, future in enumerate(futures)}
            for future in as_completed(futures, loop=client.loop):
                yield positions[future.key], _FinishedFuture(future, self._address)


def _expect_certificates() -> None:
    """Check that Dask's settings name who is trusted, before anything is sent.

    Raises:
        UsageError: they do not, or the files cannot be used.
    """
    from distributed.security import Security

    what = "no certificates are set"
    try:
        if Security().get_connection_args("client")["ssl_context"] is not None:
            return
    except (OSError, ValueError) as error:
        what = f"the certificates cannot be used: {one_line(str(error))[:200]}"
    raise UsageError(
        f"{what}, without which TLS trusts nobody",
        where="--scheduler",
        remedy=f"set {', '.join(_CERTIFICATES)}",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class _Future(Evaluated[V_co], Protocol[V_co]):
    status: str


class _FinishedFuture(Generic[V_co]):
    """A finished future; errors of Dask become errors of this program."""

    def __init__(self, future: _Future[V_co], address: str) -> None:
        self._future = future
        self._address = address

    def exception(self) -> BaseException | None:
        error = self._future.exception()
        if error is None or isinstance(error, ReconcilerError):
            return error
        if self._future.status == "cancelled":
            return UnreadableError(
                "the scheduler cancelled an evaluation",
                where=self._address,
                remedy="check that it still runs, and repeat the command",
            )
        text = f"{type(error).__name__}: {error}"[:300]
        return ReconcilerError(
            f"the cluster failed: {text}",
            where=self._address,
            remedy=f"install {DISTRIBUTION} {__version__} where scheduler and workers run, and "
            "check the memory of the workers",
        )

    def result(self) -> V_co:
        return self._future.result()


@contextmanager
def _connect(address: str) -> Generator[Client, None, None]:
    """Connect to a scheduler with workers; what it still evaluates ends with the connection."""
    from distributed import Client

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are ours to tell
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UnreadableError(
            "the Dask scheduler cannot be reached",
            where=address,
            remedy="check the address, and that the scheduler runs",
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_WORKERS_S)
        except TimeoutError as error:
            remedy = "start workers, such as `dask worker ADDRESS`"
            raise UnreadableError("it has no workers", where=address, remedy=remedy) from error
        yield client


# On a worker.


def _load_work(pickled: bytes, version: str) -> tuple[Evaluations, str]:  # type: ignore[type-arg]
    """Return the evaluations, and the version of the command."""
    return pickle.loads(pickled), version  # noqa: S301 - from the client, over Dask's connection


def _evaluate(key: object, work: tuple[Evaluations, str]) -> object:  # type: ignore[type-arg]
    evaluations, version = work
    if version != __version__:
        raise ReconcilerError(
            f"a worker has reconciler {__version__}, and this command is {version}",
            where="--scheduler",
            remedy=f"install {DISTRIBUTION} {version} on the workers",
        )
    return evaluations.evaluate(key)
