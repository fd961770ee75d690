"""How the service is configured: by flags, the environment (`ALCOVE_…`), a YAML file, in that order.

Every option is a field of `ServeConfig` and nothing else: its flag, its variable, its name in the file,
its help and its default are all read off that field.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
import msgspec
from click.core import ParameterSource
from msgspec import Meta, Struct

from alcove.core.settings import Settings


def _about(text: str, *, least: float | None = None, most: float | None = None) -> Meta:
    return Meta(description=text, ge=least, le=most)


class ServeConfig(Struct, frozen=True, kw_only=True):
    """Everything `alcove serve` can be told."""

    host: Annotated[str, _about("Address to serve on.")] = "127.0.0.1"
    port: Annotated[int, _about("Port to serve on.", least=1, most=65535)] = 8080
    at: Annotated[str, _about("The store's file.")] = "memory.db"
    workers: Annotated[int, _about("Processes that serve, all on the same store.", least=1, most=256)] = 1
    threads: Annotated[
        int, _about("Threads a worker has for calls that read many rows.", least=1, most=256)
    ] = 8
    auth: Annotated[Literal["noop", "jwt", "apikey"], _about("How callers say who they are.")] = "noop"
    insecure: Annotated[bool, _about("Serve without authentication on other addresses, too.")] = False
    jwt_secret: Annotated[str | None, _about("Shared secret of HS256 tokens.")] = None
    jwks_url: Annotated[str | None, _about("Where the key set of RS256 and ES256 tokens is.")] = None
    oidc_issuer: Annotated[str | None, _about("Issuer whose key set is found by discovery.")] = None
    jwt_issuer: Annotated[str | None, _about("`iss` that tokens must have.")] = None
    jwt_audience: Annotated[str | None, _about("`aud` that tokens must have.")] = None
    jwt_user_claim: Annotated[str, _about("Claim that names the user.")] = "sub"
    jwt_roles_claim: Annotated[
        str, _about("Claim with the list of roles; dots lead into objects, as in realm_access.roles.")
    ] = "roles"
    jwt_leeway: Annotated[float, _about("Seconds that clocks may differ.", least=0, most=86400)] = 0.0
    jwt_require_exp: Annotated[bool, _about("Refuse tokens that never expire.")] = True
    policy_dir: Annotated[str | None, _about("Folder of Rego files; the built-in ones without it.")] = None
    agents: Annotated[str | None, _about("File or folder of agent and team specs.")] = None
    rate_limit: Annotated[
        float, _about("Requests a second for each principal; 0 for any number.", least=0, most=1000000000)
    ] = 0.0
    request_seconds: Annotated[float, _about("Longest that a request may take.", least=0.001, most=86400)] = (
        30.0
    )
    head_seconds: Annotated[
        float, _about("Longest that a request's head may take to come.", least=0.1, most=86400)
    ] = 10.0
    max_body_bytes: Annotated[int, _about("Largest body of a request.", least=1, most=2147483648)] = (
        4 * 1024 * 1024
    )
    most_in_flight: Annotated[
        int,
        _about(
            "Requests at once, and streams beside them; one user gets four fifths.", least=1, most=1000000
        ),
    ] = 1000
    max_depth: Annotated[int, _about("Segments in a namespace.", least=1, most=100)] = 5
    max_value_bytes: Annotated[int, _about("Largest value, as compact JSON.", least=1, most=2147483648)] = (
        1024 * 1024
    )
    retention_days: Annotated[
        float, _about("Days that superseded versions and tombstones stay.", least=1e-9, most=1000000)
    ] = 90.0
    sweep_interval: Annotated[float, _about("Seconds between two sweeps.", least=0, most=1000000)] = 60.0
    busy_timeout: Annotated[
        float, _about("Seconds a write waits for another process.", least=0.001, most=3600)
    ] = 10.0
    embedder: Annotated[
        str, _about("minilm, none, fastembed:MODEL, or http(s)://HOST/v1#MODEL for an OpenAI-compatible one.")
    ] = "minilm"
    embedder_key: Annotated[str | None, _about("Key of an embedder behind a URL.")] = None
    model_dir: Annotated[str | None, _about("Folder with other weights for minilm.")] = None
    indexing_batch_size: Annotated[int, _about("Texts embedded at a time.", least=1, most=10000)] = 100
    indexing_interval: Annotated[
        float,
        _about(
            "Seconds between two looks for what to index, beside those at each write.",
            least=0.001,
            most=86400,
        ),
    ] = 30.0
    search_memory_mb: Annotated[
        int, _about("Megabytes that searched subtrees may take in a worker.", least=1, most=1048576)
    ] = 1024
    tracing: Annotated[
        bool, _about("Send a span for each request to where OTEL_EXPORTER_OTLP_ENDPOINT says.")
    ] = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _about("How much is logged.")] = "info"
    log_file: Annotated[
        str | None, _about("File for the log instead of the standard output; opened anew at SIGHUP.")
    ] = None

    log_pseudonyms: Annotated[
        bool, _about("Log a pseudonym for each user and client instead of their names.")
    ] = False

    def settings(self) -> Settings:
        """The part that the store is opened with."""
        return Settings(
            max_depth=self.max_depth,
            max_value_bytes=self.max_value_bytes,
            retention_days=self.retention_days,
            sweep_interval=self.sweep_interval,
            busy_timeout=self.busy_timeout,
            indexing_batch=self.indexing_batch_size,
            indexing_interval=self.indexing_interval,
            search_memory_mb=self.search_memory_mb,
        )


ALIASES = {
    "memory.episodic.namespace.max_depth": "max_depth",
    "memory.episodic.indexing.batch_size": "indexing_batch_size",
    "memory.episodic.indexing.interval": "indexing_interval",
}
"""Names of settings that other programs' configurations use."""
VARIABLES = {"policy_dir": ["MEMORY_SERVICE_POLICY_DIR"]}
SECRETS = ("jwt_secret", "embedder_key")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command every option of `ServeConfig`, and `--config` for a file with some of them."""
    hints = get_type_hints(ServeConfig, include_extras=True)
    for field in reversed(msgspec.structs.fields(ServeConfig)):
        kind, (about,) = hints[field.name].__origin__, hints[field.name].__metadata__
        names = [f"ALCOVE_{field.name.upper()}", *VARIABLES.get(field.name, [])]
        flag = f"--{field.name.replace('_', '-')}"
        command = click.option(
            f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
            field.name,
            type=_click_type(kind, about),
            default=field.default,
            show_default=field.default is not None,
            envvar=names,
            help=about.description,
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
    """Where each effective value came from, in words."""
    words = {
        ParameterSource.COMMANDLINE: "flag",
        ParameterSource.ENVIRONMENT: "environment",
        ParameterSource.DEFAULT_MAP: "file",
    }
    return {
        name: words.get(context.get_parameter_source(name) or ParameterSource.DEFAULT, "default")
        for name in ServeConfig.__struct_fields__
    }


def _click_type(kind: Any, about: Meta) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind is int:
        return click.IntRange(about.ge, about.le)  # type: ignore[arg-type]
    if kind is float:
        return _Number(about.ge, about.le)
    return bool if kind is bool else str


class _Number(click.FloatRange):
    """A number within its bounds, which NaN is not, although no comparison says so."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        return number if math.isfinite(number) else self.fail(f"{value} is not a number", param, ctx)


def _read_file(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    import yaml  # noqa: PLC0415  only who has a file needs it

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: {error}") from None
    values: dict[str, Any] = {}
    for name, value in _flat(found if isinstance(found, dict) else {str(found): None}):
        option = ALIASES.get(name, name.replace("-", "_"))
        if option not in ServeConfig.__struct_fields__:
            raise click.UsageError(f"{path}: {name}: there is no such option")
        if isinstance(value, list):
            raise click.UsageError(f"{path}: {name}: expected one value, not a list")
        if value is not None:
            values[option] = str(value)  # read as if typed: 5.5 is no whole number
    context.default_map = values


def _flat(tree: dict[Any, Any], above: str = "") -> list[tuple[str, Any]]:
    """Nested names joined by dots."""
    pairs: list[tuple[str, Any]] = []
    for name, value in tree.items():
        path = f"{above}{name}"
        pairs += _flat(value, f"{path}.") if isinstance(value, dict) else [(path, value)]
    return pairs
