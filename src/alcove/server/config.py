"""The configuration of the service: from flags, the environment (`ALCOVE_…`) and a YAML file, in that order.

A variable may also name a file that holds the value: `ALCOVE_JWT_SECRET_FILE`.

Every option is a field of `ServeConfig`: its flag, its variable, its name in the file, its help and its
default are derived from that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from alcove.core.clock import parse_duration
from alcove.core.settings import MIB, LLMSettings, Settings, read_variable, setting


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Settings, LLMSettings):
    """All options of `alcove serve`: those of the store and of agents, and those of the server."""

    host: str = setting("127.0.0.1", "Address to serve on.")
    port: int = setting(8080, "Port to serve on.", max=65535)
    at: str = setting("memory.db", "The store's file, or postgresql://USER@HOST/DATABASE.")
    workers: int = setting(1, "Number of worker processes, all on the same store.", max=256)
    threads: int = setting(8, "Threads of each worker for calls that read many rows.", max=256)
    auth: Literal["noop", "jwt", "apikey", "jwt,apikey"] = setting(
        "noop", "How callers authenticate; jwt,apikey accepts both tokens and API keys."
    )
    insecure: bool = setting(False, "Serve without authentication on other addresses, too.")
    cors_origins: str | None = setting(
        None, "Origins whose pages may call from a browser, separated by commas, or *; default: none."
    )
    jwt_secret: str | None = setting(None, "Shared secret of HS256 tokens.")
    jwks_url: str | None = setting(None, "URL of the key set of RS256 and ES256 tokens.")
    oidc_issuer: str | None = setting(None, "Issuer whose key set is found by discovery.")
    jwt_issuer: str | None = setting(None, "`iss` that tokens must have.")
    jwt_audience: str | None = setting(None, "`aud` that tokens must have.")
    jwt_user_claim: str = setting("sub", "Claim that names the user.")
    jwt_roles_claim: str = setting(
        "roles", "Claim with the list of roles; dots lead into objects, as in realm_access.roles."
    )
    jwt_leeway: float = setting(0.0, "Seconds by which clocks may differ.", min=0, max=86_400)
    jwt_require_exp: bool = setting(True, "Refuse tokens that never expire.")
    policy_dir: str | None = setting(None, "Folder of Rego files; default: the built-in ones.")
    agents: str | None = setting(None, "File or folder of agent and team specs.")
    tokenizer: str = setting(
        "o200k", "Family of the models for which tokens are counted, such as llama3 or claude."
    )
    rate_limit: float = setting(
        0.0, "Requests per second for each principal; 0 for no limit.", min=0, max=10**9
    )
    request_seconds: float = setting(30.0, "Seconds that a request may take.", min=0.001, max=86_400)
    head_seconds: float = setting(
        10.0, "Seconds until the head of a request must have arrived.", min=0.1, max=86_400
    )
    max_body_bytes: int = setting(4 * MIB, "Bytes that the body of a request may have.", max=2048 * MIB)
    most_in_flight: int = setting(
        1000, "Simultaneous requests, and as many streams; one user gets at most four fifths.", max=1_000_000
    )
    embedder: str = setting(
        "minilm",
        "minilm, none, onnx:FOLDER, ollama:MODEL, openai:MODEL, fastembed:MODEL, "
        "or http(s)://HOST/v1#MODEL for an OpenAI-compatible one.",
    )
    embedder_key: str | None = setting(None, "Key of an embedder behind a URL.")
    reranker: str | None = setting(
        None, "http(s)://HOST/v1/rerank#MODEL, which orders the first 50 hits of a search."
    )
    reranker_key: str | None = setting(None, "Key of the reranker.")
    vectors: str | None = setting(
        None,
        "Vector index of a store in PostgreSQL: pgvector, qdrant://HOST:PORT, or qdrants://HOST:PORT "
        "for TLS; default: the one that the store used last, at first pgvector.",
    )
    qdrant_key: str | None = setting(None, "API key of Qdrant.")
    model_dir: str | None = setting(None, "Folder with other weights for minilm.")
    tracing: bool = setting(False, "Send a span for each request to OTEL_EXPORTER_OTLP_ENDPOINT.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Lowest level that is logged.")
    log_file: str | None = setting(
        None, "File for the log instead of the standard output; reopened at SIGHUP."
    )
    log_pseudonyms: bool = setting(False, "Log a pseudonym for each user and client instead of their names.")

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        LLMSettings.__post_init__(self)

    def settings(self) -> Settings:
        """The settings of the store."""
        return Settings(**{each.name: getattr(self, each.name) for each in fields(Settings)})


ALIASES = {
    "engine": "at",
    "indexing_batch_size": "indexing_batch",
    "memory.episodic.namespace.max_depth": "max_depth",
    "memory.episodic.indexing.batch_size": "indexing_batch",
    "memory.episodic.indexing.interval": "indexing_interval",
}
"""Other names of options: older ones, and in a file those of other programs."""
VARIABLES = {"policy_dir": ["MEMORY_SERVICE_POLICY_DIR"]}
SECRETS = ("jwt_secret", "embedder_key", "reranker_key", "llm_key", "qdrant_key", "session_store")
_OPTIONS = {
    each.name: each
    for each in sorted(fields(ServeConfig), key=lambda each: each.name in Settings.__dataclass_fields__)
    if each.name != "retention_max_age"  # a mapping, which a flag cannot express
}


class Option(click.Option):
    """An option whose variable may name a file with the value."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        names = [self.envvar] if isinstance(self.envvar, str) else self.envvar or ()
        return next(filter(None, map(read_variable, names)), None)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds all options of `ServeConfig` to a command, and `--config` for a file with some of them."""
    kinds = get_type_hints(ServeConfig)
    for name, declared in reversed(_OPTIONS.items()):
        kind, setting = kinds[name], declared.metadata
        names = [name, *(alias for alias, option in ALIASES.items() if option == name and "." not in alias)]
        flags = [f"--{each.replace('_', '-')}" for each in names]
        command = click.option(
            *([f"{flags[0]}/--no-{flags[0][2:]}"] if kind is bool else flags),
            name,
            cls=Option,
            type=_click_type(kind, setting["min"], setting["max"]),
            default=declared.default,
            show_default=declared.default is not None,
            envvar=[*(f"ALCOVE_{each.upper()}" for each in names), *VARIABLES.get(name, [])],
            help=setting["help"],
        )(command)
    return click.option(
        "--config",
        "file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="ALCOVE_CONFIG",
        is_eager=True,
        expose_value=False,
        callback=_read_file,
        help="YAML file with any of these options.",
    )(command)


def sources(context: click.Context) -> dict[str, str]:
    """The source of each value: flag, environment, file or default."""
    words: dict[ParameterSource | None, str] = {
        ParameterSource.COMMANDLINE: "flag",
        ParameterSource.ENVIRONMENT: "environment",
        ParameterSource.DEFAULT_MAP: "file",
    }
    return {name: words.get(context.get_parameter_source(name), "default") for name in _OPTIONS}


def _click_type(kind: Any, minimum: float | None, maximum: float | None) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind is int:
        return click.IntRange(1 if minimum is None else int(minimum), maximum)  # type: ignore[arg-type]
    if kind is float:
        return _Number(minimum or 0, maximum, min_open=minimum is None)
    return bool if kind is bool else str


class _Number(click.FloatRange):
    """A finite number within its bounds, or a duration such as 90s, 15m, 1h or 7d."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        name = param and param.name
        if name and name != "rate_limit":
            duration = parse_duration(str(value), "d" if name.endswith("_days") else "s")
            value = value if duration is None else duration
        number = float(super().convert(value, param, ctx))
        return number if math.isfinite(number) else self.fail(f"{value} is not a number", param, ctx)


def _read_file(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    import yaml  # noqa: PLC0415  needed only for a file

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: {error}") from None
    values: dict[str, Any] = {}
    for name, value in _flatten(content if isinstance(content, dict) else {str(content): None}):
        option = name.replace("-", "_")
        option = ALIASES.get(option, option)
        if option not in _OPTIONS:
            raise click.UsageError(f"{path}: {name}: there is no such option")
        if isinstance(value, list):
            raise click.UsageError(f"{path}: {name}: expected one value, not a list")
        if value is not None:
            values[option] = str(value)  # parsed as if typed on the command line: 5.5 is no integer
    context.default_map = values


def _flatten(tree: dict[Any, Any], above: str = "") -> list[tuple[str, Any]]:
    """The values of a tree by their paths, such as `a.b`."""
    pairs: list[tuple[str, Any]] = []
    for name, value in tree.items():
        path = f"{above}{name}"
        pairs += _flatten(value, f"{path}.") if isinstance(value, dict) else [(path, value)]
    return pairs
