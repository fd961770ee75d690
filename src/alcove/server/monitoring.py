"""For who looks after the service: its requests a line each, whether it lives and can work, what it counted.

prometheus-client decides when it is imported whether counts are kept in memory or, for several workers, in
files of a folder that they share; so this module is imported only by who has seen to that
(`worker_processes.shared_folder`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import prometheus_client as prometheus
from msgspec import Struct, json
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector

from alcove.api.messages import HealthAnswer
from alcove.api.operation import Operation
from alcove.core.errors import AlcoveError
from alcove.engine.commit import Observer
from alcove.server.application import METHODS
from alcove.server.authentication import Authenticator
from alcove.server.limits import ThreadPool
from alcove.server.routes import Endpoint, Page, Request
from alcove.server.worker_processes import FOLDER

log = logging.getLogger("alcove.http")
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
WRITES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_BETWEEN_SAMPLES = 0.5
_PIPE_TAKES = 4096
_FLUSH_SECONDS = 0.05
_encode = json.Encoder().encode


class _Line(Struct, kw_only=True, gc=False):
    """What is told of a request, in this order."""

    time: datetime
    level: str = "info"
    event: str = "request"
    request_id: str
    method: str
    path: str
    status: int
    ms: float
    user: str | None
    client: str | None


class AccessLog:
    """One line a request, gathered and written a few times a second: `logging` costs as much as a get.

    What is written at once is never more than a pipe takes whole, so workers do not cut one another's lines.
    """

    def __init__(self, pseudonym: Callable[[str], str] | None = None) -> None:
        self._pseudonym = pseudonym
        self._noted = bytearray()

    def __call__(self, request: Request) -> None:
        """Notes a request that has ended: no content, the path as it is declared, and no query.

        Called on the event loop.
        """
        user, client, hidden = request.user, request.principal.client_id, self._pseudonym
        line = _Line(
            time=datetime.now(UTC),
            request_id=request.id,
            method=request.method,
            path=request.route,
            status=request.status,
            ms=int((time.perf_counter() - request.started) * 1e6) / 1000,
            user=hidden(user) if hidden and user else user,
            client=hidden(client) if hidden and client else client,
        )
        encoded = _encode(line)
        if len(self._noted) + len(encoded) >= _PIPE_TAKES:
            self.flush()
        if not self._noted:
            asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)
        self._noted += encoded
        self._noted += b"\n"

    def flush(self) -> None:
        """Writes what was noted."""
        if self._noted:
            sys.stdout.buffer.write(self._noted)
            sys.stdout.flush()
            self._noted.clear()


class Metrics(Observer):
    """Counts the requests and observes the store of one worker, and answers for all of them."""

    def __init__(self) -> None:
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        own = self._registry = prometheus.CollectorRegistry()
        counter = partial(prometheus.Counter, registry=own)
        histogram = partial(prometheus.Histogram, registry=own)
        summed = partial(prometheus.Gauge, multiprocess_mode="livesum", registry=own)
        latest = partial(prometheus.Gauge, multiprocess_mode="livemostrecent", registry=own)
        self._seconds = histogram(
            "alcove_request_seconds", "Time from a request's headers until its answer is ready.",
            ["route", "method", "status"], buckets=SECONDS,
        )  # fmt: skip
        self._denials = counter(
            "alcove_denials", "Requests that were refused for want of permission.", ["route", "method"]
        )
        self._writes = histogram("alcove_commit_writes", "Writes that shared one commit.", buckets=WRITES)
        self._failures = counter("alcove_commit_failures", "Commits that the disk refused.")
        self._expirations = counter("alcove_expirations", "Memories whose end a sweep recorded.", ["which"])
        self._session_store = counter(
            "alcove_session_store",
            "Contexts whose beginning the session store had, or the engine had to be read; and what went "
            "without it because it was away.",
            ["outcome"],
        )
        self._in_flight = summed(
            "alcove_requests_in_flight", "Requests that are being answered, this one included."
        )
        self._waiting = summed(
            "alcove_writes_waiting", "Writes that are not on the disk yet: queued, or in the running commit."
        )
        self._index_waiting = latest("alcove_index_waiting", "Texts that wait to be found by meaning.")
        self._index_lag = latest(
            "alcove_index_lag_seconds", "How long the text has waited that has waited longest."
        )
        self.requests: Callable[[], int] = lambda: 0
        """Asked now and then how many are being answered."""
        self.index: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
        """Asked at each scrape for both, since it is the store that knows."""
        for which in ("due", "aged"):  # there from the start: a rate needs a zero to begin at
            self._expirations.labels(which)
        for outcome in ("hit", "miss", "away"):
            self._session_store.labels(outcome)
        self._shared = os.environ.get(FOLDER)
        if not self._shared:  # of several processes, it would tell only of the one that is asked
            prometheus.ProcessCollector(registry=own)
        self._answered: dict[tuple[str, str, int], prometheus.Histogram] = {}
        self._writes_now = 0
        self.sample()

    # Of requests, on the event loop

    def __call__(self, request: Request) -> None:
        """Counts a request whose answer is ready."""
        seconds = time.perf_counter() - request.started
        method = request.method if request.method in METHODS else "other"
        key = request.route, method, request.status
        known = self._answered.get(key)
        if known is None:
            known = self._answered[key] = self._seconds.labels(*key)
        known.observe(seconds)
        if request.status == 403:
            self._denials.labels(request.route, method).inc()

    # Of the store, on any thread

    def write_submitted(self) -> None:
        self._writes_now += 1

    def commit_ended(self, writes: int, *, committed: bool) -> None:
        self._writes_now -= writes
        if committed:
            self._writes.observe(writes)
        else:
            self._failures.inc()

    def memories_expired(self, count: int, *, reason: str) -> None:
        self._expirations.labels(reason).inc(count)

    def session_store(self, outcome: str) -> None:
        self._session_store.labels(outcome).inc()

    # Of all workers

    def sample(self) -> None:
        """Sets what goes up and down: two assignments now and then instead of four a request."""
        self._in_flight.set(self.requests())
        self._waiting.set(self._writes_now)

    async def keep_sampling(self) -> None:
        """Samples until it is cancelled, for the workers that are not asked themselves."""
        while True:
            self.sample()
            await asyncio.sleep(_BETWEEN_SAMPLES)

    def text(self) -> bytes:
        """Everything that was counted, by every worker that is or was."""
        self.sample()
        waiting, lag = self.index()
        self._index_waiting.set(waiting)
        self._index_lag.set(lag)
        registry = self._registry
        if self._shared:
            registry = prometheus.CollectorRegistry()
            MultiProcessCollector(registry, self._shared)  # type: ignore[no-untyped-call]
        return prometheus.generate_latest(registry)

    async def metrics(self, _: Request) -> Struct:
        text = await asyncio.to_thread(self.text)  # of many workers, it is some milliseconds of reading files
        return Page(text, CONTENT_TYPE_PLAIN_0_0_4.encode())


class Health:
    """`/healthz` for the process, `/readyz` for what it stands on; both open to everybody.

    A check that raises holds everything up; one that answers with a text has something to say. Such texts
    name files, addresses and specs, so they go to the log, and to callers who are an admin or an auditor.
    Everybody else hears which part it is.
    """

    def __init__(
        self,
        checks: Mapping[str, Callable[[], object]],
        threads: ThreadPool,
        versions: Callable[[], Mapping[str, object]],
        authenticate: Authenticator,
    ) -> None:
        """`versions`: of what may differ between nodes for a moment, which this one goes by."""
        self._checks = checks
        self._versions = versions
        self._threads = threads
        self._authenticate = authenticate
        self._checking: asyncio.Task[dict[str, _Finding]] | None = None
        self._logged: dict[str, str] = {}

    async def alive(self, _: Request) -> Struct:
        return HealthAnswer("ok")

    async def ready(self, request: Request) -> Struct:
        """All who ask at once share one check: whoever they are, they cost no more than one of them."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._checked())
        findings = await asyncio.shield(self._checking)
        operates = await self._operates(request)
        checks = {name: each.details if operates else each.summary for name, each in findings.items()}
        versions = {name: str(version) for name, version in self._versions().items()}
        if all(each.works for each in findings.values()):
            return HealthAnswer("ok", checks, versions)
        return Page(json.encode(HealthAnswer("unavailable", checks, versions)), status=503)

    async def _operates(self, request: Request) -> bool:
        """Whether the caller looks after the service; who cannot be told now is nobody."""
        try:
            principal = await self._authenticate(request.headers)
            principal.require("auditor")
        except AlcoveError:
            return False
        return True

    async def _checked(self) -> dict[str, _Finding]:
        findings = {}
        for name, check in self._checks.items():
            try:
                said = await self._threads(check)
                findings[name] = _Finding(said, _WARNS) if isinstance(said, str) else _Finding("ok", "ok")
            except AlcoveError as error:
                findings[name] = _Finding(error.message, _FAILS, works=False)
            self._log(name, findings[name].details)
        return findings

    def _log(self, name: str, details: str) -> None:
        """Tells the log what a check finds, once until it finds something else."""
        if self._logged.get(name, "ok") != details:
            (log.info if details == "ok" else log.warning)("ready: %s: %s", name, details)
        self._logged[name] = details


class _Finding(NamedTuple):
    """What a check of readiness came to."""

    details: str
    summary: str
    works: bool = True


_WARNS = "works, with a warning: the log has it, and an admin who asks here"
_FAILS = "does not work: the log says why, and an admin who asks here is told"


def endpoints(metrics: Metrics, health: Health) -> list[Endpoint]:
    """The endpoints for operators and load balancers."""
    operation = partial(Operation[..., Any], None)
    return [
        Endpoint(
            operation("GET /healthz", "Whether the process is alive", name="alive",
                      answer_record=HealthAnswer, is_public=True),
            health.alive,
        ),
        Endpoint(
            operation("GET /readyz", "Whether it can do its work", name="ready", answer_record=HealthAnswer,
                      is_public=True, extra_errors=(503,)),
            health.ready,
        ),
        Endpoint(
            operation("GET /metrics", "Counts, as Prometheus reads them", name="metrics", role="auditor",
                      is_public_locally=True, media_type=CONTENT_TYPE_PLAIN_0_0_4),
            metrics.metrics,
        ),
    ]  # fmt: skip
