"""Connections: plain, or with TLS out of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

import lorry
from lorry.errors import InvalidRequest

Option = tuple[str, str | int]
KEEPALIVE_S = 60.0
"""A call that has heard nothing for so long asks whether the server is still there: a box between them forgets silent
connections. Rarer than what a gateway lets its clients do (``GatewayConfig.min_ping_seconds``)."""
KEEPALIVE_ANSWER_S = 20.0
"""Without an answer by then the connection is gone, and its calls end UNAVAILABLE."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. ``ca`` None: the authorities that gRPC trusts. ``cert`` and ``key``, both or neither: the client's
    own, for servers that ask for one. ``server_name``: the name in the server's certificate where it is not the
    address's."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Raises InvalidRequest naming the file that cannot be read."""
        if (self.cert is None) != (self.key is None):
            raise InvalidRequest.field("tls", "cert and key belong together; give both or neither")
        return grpc.ssl_channel_credentials(
            root_certificates=_read("ca", self.ca),
            private_key=_read("key", self.key),
            certificate_chain=_read("cert", self.cert),
        )


def channel_options(tls: Tls | None) -> list[Option]:
    """The library's own retries are off: ``lorry.client.retry`` decides."""
    options: list[Option] = [
        ("grpc.enable_retries", 0),
        ("grpc.primary_user_agent", f"lorry-python/{lorry.__version__}"),
        ("grpc.keepalive_time_ms", round(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", round(KEEPALIVE_ANSWER_S * 1000)),
        ("grpc.http2.max_pings_without_data", 0),  # a long wait is one without data
    ]
    if tls is not None and tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def open_channel(address: str, credentials: grpc.ChannelCredentials | None, tls: Tls | None) -> grpc.Channel:
    """Plain without ``credentials`` and ``tls``."""
    found = _credentials(credentials, tls)
    if found is None:
        return grpc.insecure_channel(address, options=channel_options(tls))
    return grpc.secure_channel(address, found, options=channel_options(tls))


def open_aio_channel(address: str, credentials: grpc.ChannelCredentials | None, tls: Tls | None) -> grpc.aio.Channel:
    """As ``open_channel``, for asyncio."""
    found = _credentials(credentials, tls)
    if found is None:
        return grpc.aio.insecure_channel(address, options=channel_options(tls))
    return grpc.aio.secure_channel(address, found, options=channel_options(tls))


def _credentials(credentials: grpc.ChannelCredentials | None, tls: Tls | None) -> grpc.ChannelCredentials | None:
    if credentials is not None and tls is not None:
        raise InvalidRequest.field("tls", "credentials are given too; give one of the two")
    return tls.credentials() if tls is not None else credentials


def _read(field: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest.field(
            f"tls.{field}", f"{path} cannot be read ({error.strerror}); give a PEM file"
        ) from None


__all__ = ["KEEPALIVE_ANSWER_S", "KEEPALIVE_S", "Option", "Tls", "channel_options", "open_aio_channel", "open_channel"]
