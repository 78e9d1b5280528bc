"""TLS of the listening ports: files are checked before anything is bound, and taken up again when they are renewed."""

from __future__ import annotations

import logging
import os
import ssl
import stat
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from lorry import pem
from lorry.config import TlsConfig
from lorry.errors import InvalidRequest

LOOK_S = 1.0
"""A renewal is taken up by the first connection that comes so long after it, at the latest."""
_MOST_BYTES = 1 << 20
_TRIES = 3
_CERT, _KEY, _CA = "--tls-cert", "--tls-key", "--tls-client-ca"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Files:
    """The bytes of all files at one moment."""

    cert: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None
    key_mode: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Material:
    """Files that belong together, ready for both ports."""

    files: _Files = field(repr=False)
    context: ssl.SSLContext
    not_after: float
    """Of the server's certificate."""


class ServerTls:
    """Safe from any thread: gRPC's handshakes run on threads of its own."""

    def __init__(self, config: TlsConfig, look_seconds: float = LOOK_S) -> None:
        """Raises InvalidRequest naming flag, file and remedy; never what a key file holds."""
        self._config = config
        self._look_seconds = look_seconds
        self._lock = threading.Lock()
        self._material = _load(config)
        self._looked = time.monotonic()
        self._grpc_has = self._material
        self._refused = ""
        self._renewals = 0
        self.warnings = _warnings(config, self._material.files)

    @property
    def words(self) -> str:
        return "TLS, client certificates required" if self._config.mutual else "TLS"

    def grpc_credentials(self) -> grpc.ServerCredentials:
        self._grpc_has = self._material
        return grpc.dynamic_ssl_server_credentials(
            _grpc_configuration(self._material.files), self._renewed_for_grpc, self._config.mutual
        )

    def http_context(self) -> ssl.SSLContext:
        """The same object for as long as a port lives; each handshake goes on with the newest files."""
        context = self._material.context
        context.sni_callback = self._renewed_for_http  # is called for clients that name no server too
        return context

    def state(self) -> dict[str, Any]:
        """For operators; what it says of files names them and holds nothing of theirs."""
        with self._lock:
            return {
                "client_certificates": self._config.mutual,
                "not_after": self._material.not_after,
                "renewals": self._renewals,
                "refused_renewal": self._refused or None,
            }

    def _renewed_for_grpc(self) -> Any:
        """None: as before."""
        found = self._newest()
        if found is self._grpc_has:
            return None
        made = _grpc_configuration(found.files)
        self._grpc_has = found
        return made

    def _renewed_for_http(self, connection: Any, name: str | None, first: ssl.SSLContext) -> None:
        connection.context = self._newest().context

    def _newest(self) -> _Material:
        """What lies on disk, if it is whole; else what was there before."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= self._look_seconds:
                self._looked = now
                self._look()
            return self._material

    def _look(self) -> None:
        try:
            if _read_all(self._config) == self._material.files:
                self._refused = ""
                return
            self._material = _load(self._config)
        except InvalidRequest as error:
            if error.message != self._refused:
                _log.warning("TLS files were changed and are not taken up, those before stay: %s", error.message)
            self._refused = error.message
            return
        self._refused, self._renewals = "", self._renewals + 1
        _log.info("TLS files were renewed; the certificate holds until %s", pem.day(self._material.not_after))
        for warning in _warnings(self._config, self._material.files):
            _log.warning("%s", warning)


def clear_warning(what: str, host: str, flags: str = f"{_CERT} and {_KEY}") -> str:
    """Of a plain port that others than this machine's processes reach."""
    return f"warning: API keys travel in the clear to {what} on {host}; give {flags}, unless a mesh encrypts"


def _load(config: TlsConfig) -> _Material:
    """A context takes files alone, so they are read before and after it did: both times the same bytes."""
    for _ in range(_TRIES):
        files = _read_all(config)
        chain = _check(config, files)
        context = _context(config, files)
        if _read_all(config) == files:
            return _Material(files, context, chain[0].not_after)
    raise _refusal(_CERT, config.cert, "or its key is being written; try again when that is done")


def _context(config: TlsConfig, files: _Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET  # a resumed session is not judged by today's files
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.cert, config.key, _no_passphrase)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or "they cannot be read"
        why = f"is not the key of the first certificate in {config.cert}; give the one that is"
        if "MISMATCH" not in reason:
            why = f"and {config.cert} are not taken by TLS ({reason}); give PEM files that belong together"
        raise _refusal(_KEY, config.key, why) from None
    if files.client_ca is not None:
        assert config.client_ca is not None
        try:
            context.load_verify_locations(cadata=pem.blocks(files.client_ca))
        except ssl.SSLError as error:
            why = f"is not taken by TLS ({error.reason}); give the certificates of clients' authorities (PEM)"
            raise _refusal(_CA, config.client_ca, why) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_passphrase() -> bytes:
    """Python would ask the terminal."""
    return b""


def _read_all(config: TlsConfig) -> _Files:
    cert, _ = _read(_CERT, config.cert, "the server's certificate")
    key, mode = _read(_KEY, config.key, "its private key")
    client_ca = None
    if config.client_ca is not None:
        client_ca, _ = _read(_CA, config.client_ca, "the certificates of clients' authorities")
    return _Files(cert, key, client_ca, mode)


def _read(flag: str, path: Path, what: str) -> tuple[bytes, int]:
    """And its mode."""
    try:
        with path.open("rb") as handle:
            found, mode = handle.read(_MOST_BYTES + 1), stat.S_IMODE(os.fstat(handle.fileno()).st_mode)
    except OSError as error:
        raise _refusal(flag, path, f"cannot be read ({error.strerror}); give {what} (PEM), for this user") from None
    if len(found) > _MOST_BYTES:
        raise _refusal(flag, path, f"is larger than {_MOST_BYTES} bytes; give {what} (PEM)")
    return found, mode


def _check(config: TlsConfig, files: _Files) -> list[pem.Validity]:
    """The chain's certificates."""
    if not pem.holds_private_key(files.key):
        raise _refusal(_KEY, config.key, "holds no private key in PEM; give the one that the certificate was made with")
    if pem.is_encrypted(files.key):
        raise _refusal(_KEY, config.key, "needs a passphrase; give one without (openssl pkey -in FILE -out FILE)")
    chain = _certificates(_CERT, config.cert, files.cert)
    if files.client_ca is not None:
        assert config.client_ca is not None
        _certificates(_CA, config.client_ca, files.client_ca)
    return chain


def _certificates(flag: str, path: Path, found: bytes) -> list[pem.Validity]:
    try:
        chain = pem.certificates(found)
    except ValueError as error:
        raise _refusal(flag, path, f"holds a damaged certificate ({error}); give a PEM file that is whole") from None
    if not chain:
        raise _refusal(flag, path, "holds no certificate in PEM; convert it, or give another")
    return chain


def _warnings(config: TlsConfig, files: _Files) -> tuple[str, ...]:
    """What is served all the same, in words."""
    found = []
    if files.key_mode & 0o077:
        found.append(f"warning: {_KEY}: others can read or write {config.key}; run chmod 600 on it")
    for flag, path, data in ((_CERT, config.cert, files.cert), (_CA, config.client_ca, files.client_ca)):
        for one in pem.certificates(data or b""):
            if complaint := one.complaint():
                found.append(f"warning: {flag}: a certificate in {path} {complaint}: connections will fail; renew it")
    return tuple(found)


def _refusal(flag: str, path: Path, why: str) -> InvalidRequest:
    return InvalidRequest.field(flag, f"{path} {why}")


def _grpc_configuration(files: _Files) -> Any:
    return grpc.ssl_server_certificate_configuration([(files.key, files.cert)], files.client_ca)


__all__ = ["LOOK_S", "ServerTls", "clear_warning"]
