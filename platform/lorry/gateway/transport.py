"""A gateway's gRPC connections: sizes, keepalive, age."""

from __future__ import annotations

from lorry.config import GatewayConfig
from lorry.guest import HANDSHAKE_S

PENDING = 50_000
"""Calls that have come and no handler has taken yet, some KiB each. Beyond 1000 of them grpc by itself cancels calls at
random, which clients neither understand nor send again; here they wait, and their deadlines hold."""
Option = tuple[str, int]


def channel_options(config: GatewayConfig) -> list[Option]:
    """Of the server. What is None in ``config`` has no limit."""
    options: list[Option] = [
        ("grpc.so_reuseport", 0),
        ("grpc.server.max_pending_requests", PENDING),
        ("grpc.server.max_pending_requests_hard_limit", PENDING),
        ("grpc.server_handshake_timeout_ms", _ms(HANDSHAKE_S)),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", -1 if config.max_send_bytes is None else config.max_send_bytes),
        ("grpc.keepalive_time_ms", _ms(config.keepalive_seconds)),
        ("grpc.keepalive_timeout_ms", _ms(config.keepalive_timeout_seconds)),
        # Both ways: the server pings without calls, and takes it well that clients do.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(config.min_ping_seconds)),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    if config.connection_age_seconds is not None:
        options.append(("grpc.max_connection_age_ms", _ms(config.connection_age_seconds)))
        if config.connection_age_grace_seconds is not None:
            options.append(("grpc.max_connection_age_grace_ms", _ms(config.connection_age_grace_seconds)))
    return options


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


__all__ = ["PENDING", "Option", "channel_options"]
