"""Monitoring: a log line for each request, health checks, and metrics for Prometheus.

When prometheus-client is imported, it decides whether it keeps counts in memory or, for several workers, in
files of a shared folder. So import this module only after `worker_processes.shared_folder` has set that up.
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
from typing import NamedTuple

import prometheus_client as prometheus
from msgspec import Struct, json
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector

from alcove.api.messages import HealthAnswer
from alcove.core.errors import AlcoveError
from alcove.engine.commit import Observer
from alcove.server.application import METHODS
from alcove.server.authentication import Authenticator
from alcove.server.limits import ThreadPool
from alcove.server.routes import Endpoint, Page, Request, endpoint
from alcove.server.worker_processes import FOLDER

log = logging.getLogger("alcove.http")
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
WRITES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_SAMPLE_SECONDS = 0.5
_MAX_WRITE_BYTES = 4096
"""What a pipe takes as a whole, so that the lines of several workers do not mix."""
_FLUSH_SECONDS = 0.05
_encode = json.Encoder().encode


class _LogLine(Struct, kw_only=True, gc=False):
    """The log line of a request, with its fields in this order."""

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
    """Logs one line for each request, and writes many lines at once: `logging` costs as much as a GET."""

    def __init__(self, pseudonym: Callable[[str], str] | None = None) -> None:
        self._pseudonym = pseudonym
        self._lines = bytearray()

    def __call__(self, request: Request) -> None:
        """Logs a request that has ended, on the event loop: its declared path, no query and no content."""
        user, client, pseudonym = request.user, request.principal.client_id, self._pseudonym
        line = _LogLine(
            time=datetime.now(UTC),
            request_id=request.id,
            method=request.method,
            path=request.route,
            status=request.status,
            ms=int((time.perf_counter() - request.started) * 1e6) / 1000,
            user=pseudonym(user) if pseudonym and user else user,
            client=pseudonym(client) if pseudonym and client else client,
        )
        encoded = _encode(line)
        if len(self._lines) + len(encoded) >= _MAX_WRITE_BYTES:
            self.flush()
        if not self._lines:
            asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)
        self._lines += encoded
        self._lines += b"\n"

    def flush(self) -> None:
        """Writes the lines that were not written yet."""
        if self._lines:
            sys.stdout.buffer.write(self._lines)
            sys.stdout.flush()
            self._lines.clear()


class Metrics(Observer):
    """Counts the requests and the commits of one worker, and renders the metrics of all workers."""

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
            "alcove_denials", "Requests that were refused for lack of permission.", ["route", "method"]
        )
        self._writes = histogram("alcove_commit_writes", "Writes that shared one commit.", buckets=WRITES)
        self._failures = counter("alcove_commit_failures", "Commits that the disk refused.")
        self._expirations = counter("alcove_expirations", "Memories whose end a sweep recorded.", ["which"])
        self._session_store = counter(
            "alcove_session_store",
            "Contexts whose beginning was in the session store (hit) or was read from the engine (miss), and "
            "uses of the session store that failed because it could not be reached (away).",
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
        """Returns how many requests are being answered."""
        self.index: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
        """Returns how many texts wait for the index, and for how many seconds; called at each scrape."""
        for which in ("due", "aged"):  # there from the start: a rate needs a zero to begin at
            self._expirations.labels(which)
        for outcome in ("hit", "miss", "away"):
            self._session_store.labels(outcome)
        self._shared = os.environ.get(FOLDER)
        if not self._shared:  # with several workers, it would describe only one of them
            prometheus.ProcessCollector(registry=own)
        self._seconds_by_key: dict[tuple[str, str, int], prometheus.Histogram] = {}
        self._writes_now = 0
        self.sample()

    def __call__(self, request: Request) -> None:
        """Counts a request whose answer is ready; called on the event loop."""
        seconds = time.perf_counter() - request.started
        method = request.method if request.method in METHODS else "other"
        key = request.route, method, request.status
        histogram = self._seconds_by_key.get(key)
        if histogram is None:
            histogram = self._seconds_by_key[key] = self._seconds.labels(*key)
        histogram.observe(seconds)
        if request.status == 403:
            self._denials.labels(request.route, method).inc()

    # The observer of the store, called on any thread

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

    # The metrics of all workers

    def sample(self) -> None:
        """Sets the gauges; doing so now and then is cheaper than at each request."""
        self._in_flight.set(self.requests())
        self._waiting.set(self._writes_now)

    async def keep_sampling(self) -> None:
        """Samples until it is cancelled, for scrapes that another worker answers."""
        while True:
            self.sample()
            await asyncio.sleep(_SAMPLE_SECONDS)

    def text(self) -> bytes:
        """The metrics of all workers, also of those that have ended."""
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
        text = await asyncio.to_thread(self.text)  # with many workers, it reads files for some milliseconds
        return Page(text, CONTENT_TYPE_PLAIN_0_0_4.encode())


class Health:
    """Health checks, open to everybody: `/healthz` for the process, `/readyz` for the parts it depends on.

    A check that raises makes the service unavailable; one that returns a text only warns. Such texts name
    files, addresses and specs, so they go to the log, and to callers who are an admin or an auditor. Other
    callers learn only which part has a problem.
    """

    def __init__(
        self,
        checks: Mapping[str, Callable[[], object]],
        threads: ThreadPool,
        versions: Callable[[], Mapping[str, object]],
        authenticate: Authenticator,
    ) -> None:
        """`versions` returns the versions in use of what may differ between nodes for a moment."""
        self._checks = checks
        self._versions = versions
        self._threads = threads
        self._authenticate = authenticate
        self._checking: asyncio.Task[dict[str, _CheckResult]] | None = None
        self._logged: dict[str, str] = {}

    async def alive(self, _: Request) -> Struct:
        return HealthAnswer("ok")

    async def ready(self, request: Request) -> Struct:
        """Checks every part; simultaneous requests share one check, so that many cost no more than one."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._run_checks())
        results = await asyncio.shield(self._checking)
        is_operator = await self._is_operator(request)
        checks = {name: each.details if is_operator else each.summary for name, each in results.items()}
        versions = {name: str(version) for name, version in self._versions().items()}
        if all(each.works for each in results.values()):
            return HealthAnswer("ok", checks, versions)
        return Page(json.encode(HealthAnswer("unavailable", checks, versions)), status=503)

    async def _is_operator(self, request: Request) -> bool:
        """Whether the caller may see details; False, too, if the caller cannot be authenticated now."""
        try:
            principal = await self._authenticate(request.headers)
            principal.require("auditor")
        except AlcoveError:
            return False
        return True

    async def _run_checks(self) -> dict[str, _CheckResult]:
        """Runs each check, and logs its result if it differs from the last one."""
        results = {}
        for name, check in self._checks.items():
            try:
                warning = await self._threads(check)
                has_warning = isinstance(warning, str)
                results[name] = (
                    _CheckResult(str(warning), _WARNS) if has_warning else _CheckResult("ok", "ok")
                )
            except AlcoveError as error:
                results[name] = _CheckResult(error.message, _FAILS, works=False)
            details = results[name].details
            if self._logged.get(name, "ok") != details:
                (log.info if details == "ok" else log.warning)("ready: %s: %s", name, details)
            self._logged[name] = details
        return results


class _CheckResult(NamedTuple):
    """The result of a readiness check, in words for operators and for everybody."""

    details: str
    summary: str
    works: bool = True


_WARNS = "works, with a warning: see the log, or call this as an admin"
_FAILS = "does not work: see the log, or call this as an admin"


def endpoints(metrics: Metrics, health: Health) -> list[Endpoint]:
    """The endpoints for operators and load balancers."""
    check = partial(endpoint, answer_record=HealthAnswer, is_public=True)
    read_metrics = partial(endpoint, role="auditor", is_public_locally=True)
    return [
        check("GET /healthz", health.alive, "Check that the process lives"),
        check("GET /readyz", health.ready, "Check that the service can work", extra_errors=(503,)),
        read_metrics(
            "GET /metrics",
            metrics.metrics,
            "Read the metrics, in the format of Prometheus",
            media_type=CONTENT_TYPE_PLAIN_0_0_4,
        ),
    ]
