"""What TLS says by itself, where gRPC says only that there is no connection. For ``lorry doctor``."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import closing, suppress
from pathlib import Path

from lorry import pem
from lorry.client import Tls

SOON_S = 14 * 86400.0
"""A certificate that ends sooner is spoken of."""
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME = (62, 64)
"""OpenSSL's X509_V_ERR_* of a certificate's time and name."""
_CLIENT = "give --client-cert and --client-key, or lorry login with them"
_OTHER = "have one made by an authority that the server trusts (--tls-client-ca)"


def refused(address: str, tls: Tls | None, wait_s: float) -> tuple[str, str]:
    """Why there is no connection, and what to do."""
    if tls is None:
        return _without(address, wait_s)
    why, remedy = _with(address, tls, wait_s)
    return f"no gRPC connection with TLS ({why})", remedy


def agreed(address: str, tls: Tls, wait_s: float) -> tuple[bool, str, str]:
    """Of a connection that gRPC made: whether all is well with its certificates, in words, and what to do."""
    found = [("the server's", _served_until(address, tls, wait_s))]
    if tls.cert is not None:
        found.append(("the client's", _held_until(tls.cert)))
    soon = [f"{whose} certificate ends {pem.day(end)}" for whose, end in found if end and end < time.time() + SOON_S]
    if soon:
        return False, "; ".join(soon), "have it renewed; lorry serve takes up its own without a restart"
    ends = " and ".join(f"{whose} until {pem.day(end)}" for whose, end in found if end)
    return True, f"certificates are good{f': {ends}' if ends else ''}", ""


def _without(address: str, wait_s: float) -> tuple[str, str]:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    anybody.set_alpn_protocols(["h2"])
    try:
        with closing(_open(address, anybody, None, wait_s)):
            return "no gRPC connection without TLS: the server speaks TLS alone", "give --ca FILE, or --tls"
    except OSError:
        return "no gRPC connection without TLS", "the server may want TLS: give --ca or --tls"


def _after(secured: ssl.SSLSocket, tls: Tls) -> tuple[str, str]:
    """A server that wants another certificate says so only after the handshake, or just leaves."""
    with suppress(ConnectionResetError):
        if secured.recv(1):
            return "the handshake went well, what follows did not", "is it a lorry gateway, and its port for gRPC?"
    if tls.cert is None:
        return "the server ends it: it may want a certificate of the client", _CLIENT
    if 0 < (end := _held_until(tls.cert)) < time.time():
        return f"the client's certificate has expired ({pem.day(end)})", "have it renewed"
    return (
        "the server ends it: it may not trust the client's certificate",
        "have it made by an authority of the server's",
    )


def _with(address: str, tls: Tls, wait_s: float) -> tuple[str, str]:
    try:
        with closing(_open(address, _context(tls), tls.server_name, wait_s)) as secured:
            return _after(secured, tls)
    except ssl.SSLCertVerificationError as error:
        return str(error), _of_the_server(error.verify_code)
    except ssl.SSLError as error:
        reason = error.reason or ""
        for word, why, remedy in _REASONS:
            if word in reason:
                return why, remedy
        return str(error), "check --ca, --client-cert and --client-key"
    except (OSError, ValueError) as error:
        return str(error), "check --ca, --client-cert and --client-key"


_REASONS = (
    ("CERTIFICATE_REQUIRED", "the server wants a certificate of the client", _CLIENT),
    ("HANDSHAKE_FAILURE", "the server may want a certificate of the client", _CLIENT),
    (
        "UNKNOWN_CA",
        "the server does not trust the client's certificate",
        "have it made by an authority of the server's",
    ),
    ("CERTIFICATE_EXPIRED", "the client's certificate has expired", "have it renewed"),
    ("WRONG_VERSION_NUMBER", "the server speaks no TLS", "leave --ca and --tls out, or lorry login again without"),
    ("MISMATCH", "--client-key is not the key of --client-cert", "give the two that belong together"),
)
"""A part of OpenSSL's reason, what it means, and what to do."""


def _of_the_server(code: int) -> str:
    if code in (_EXPIRED, _NOT_YET):
        return "its operator has to renew the server's certificate, unless this machine's clock is wrong"
    if code in _OTHER_NAME:
        return "the server's certificate is for another name; use one that is in it as the address"
    return "give with --ca the authority that signed the server's certificate"


def _served_until(address: str, tls: Tls, wait_s: float) -> float:
    """0 where nobody says."""
    try:
        with closing(_open(address, _context(tls), tls.server_name, wait_s)) as secured:
            found = secured.getpeercert() or {}
            return ssl.cert_time_to_seconds(str(found["notAfter"]))
    except (OSError, ValueError, KeyError):  # gRPC trusts other authorities than OpenSSL does
        return 0.0


def _held_until(path: Path) -> float:
    try:
        return min((one.not_after for one in pem.certificates(path.read_bytes())), default=0.0)
    except (OSError, ValueError):
        return 0.0


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    context.set_alpn_protocols(["h2"])
    return context


def _open(address: str, context: ssl.SSLContext, name: str | None, wait_s: float) -> ssl.SSLSocket:
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host.strip("[]"), int(port)), timeout=wait_s)
    try:
        return context.wrap_socket(plain, server_hostname=name or host.strip("[]"))
    except BaseException:  # nobody else would close it, whatever was raised
        plain.close()
        raise


__all__ = ["SOON_S", "agreed", "refused"]
