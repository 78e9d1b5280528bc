"""Commands that run the platform here: ``demo``, ``serve``, ``migrate``, ``model``."""

from __future__ import annotations

import argparse
from pathlib import Path

from lorry.cli.commands.parsing import Commands, home_of
from lorry.cli.sizes import budget, count, fraction, number, part, port, seconds, share, size
from lorry.config import HTTP_PORT, WEB_PORT, GatewayConfig, MemoryConfig, OpsConfig, SchedulerConfig
from lorry.logs import FORMATS, LEVELS

DTYPES = ("auto", "bfloat16", "float16", "float32")
DERIVED = {
    "max-sequences": "most requests in a step",
    "token-budget": "most tokens of a step",
    "prefill-chunk-tokens": "most prompt tokens of one request in a step",
    "page-tokens": "tokens of a KV page",
    "max-rank": "largest rank of an adapter",
    "threads": "the engine's threads",
    "max-slots": "most adapters on the device at once",
    "start-s": "seconds in which an engine must be warm",
}
"""Flags whose default the base, the budget and the cores decide (``lorry.engine.settings``), and what they bound."""


def register(commands: Commands) -> None:
    _demo(commands)
    _serve(commands)
    migrate = commands.add_parser("migrate", help="bring a registry's database to the newest schema")
    migrate.add_argument(
        "--url", default=None, help="SQLAlchemy URL (default: LORRY_REGISTRY_URL, or the registry in LORRY_HOME)"
    )
    migrate.set_defaults(run=_run_migrate)
    model = commands.add_parser("model", help="prepare the demo's base model under LORRY_HOME")
    model.set_defaults(run=_run_model)


def _demo(commands: Commands) -> None:
    demo = commands.add_parser("demo", help="the main job on a real model: start everything, show it, stop it")
    demo.add_argument("--home", type=Path, default=None, help="instead of LORRY_HOME")
    demo.add_argument("--svg", type=Path, default=None, metavar="FILE", help="write the tables as a picture too")
    demo.set_defaults(run=_run_demo)


def _serve(commands: Commands) -> None:
    defaults, memory, ops = GatewayConfig(), MemoryConfig(), OpsConfig()
    serve = commands.add_parser("serve", help="run the platform on this machine until Ctrl-C")
    serve.add_argument("--home", type=Path, default=None, help="instead of LORRY_HOME")
    serve.add_argument("--demo", action="store_true", help="serve what the last `lorry demo` made")
    serve.add_argument("--base", type=Path, default=None, help="Hugging Face folder of the base (default: the demo's)")
    serve.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=port, default=defaults.port, help="port, 0 is any (default: %(default)s)")
    sized = serve.add_mutually_exclusive_group()
    sized.add_argument(
        "--memory-budget",
        type=budget,
        default=None,
        metavar="SIZE",
        help=f"for KV and adapters together, as 2GiB, or auto: {memory.budget_bytes >> 20}MiB, and on a GPU what a "
        "profiling pass leaves (default: auto)",
    )
    sized.add_argument("--memory-budget-mb", type=count, default=None, metavar="MIB", help="the same, in MiB")
    for name, kind, default, what in (
        ("adapter", part, memory.adapter_fraction, "most of the budget for adapters' rank rows"),
        ("extras", fraction, memory.extras_fraction, "most of it for all else that adapters bring"),
        ("kv", fraction, memory.kv_fraction, "what adapters leave of it to KV"),
    ):
        text = f"{what} (default: %(default)s)"
        serve.add_argument(f"--{name}-fraction", type=kind, default=default, metavar="F", help=text)
    serve.add_argument(
        "--dtype",
        choices=DTYPES,
        default=DTYPES[0],
        help="of the base's weights; auto: bfloat16, or float32 on a CPU without products of it (default: %(default)s)",
    )
    serve.add_argument("--device", default="cpu", help="cpu, or cuda or cuda:1 for a GPU (default: %(default)s)")
    serve.add_argument(
        "--context-tokens",
        type=count,
        default=SchedulerConfig().context_tokens,
        help="longest prompt and answer together (default: %(default)s)",
    )
    for name, what in DERIVED.items():
        serve.add_argument(f"--{name}", type=count, default=None, metavar="N", help=f"{what} (default: derived)")
    serve.add_argument(
        "--host-tier", type=size, default=None, metavar="SIZE", help="host memory for adapters (default: derived)"
    )
    serve.add_argument(
        "--staleness",
        choices=("strict", "available"),
        default=defaults.staleness,
        help="without its registry: end everything (strict), or refuse new calls alone (default: %(default)s)",
    )
    serve.add_argument(
        "--staleness-seconds", type=seconds, default=None, metavar="S", help="after so long (default: 5, or 300)"
    )
    serve.add_argument("--http-host", default=defaults.http_host, help="for OpenAI's API (default: %(default)s)")
    web = serve.add_mutually_exclusive_group()
    web.add_argument(
        "--http-port", type=port, default=None, help=f"its port (default: {HTTP_PORT}; any where --port is 0)"
    )
    web.add_argument("--no-http", action="store_true", help="do not serve OpenAI's API")
    serve.add_argument("--ops-host", default=ops.host, help="where health and state are served (default: %(default)s)")
    serve.add_argument("--ops-port", type=port, default=ops.port, help="its port, 0 is any (default: %(default)s)")
    serve.add_argument("--web-host", default=defaults.http_host, help="for the dashboards (default: %(default)s)")
    pages = serve.add_mutually_exclusive_group()
    pages.add_argument(
        "--web-port", type=port, default=None, help=f"their port (default: {WEB_PORT}; any where --port is 0)"
    )
    pages.add_argument("--no-web", action="store_true", help="do not serve the dashboards")
    serve.add_argument(
        "--web-url", default="", metavar="URL", help="what browsers call them, where a proxy is in between"
    )
    tenants = "so many of the largest tenants have metrics of their own (default: %(default)s)"
    serve.add_argument("--metrics-tenants", type=number, default=defaults.metrics_tenants, metavar="N", help=tenants)
    adapters = "most names of adapters that /metrics/router lists (default: %(default)s, none)"
    serve.add_argument("--router-adapters", type=number, default=ops.router_adapters, metavar="N", help=adapters)
    _watching(serve)
    _transport(serve, defaults)
    _elsewhere(serve)
    serve.set_defaults(run=_run_serve)


def _watching(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--log-format",
        choices=FORMATS,
        default=FORMATS[0],
        help="a log's line for people, or JSON (default: %(default)s)",
    )
    serve.add_argument(
        "--log-level", choices=LEVELS, default="info", help="what is said at least (default: %(default)s)"
    )
    serve.add_argument(
        "--trace-endpoint",
        default=None,
        metavar="URL",
        help="send OpenTelemetry traces to the OTLP/gRPC collector there, as http://127.0.0.1:4317 (default: "
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT, or no traces)",
    )
    serve.add_argument(
        "--trace-ratio",
        type=share,
        default=None,
        metavar="F",
        help="so many of the traces that begin here are kept (default: OTEL_TRACES_SAMPLER_ARG, or 1)",
    )


def _transport(serve: argparse.ArgumentParser, defaults: GatewayConfig) -> None:
    serve.add_argument(
        "--tls-cert", type=Path, default=None, metavar="FILE", help="TLS on both ports: the certificate's chain (PEM)"
    )
    serve.add_argument("--tls-key", type=Path, default=None, metavar="FILE", help="its private key (PEM)")
    serve.add_argument(
        "--tls-client-ca",
        type=Path,
        default=None,
        metavar="FILE",
        help="mTLS: who connects needs a certificate that one of these authorities signed (PEM)",
    )
    serve.add_argument(
        "--max-message",
        type=size,
        default=defaults.max_message_bytes,
        metavar="SIZE",
        help=f"most bytes of a request (default: {defaults.max_message_bytes >> 20}MiB)",
    )
    serve.add_argument(
        "--keepalive",
        type=seconds,
        default=defaults.keepalive_seconds,
        metavar="S",
        help="ask a silent gRPC connection after so long whether it is still there (default: %(default)s)",
    )
    serve.add_argument(
        "--connection-age",
        type=seconds,
        default=None,
        metavar="S",
        help="send gRPC clients to a new connection after so long; calls go on where they are (default: never)",
    )


def _elsewhere(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--registry-url",
        default=None,
        metavar="URL",
        help="postgresql://USER@HOST/DATABASE or sqlite:////FILE; with a password rather in LORRY_REGISTRY_URL, as "
        "others see a command line (default: SQLite in the home)",
    )
    serve.add_argument(
        "--store",
        default=None,
        metavar="URL",
        help="s3://BUCKET/PREFIX for adapters, credentials as boto3 finds them (AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, ...) (default: an S3 server in the home)",
    )
    serve.add_argument("--s3-endpoint", default=None, metavar="URL", help="of an S3 that is not Amazon's")
    serve.add_argument(
        "--s3-region", default=None, metavar="R", help="its region (default: AWS_REGION, AWS_DEFAULT_REGION, us-east-1)"
    )


def _run_demo(options: argparse.Namespace) -> int:
    from rich.console import Console

    from lorry.cli.demo import run_demo
    from lorry.loops import run

    return run(run_demo(home_of(options), Console(), options.svg))


def _run_serve(options: argparse.Namespace) -> int:
    from lorry.cli.serve import serve
    from lorry.loops import run

    return run(serve(options, home_of(options)))


def _run_migrate(options: argparse.Namespace) -> int:
    from lorry.cli.migrate import migrate

    return migrate(options, home_of(options))


def _run_model(options: argparse.Namespace) -> int:
    from lorry.cli.model import main as model

    return model()


__all__ = ["register"]
