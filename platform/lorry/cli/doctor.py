"""``lorry doctor``: from the profile to a model that answers, step by step, each with what to do where it fails."""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

import lorry
from lorry.cli.handshakes import agreed, refused
from lorry.cli.output import print_json, printable
from lorry.cli.session import Session, session
from lorry.client import About, Client, Retry
from lorry.client.channels import open_channel
from lorry.client.generating import whoami
from lorry.config import loopback
from lorry.errors import LorryError

PASS, WARN, FAIL = "pass", "warn", "fail"
SKEW_S = 5.0
"""More than this, and keys expire and usage is dated otherwise than a person here would think."""
_WAIT_S = 5.0
_SERVING = b"\x08\x01"
"""grpc.health.v1.HealthCheckResponse of SERVING: the client's packages do not have its module."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    outcome: str
    message: str
    remedy: str = ""


def doctor(options: argparse.Namespace) -> int:
    """0 where nothing failed; warnings do not count."""
    findings: list[Finding] = []
    for finding in examine(options):
        findings.append(finding)
        if not options.json:
            remedy = f"; {finding.remedy}" if finding.remedy else ""
            print(printable(f"{finding.outcome:<5} {finding.check:<8} {finding.message}{remedy}"), flush=True)
    ok = all(finding.outcome != FAIL for finding in findings)
    if options.json:
        rows = [
            {"check": one.check, "outcome": one.outcome, "message": one.message, "remedy": one.remedy}
            for one in findings
        ]
        print_json({"ok": ok, "checks": rows})
    return 0 if ok else 1


def examine(options: argparse.Namespace, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Ends at the first step without which the next mean nothing."""
    try:
        here = session(options)
    except LorryError as error:
        yield Finding("profile", FAIL, error.message)
        return
    yield Finding("profile", PASS, here.origin)
    reached = _reached(here.address)
    yield reached
    if reached.outcome == FAIL:
        return
    secured = _tls(here)
    yield secured
    if secured.outcome == FAIL:
        return
    yield _health(here)
    with Client(here.address, here.api_key, tls=here.tls, retry=Retry(max_retries=0)) as client:
        sent = clock()
        try:
            about = client.caller.unary(whoami(), _WAIT_S)
        except LorryError as error:
            yield Finding("key", FAIL, f"{error.reason}: {error.message}", "run lorry login with a key that is good")
            return
        yield _key(here, about)
        yield _skew(about, (sent + clock()) / 2)
        yield _version(about)
        yield _models(client)


def _reached(address: str) -> Finding:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return Finding("address", FAIL, f"{address!r} is not HOST:PORT", "write it as 127.0.0.1:50061")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_WAIT_S):
            return Finding("address", PASS, f"{address} answers")
    except (OSError, OverflowError) as error:
        why = f"{address} does not answer ({error})"
        return Finding("address", FAIL, why, "is lorry serve running there, and no firewall between?")


def _tls(here: Session) -> Finding:
    try:
        channel = open_channel(here.address, None, here.tls)
    except LorryError as error:
        return Finding("tls", FAIL, error.message)
    try:
        grpc.channel_ready_future(channel).result(_WAIT_S)
    except grpc.FutureTimeoutError:
        why, remedy = refused(here.address, here.tls, _WAIT_S)
        return Finding("tls", FAIL, why, remedy)
    finally:
        channel.close()
    if here.tls is not None:
        good, message, remedy = agreed(here.address, here.tls, _WAIT_S)
        return Finding("tls", PASS if good else WARN, message, remedy)
    if loopback(here.address.rpartition(":")[0].strip("[]")):
        return Finding("tls", PASS, "none, and none needed on one machine")
    return Finding("tls", WARN, "none: the key travels in clear", "give --ca or --tls, unless a mesh encrypts")


def _health(here: Session) -> Finding:
    channel = open_channel(here.address, None, here.tls)
    try:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)
        found = check(b"", timeout=_WAIT_S)
    except grpc.RpcError as error:
        failed: Any = error
        return Finding("health", FAIL, f"{failed.code().name}: {failed.details()}", "is it a lorry gateway?")
    finally:
        channel.close()
    if found == _SERVING:
        return Finding("health", PASS, "serving")
    return Finding("health", FAIL, "not serving", "its engine may be starting; its operator sees /readyz")


def _key(here: Session, about: About) -> Finding:
    who = " ".join(word for word in (about.tenant, about.principal, about.role) if word)
    if here.tenant and about.tenant and here.tenant != about.tenant and about.role != "platform_admin":
        return Finding(
            "key", WARN, f"good, but it is of {about.tenant}, not of {here.tenant}", "log in again without --tenant"
        )
    return Finding("key", PASS, f"good{f': {who}' if who else ''}")


def _skew(about: About, local: float) -> Finding:
    if about.server_time is None:
        return Finding("clock", WARN, "the server does not say its time")
    skew = about.server_time - local
    outcome = PASS if abs(skew) <= SKEW_S else FAIL
    way = "ahead of" if skew > 0 else "behind"
    remedy = "" if outcome == PASS else "set both by NTP: keys expire by the server's clock"
    return Finding("clock", outcome, f"the server's is {abs(skew):.1f} s {way} this machine's", remedy)


def _version(about: About) -> Finding:
    own, other = lorry.__version__, about.server_version
    if not other:
        return Finding("version", WARN, f"this is {own}; the server does not say its version")
    same = own.split(".")[:2] == other.split(".")[:2]
    message = f"server {other}, client {own}"
    return Finding("version", PASS if same else WARN, message, "" if same else "install the server's version")


def _models(client: Client) -> Finding:
    try:
        names = [model.name for model in client.list_models()]
    except LorryError as error:
        return Finding("models", FAIL, f"{error.reason}: {error.message}")
    if not names:
        return Finding("models", FAIL, "this key may use none", "an administrator gives one: lorry grants create")
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return Finding("models", PASS, f"{', '.join(names[:3])}{more}")


__all__ = ["FAIL", "PASS", "SKEW_S", "WARN", "Finding", "doctor", "examine"]
