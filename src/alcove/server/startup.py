"""Runs the service: opens the store, builds the application and starts the worker processes."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import msgspec
import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

import alcove.search.hybrid_search  # noqa: F401  before the first request, not during it
from alcove.agents.service import Agents
from alcove.agents.specs.loading import WatchedSpecs
from alcove.agents.tokens import FAMILIES
from alcove.api.agent_operations import (
    AgentOperations,
    ChatOperations,
    KnowledgeOperations,
    SessionOperations,
)
from alcove.api.operation import services_by_class
from alcove.api.operations import AdminOperations, MemoryOperations
from alcove.client.embedded import Alcove
from alcove.core import __version__, heap
from alcove.core.addresses import is_database, locate_store, without_password
from alcove.core.errors import AlcoveError, InvalidRequest, requires_extra
from alcove.engine.commit import Observer
from alcove.llm import make_provider
from alcove.search.embedders import embedder_for
from alcove.search.rerankers import reranker_for
from alcove.search.sources import vector_index_for
from alcove.server import logs, worker_processes
from alcove.server.application import METHODS, Application
from alcove.server.authentication import LOOPBACK, make_authenticator
from alcove.server.chat import ChatHandlers
from alcove.server.config import ServeConfig
from alcove.server.jwt_tokens import SAFE_SECRET_BYTES
from alcove.server.limits import ThreadPool
from alcove.server.mcp import McpHandlers
from alcove.server.openapi import pages
from alcove.server.panel import COOKIE_KEY, Panel, SessionCookies
from alcove.server.protocol import Protocol
from alcove.server.routes import Request, endpoints
from alcove.server.streams import Streams, Tail

log = logging.getLogger("alcove.http")
_CONFIG_VARIABLE = "ALCOVE_HANDED_OVER"
"""The variable that hands the configuration to worker processes."""
_WAITING_TURNS = 64
"""Threads for turns that wait for others or for tools, besides those that may call the LLM."""
_SWITCH_SECONDS = 0.0005
"""How long a computing thread keeps the event loop waiting; a tenth of Python's default."""


def serve(config: ServeConfig) -> None:
    """Serves until a signal: requests in progress finish first; a second signal stops at once."""
    check(config)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are workers that can reload
    logs.configure(config.log_level, config.log_file)
    os.environ[_CONFIG_VARIABLE] = msgspec.json.encode(config, enc_hook=dict).decode()
    server = uvicorn.Config(
        "alcove.server.startup:worker",
        factory=True,
        host=config.host,
        port=config.port,
        workers=config.workers,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing depends on what a proxy says of its client
        timeout_graceful_shutdown=int(config.request_seconds) + 1,
        loop="auto",  # uvloop, except on Windows, which has none
        http=Protocol,
        ws="none",
    )
    _warn(config)
    _try_opening(config)
    if sys.stderr.isatty():
        sys.stderr.write(_welcome_text(config))
    os.environ.pop(worker_processes.FOLDER, None)  # it may hold the metrics of another service
    if config.workers == 1:
        worker_processes.SingleProcess(server).run(worker_processes.bind_sockets(server))
    else:
        with worker_processes.shared_folder() as counts:
            worker_processes.Workers(server, counts, reopen=lambda: logs.write_to(config.log_file)).run()


def _welcome_text(config: ServeConfig) -> str:
    """The addresses of panel, docs and store, shown in a terminal."""
    base = f"http://{f'[{config.host}]' if ':' in config.host else config.host}:{config.port}"
    file = os.environ.get("ALCOVE_KEY_FILE") or f"{locate_store(config.at)[1]}.key"
    key = "ALCOVE_KEY" if os.environ.get("ALCOVE_KEY") else file
    return f"panel  {base}/\ndocs   {base}/docs\nstore  {without_password(config.at)}, its key in {key}\n"


def work(config: ServeConfig) -> None:
    """Runs a store's background work without serving requests, until a signal."""
    logs.configure(config.log_level, config.log_file)
    heap.configure_malloc()
    stopping = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: stopping.set())
    store, specs = _store(config), _specs(config)
    agents = Agents(store.memories, specs, authentication=False, tokenizer=config.tokenizer, llm=config)
    log.info("at work on %s", without_password(config.at))
    while not stopping.wait(1):
        if specs:
            specs.reload()
            agents.check()  # which syncs the knowledge of the specs
        with suppress(AlcoveError):  # the next round tries again if the database is away
            agents.sessions.schedule_changed()
    agents.close()
    store.close()
    log.info("stopped")


def worker() -> ASGIApp:
    """The application of one worker process, with the configuration of its parent."""
    heap.configure_malloc()
    sys.setswitchinterval(_SWITCH_SECONDS)
    config = msgspec.json.decode(os.environ[_CONFIG_VARIABLE], type=ServeConfig)
    try:
        application = build(config)
    except Exception as error:
        if config.workers == 1:
            raise
        log.error("a worker cannot start: %s", error, exc_info=not isinstance(error, AlcoveError))
        sys.exit(STARTUP_FAILURE)
    heap.freeze_gc()
    return application


def build(config: ServeConfig) -> ASGIApp:
    """The application over the store that the configuration names."""
    from alcove.server import monitoring  # noqa: PLC0415  once `FOLDER` is set

    logs.configure(config.log_level, config.log_file)
    metrics = monitoring.Metrics()
    store = _store(config, metrics)
    memories, admin = store.memories, store.open_store.admin
    authenticate = make_authenticator(config, admin.find_api_key, remote_store=is_database(config.at))
    reads, changes = (ThreadPool(threads=config.threads, stops=stops) for stops in (True, False))
    access = monitoring.AccessLog(memories.pseudonym if config.log_pseudonyms else None)
    tail = Tail(memories.timeline.last_event, memories.timeline.on_commit)
    specs = _specs(config)
    agents = Agents(
        memories, specs, authentication=config.auth != "noop", tokenizer=config.tokenizer, llm=config
    )
    turns = ThreadPool(
        threads=config.llm_at_once + _WAITING_TURNS, stops=True, max_wait_seconds=config.turn_seconds
    )
    cookies = SessionCookies(memories.derive_key(COOKIE_KEY))
    tracing = import_module("alcove.server.tracing").Tracing() if config.tracing else None

    def denied(request: Request) -> None:
        """Records a call that lacked the role in the audit log; the policy records its own denials."""
        if request.user and request.route.startswith("/v1/admin"):
            with suppress(AlcoveError):  # the call was refused, even if the store cannot record it now
                memories.audit.count_denial(request.principal, f"{request.method} {request.route}")

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(metrics.keep_sampling())]
        if config.workers > 1:
            tasks.append(asyncio.create_task(worker_processes.stop_with_parent()))
        if specs:
            tasks.append(asyncio.create_task(_watch_specs(specs)))
        worker_processes.on_hangup(partial(_reload, config, specs, store))
        yield
        for each in tasks:
            each.cancel()
        agents.stop_models()  # nobody waits for an answer any more, but threads of turns may
        pools = (turns, reads, changes)
        for part in (*pools, agents, store):
            part.close()
        access.flush()
        if tracing:
            tracing.close()

    health = monitoring.Health(
        {**memories.readiness(), "agents": agents.check},
        reads,
        versions=lambda: {**memories.access.versions, **({"specs": specs.version} if specs else {})},
        authenticate=authenticate,
    )
    services = {
        **store.open_store.services,
        **services_by_class(*agents.services),
    }
    streams = Streams(services, memories, agents, reads, changes, tail)
    chat = ChatHandlers(agents, agents.chats, turns)
    serve = partial(endpoints, services=services, reads=reads, changes=changes, streams=streams)
    described = [
        *serve(MemoryOperations, restarts=True),
        *serve(AdminOperations),
        *serve(AgentOperations),
        *serve(SessionOperations),
        *serve(KnowledgeOperations),
        *serve(ChatOperations, reads=turns, changes=turns, streams=chat),
        *chat.endpoints(),
        *streams.endpoints(),
        *monitoring.endpoints(metrics, health),
    ]
    undescribed = [
        *pages(described, __version__),
        *McpHandlers(services, agents, reads, changes, tail).endpoints(),
        *Panel(authenticate, config.auth, cookies).endpoints(),
    ]
    max_requests = worker_processes.limit_requests(config.most_in_flight)
    Protocol.head_seconds, Protocol.max_idle = config.head_seconds, max(100, max_requests)
    Protocol.on_shutdown = tail.stop
    application = Application(
        [*described, *undescribed],
        authenticate,
        replace(config, most_in_flight=max_requests),
        access,
        reads,
        lifespan=lifespan,
        watchers=[metrics, tracing] if tracing else [metrics],
        denied=denied,
        take_request=memories.take_request if config.session_store else None,
        admit=cookies.admit,
        add_grants=agents.direct if specs else None,
    )
    metrics.requests, metrics.index = lambda: application.pending_count, memories.searcher.index_lag
    if config.cors_origins is None:
        return application
    return CORSMiddleware(  # no cookies: callers send a token or an API key
        application,
        allow_origins=[each.strip() for each in config.cors_origins.split(",")],
        allow_methods=sorted(METHODS),
        allow_headers=["*"],
        expose_headers=["x-request-id", "x-session-id", "mcp-session-id", "retry-after"],
    )


def _try_opening(config: ServeConfig) -> None:
    """Reads and opens all that workers will, so that a mistake is reported once and starts no worker."""
    specs = _specs(config)
    for warning in specs.current().warnings if specs else ():
        log.warning("agent specs: %s", warning)
    make_provider(config)
    _store(config).close()


def _specs(config: ServeConfig) -> WatchedSpecs | None:
    """The specs; requests never check their files."""
    path = Path(config.agents) if config.agents else None
    return WatchedSpecs(path, max_depth=config.max_depth, interval=math.inf) if path else None


def _reload(config: ServeConfig, specs: WatchedSpecs | None, store: Alcove) -> None:
    """Reopens the log file and reloads specs and policies; invalid ones leave the last valid ones active."""
    try:
        logs.write_to(config.log_file)
        if specs:
            specs.reload()
        store.reload_policy()
    except (AlcoveError, OSError) as error:
        log.error("not reloaded, the last valid version stays active: %s", error)
    else:
        log.info("reloaded")


async def _watch_specs(specs: WatchedSpecs) -> None:
    """Checks the files of specs every second, in a thread, because many take seconds to load."""
    while True:
        await asyncio.sleep(1)
        try:
            await asyncio.to_thread(specs.reload)
        except Exception:
            log.exception("the agent specs could not be checked")


def _store(config: ServeConfig, observer: Observer | None = None) -> Alcove:
    folder = Path(config.model_dir) if config.model_dir else None
    return Alcove(
        config.at,
        settings=config.settings(),
        policy_dir=config.policy_dir,
        observer=observer,
        embedder=embedder_for(config.embedder, folder=folder, key=config.embedder_key),
        reranker=reranker_for(config.reranker, key=config.reranker_key),
        vectors=vector_index_for(config.vectors, key=config.qdrant_key),
        index_wait_seconds=config.request_seconds / 2,
    )


def _has_short_secret(config: ServeConfig) -> bool:
    return config.jwt_secret is not None and len(config.jwt_secret.encode()) < SAFE_SECRET_BYTES


def _warn(config: ServeConfig) -> None:
    """Logs a warning for each setting that is allowed but unsafe."""
    if not config.auth.startswith("jwt"):
        return
    if _has_short_secret(config):
        log.warning(
            "jwt-secret: it has fewer than %d bytes and may be guessed: use a longer one", SAFE_SECRET_BYTES
        )
    if config.jwt_audience is None:
        log.warning(
            "jwt-audience is not set, so tokens that were issued for other services are accepted here: "
            "set --jwt-audience (ALCOVE_JWT_AUDIENCE) to the `aud` of tokens for this service"
        )


def check(config: ServeConfig) -> None:
    """Raises for a configuration that is invalid or unsafe, before anything is opened."""
    if config.auth == "noop" and config.host not in LOOPBACK and not config.insecure:
        expected = f"jwt or apikey to serve on {config.host}, where noop makes everybody an admin"
        raise InvalidRequest("auth", f"{expected} (--insecure serves it all the same)")
    takes_tokens = config.auth.startswith("jwt")
    sources = [config.jwt_secret, config.jwks_url, config.oidc_issuer]
    if takes_tokens and sum(bool(source) for source in sources) != 1:
        raise InvalidRequest("auth", "one of --jwt-secret, --jwks-url and --oidc-issuer with jwt")
    urls = {"jwks-url": config.jwks_url, "oidc-issuer": config.oidc_issuer, "llm-url": config.llm_url}
    for name, url in urls.items():
        if url is not None and not url.startswith(("http://", "https://")):
            raise InvalidRequest(name, "an address that starts with http:// or https://")
    for origin in [] if config.cors_origins is None else config.cors_origins.split(","):
        if origin.strip() != "*" and not re.fullmatch(r"https?://[^/\s]+", origin.strip()):
            raise InvalidRequest("cors-origins", "origins such as https://app.example.org, or *")
    if config.tokenizer not in FAMILIES:
        raise InvalidRequest("tokenizer", f"one of {', '.join(FAMILIES)}")
    if config.jwt_secret == "":
        raise InvalidRequest("jwt-secret", "a secret that is not empty")
    if takes_tokens and _has_short_secret(config) and config.host not in LOOPBACK:
        expected = f"at least {SAFE_SECRET_BYTES} bytes to serve on {config.host}, where others may guess it"
        raise InvalidRequest("jwt-secret", expected)
    if config.tracing:
        with requires_extra("--tracing", extra="tracing"):
            import_module("alcove.server.tracing")
