"""Runs the service: a store, its edge, and as many worker processes as were asked for."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import uvicorn
from starlette.routing import Router
from uvicorn.config import STARTUP_FAILURE

import alcove.search.searcher  # noqa: F401  before the first request, not during it
from alcove import __version__
from alcove.agents.loading import Watched
from alcove.agents.service import Agents
from alcove.client.embedded import Alcove
from alcove.core.errors import AlcoveError, InvalidRequest, needed_by
from alcove.core.observer import Observer
from alcove.search.embedders import embedder_for
from alcove.server import logs
from alcove.server.admin import AdminApi, Denials
from alcove.server.agents import AgentsApi
from alcove.server.application import Watcher, application
from alcove.server.auth import (
    Authenticator,
    KeyHolders,
    Noop,
    PublishedKeys,
    SharedSecret,
    TokenRules,
    Tokens,
    WithGrants,
)
from alcove.server.config import ServeConfig
from alcove.server.health import HealthApi
from alcove.server.limits import Limits
from alcove.server.memories import MemoriesApi
from alcove.server.openapi import DocsApi
from alcove.server.processes import (
    One,
    Several,
    connections,
    listening,
    stop_with,
    when_hung_up,
    when_stopping,
)
from alcove.server.protocol import Protocol
from alcove.server.streaming import Tail
from alcove.server.streams import StreamsApi
from alcove.server.thread_pool import Offload
from alcove.server.worker_metrics import FOLDER, shared_folder

if TYPE_CHECKING:
    from alcove.server.tracing import Tracing

log = logging.getLogger("alcove.http")
_HANDED_OVER = "ALCOVE_HANDED_OVER"
_TURN_SECONDS = 0.0005
"""After which a thread that computes gives way, to the event loop, too; a tenth of what Python gives it."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(config: ServeConfig) -> None:
    """Serves until it is told to stop: requests under way finish first, a second signal stops at once."""
    check(config)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    logs.configure(config.log_level, config.log_file)
    os.environ[_HANDED_OVER] = msgspec.json.encode(config).decode()
    told = uvicorn.Config(
        "alcove.server.running:worker",
        factory=True,
        host=config.host,
        port=config.port,
        workers=config.workers,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(config.request_seconds) + 1,
        loop="auto",  # uvloop, except on Windows, which has none
        http=Protocol,
        ws="none",
    )
    _try(config)
    os.environ.pop(FOLDER, None)  # another service's counts are not ours
    if config.workers == 1:
        One(told).run(listening(told))
    else:
        with shared_folder() as tallies:
            Several(told, tallies, reopen=lambda: logs.write_to(config.log_file)).run()


def worker() -> Router:
    """One worker process's application, configured as its parent was."""
    sys.setswitchinterval(_TURN_SECONDS)
    config = msgspec.json.decode(os.environ[_HANDED_OVER], type=ServeConfig)
    try:
        return build(config)
    except Exception as error:
        if config.workers == 1:
            raise
        log.error("a worker cannot start: %s", error, exc_info=not isinstance(error, AlcoveError))
        sys.exit(STARTUP_FAILURE)


def build(config: ServeConfig) -> Router:
    """The application over the store that the configuration names."""
    from alcove.server.metrics import Metrics  # noqa: PLC0415  it must not be there before the folder is

    logs.configure(config.log_level, config.log_file)
    metrics = Metrics()
    store = _store(config, metrics)
    reads, changes = (Offload(threads=config.threads, stops=stops) for stops in (True, False))
    memories, tracing = store.memories, _tracing(config)
    access = logs.AccessLog(memories.admin.pseudonym if config.log_pseudonyms else None)
    metrics.index = memories.admin.index_lag
    tail = Tail(memories.last_event)
    streams = StreamsApi(memories, reads, changes, tail)
    specs = _specs(config)
    agents = Agents(memories, specs, authentication=config.auth != "noop")

    def reload() -> None:
        """Reads log file, specs and policies anew; what does not load leaves the last good one in force."""
        try:
            logs.write_to(config.log_file)
            if specs:
                specs.look()
            store.reload_policy()
        except (AlcoveError, OSError) as error:
            log.error("not reloaded, the last good one stays in force: %s", error)
        else:
            log.info("reloaded")

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        beside = [asyncio.create_task(stop_with(os.getppid()))] if config.workers > 1 else []
        beside += [asyncio.create_task(_follow(specs))] if specs else []
        when_stopping(tail.stop)
        when_hung_up(reload)
        async with metrics.sampling():
            yield
        for each in beside:
            each.cancel()
        reads.close()
        changes.close()
        agents.close()
        store.close()
        access.flush()
        if tracing:
            tracing.close()

    resources = [
        *MemoriesApi(memories, reads, patience=config.request_seconds / 2).resources(),
        *streams.resources(),
        *AdminApi(memories.admin, reads, changes).resources(),
        *AgentsApi(agents, reads, changes, streams).resources(),
        *HealthApi({**memories.readiness(), "agents": agents.check}, reads).resources(),
        *metrics.resources(),
    ]
    resources += DocsApi(resources, __version__).resources()
    at_once = min(config.most_in_flight, connections() // 3)  # beside as many streams, and as many that wait
    if at_once < config.most_in_flight:
        log.warning("at most %d requests at once: raise the limit of open files (ulimit -n)", at_once)
    Protocol.head_seconds, Protocol.most_waiting = config.head_seconds, max(100, at_once)
    limits = Limits(
        most_body_bytes=config.max_body_bytes,
        most_bodies_bytes=max(64 * config.max_body_bytes, Limits.most_bodies_bytes),
        request_seconds=config.request_seconds,
        most_in_flight=at_once,
        rate_per_second=config.rate_limit,
    )
    watchers: list[Watcher] = [metrics, Denials(memories.admin)]
    if tracing:
        watchers.append(tracing)
    authenticate = WithGrants(_authenticator(config, store), agents.direct)
    return application(resources, authenticate, limits, access, reads, lifespan, watchers)


def _try(config: ServeConfig) -> None:
    """Reads and opens all that a worker will, so that what is wrong is told of once and starts none."""
    specs = _specs(config)
    for warning in specs.current().warnings if specs else ():
        log.warning("agent specs: %s", warning)
    _store(config).close()


def _specs(config: ServeConfig) -> Watched | None:
    """The specs, at whose files no request looks."""
    path = Path(config.agents) if config.agents else None
    return Watched(path, max_depth=config.max_depth, interval=math.inf) if path else None


async def _follow(specs: Watched) -> None:
    """Looks at the files of specs every second, in a thread: many take seconds to load."""
    while True:
        await asyncio.sleep(1)
        try:
            await asyncio.to_thread(specs.look)
        except Exception:
            log.exception("the agent specs were not looked at")


def _store(config: ServeConfig, observer: Observer | None = None) -> Alcove:
    folder = Path(config.model_dir) if config.model_dir else None
    return Alcove(
        config.at,
        settings=config.settings(),
        policy_dir=config.policy_dir,
        observer=observer,
        embedder=embedder_for(config.embedder, folder=folder, key=config.embedder_key),
    )


def check(config: ServeConfig) -> None:
    """Refuses what would be served to the wrong people, before anything is opened."""
    if config.auth == "noop" and config.host not in _LOOPBACK and not config.insecure:
        expected = f"jwt or apikey to serve on {config.host}, where noop makes everybody an admin"
        raise InvalidRequest("auth", f"{expected} (--insecure serves it all the same)")
    sources = [config.jwt_secret, config.jwks_url, config.oidc_issuer]
    if config.auth == "jwt" and sum(bool(source) for source in sources) != 1:
        raise InvalidRequest("auth", "one of --jwt-secret, --jwks-url and --oidc-issuer with jwt")
    for name, url in (("jwks-url", config.jwks_url), ("oidc-issuer", config.oidc_issuer)):
        if url is not None and not url.startswith(("http://", "https://")):
            raise InvalidRequest(name, "an address that starts with http:// or https://")
    if config.jwt_secret == "":
        raise InvalidRequest("jwt-secret", "a secret that is not empty")
    if config.tracing:
        with needed_by("--tracing", extra="tracing"):
            import_module("alcove.server.tracing")


def _tracing(config: ServeConfig) -> Tracing | None:
    if not config.tracing:
        return None
    from alcove.server.tracing import Tracing  # noqa: PLC0415  its packages are an extra

    return Tracing()


def _authenticator(config: ServeConfig, store: Alcove) -> Authenticator:
    if config.auth == "noop":
        return Noop(anywhere=config.insecure)
    if config.auth == "apikey":
        return KeyHolders(store.api_keys)
    rules = TokenRules(
        audience=config.jwt_audience,
        issuer=config.jwt_issuer or config.oidc_issuer,
        user_claim=config.jwt_user_claim,
        roles_claim=config.jwt_roles_claim,
        leeway=config.jwt_leeway,
        require_exp=config.jwt_require_exp,
    )
    if config.jwt_secret is not None:
        return Tokens(SharedSecret(config.jwt_secret), rules)
    return Tokens(PublishedKeys(jwks_url=config.jwks_url, issuer=config.oidc_issuer), rules)
