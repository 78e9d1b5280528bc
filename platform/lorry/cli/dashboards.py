"""The dashboards beside the gateway, in its process: a client of it, over a socket that nobody else can open."""

from __future__ import annotations

from dataclasses import replace

from lorry.gateway.server import GatewayServer
from lorry.gateway.tls import ServerTls
from lorry.registry import Registry
from lorry_admin.web import WebConfig, WebServer, build_web


def dashboards(
    config: WebConfig, registry: Registry, server: GatewayServer, private: str, tls: ServerTls | None
) -> WebServer:
    """Bound, not started. ``private``: where the gateway listens for this process alone, plain also where its port
    speaks TLS; ``tls``: the dashboards' too. Raises Unavailable where the port cannot be bound."""
    http = "" if server.http is None else server.http.address
    told = replace(
        config, grpc_address=config.grpc_address or server.address, grpc_tls=tls is not None, http_url=http,
        tls=tls is not None,
    )  # fmt: skip
    return WebServer(build_web(told, registry.accounts, private), None if tls is None else tls.http_context())


__all__ = ["dashboards"]
