"""Whom a command talks to, as whom: flags, then the environment, then the profile."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path

from lorry.cli.names import full_name, split_address
from lorry.cli.profile import Profile, load_profile
from lorry.client import Client, Retry, Tls
from lorry.client.admin import SyncAdminClient
from lorry.config import GatewayConfig
from lorry.errors import InvalidRequest, Unauthenticated


@dataclass(frozen=True, slots=True)
class Session:
    """``origin``: where the address and the key come from, in words."""

    address: str
    api_key: str = field(repr=False)
    tls: Tls | None
    tenant: str
    origin: str
    retry: Retry = field(default=Retry(), repr=False)

    def client(self) -> Client:
        return Client(self.address, self.api_key, tls=self.tls, retry=self.retry)

    def admin(self) -> SyncAdminClient:
        return SyncAdminClient(self.address, self.api_key, tls=self.tls, retry=self.retry)

    def name(self, text: str) -> str:
        """A model's, adapter's, version's or alias's full name; short ones are of the session's tenant."""
        return full_name(text, self.tenant)

    def child(self, text: str, collection: str) -> str:
        """``text`` itself where it is a full name, else that of the tenant's ``collection``."""
        return text if "/" in text else f"tenants/{self.own_tenant()}/{collection}/{text}"

    def own_tenant(self) -> str:
        """Raises InvalidRequest where nobody said which tenant is meant."""
        if not self.tenant:
            raise InvalidRequest.field("--tenant", "whose? Give --tenant, set LORRY_TENANT, or log in with --tenant")
        return self.tenant


def session(options: argparse.Namespace) -> Session:
    """Raises Unauthenticated where there is no key for the address.

    A profile's key goes to the profile's address alone: with another address the key has to be said too.
    """
    profile = load_profile()
    asked, _ = split_address(options.address or os.environ.get("LORRY_ADDRESS", ""))
    own = profile if profile is not None and asked in ("", profile.address) else None
    address = asked or (own.address if own is not None else default_address())
    key, origin = os.environ.get("LORRY_API_KEY", ""), "LORRY_API_KEY"
    if not key and own is not None:
        key, origin = own.api_key, "the profile"
    if not key:
        raise Unauthenticated(_no_key(address, profile))
    where = "--address" if options.address else "LORRY_ADDRESS" if asked else "the profile" if own else "the default"
    tenant = options.tenant or os.environ.get("LORRY_TENANT") or (own.tenant if own is not None else "")
    tls = files_of(options) or (own.transport() if own is not None else None) or _meant(options)
    retry = Retry() if options.retries is None else Retry(max_retries=options.retries)
    return Session(address, key, tls, tenant.removeprefix("tenants/"), f"address by {where}, key by {origin}", retry)


def tls_of(options: argparse.Namespace) -> Tls | None:
    """What flags and environment say of TLS; None where they say nothing."""
    return files_of(options) or _meant(options)


def files_of(options: argparse.Namespace) -> Tls | None:
    """The flags' (``--tls``: the system's authorities), or where they say nothing the environment's."""
    ca, cert, key = options.ca, options.cert, options.cert_key
    if options.tls or ca or cert or key:
        return Tls(ca, cert, key)
    ca, cert, key = (_named(name) for name in ("LORRY_TLS_CA", "LORRY_CLIENT_CERT", "LORRY_CLIENT_KEY"))
    return Tls(ca, cert, key) if ca or cert or key else None


def _meant(options: argparse.Namespace) -> Tls | None:
    """By ``https://`` before an address."""
    _, secure = split_address(options.address or os.environ.get("LORRY_ADDRESS", ""))
    return Tls() if secure else None


def _named(variable: str) -> Path | None:
    return Path(named) if (named := os.environ.get(variable)) else None


def default_address() -> str:
    """LORRY_ADDRESS, else where ``lorry serve`` listens."""
    if named := os.environ.get("LORRY_ADDRESS"):
        return split_address(named)[0]
    return f"{GatewayConfig().host}:{GatewayConfig().port}"


def _no_key(address: str, profile: Profile | None) -> str:
    if profile is not None:
        return f"LORRY_API_KEY is not set, and the profile's key is for {profile.address}, not for {address}; set it"
    return "LORRY_API_KEY is not set and there is no profile; run lorry login, or export the tenant's API key"


__all__ = ["Session", "default_address", "files_of", "session", "tls_of"]
