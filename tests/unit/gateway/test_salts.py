"""The salt of a tenant: its own, the deployment's, and nobody's to read."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from lorry.errors import InvalidRequest
from lorry.gateway.salts import SECRET_BYTES_MIN, TenantSalts
from lorry.ids import TenantId

SECRET = bytes(range(32))


def test_a_salt_is_the_keyed_hash_of_the_framed_tenant() -> None:
    """Written out: salts that change with a release would empty every cache, salts that collide would join tenants."""
    domain, name = b"lorry-tenant-kv-salt-v1", b"t-acme"
    framed = (23).to_bytes(8, "big") + domain + (6).to_bytes(8, "big") + name
    assert TenantSalts(SECRET).of(TenantId("t-acme")) == hmac.new(SECRET, framed, hashlib.sha256).digest()


def test_tenants_and_deployments_differ_and_gateways_of_one_agree() -> None:
    names = ["", "a", "b", "ab", "a\0", "A", "é", "t-acme", "t-acme2"]
    found = {TenantSalts(secret).of(TenantId(name)) for name in names for secret in (SECRET, b"\1" * 32, SECRET + b"x")}
    assert len(found) == 3 * len(names)
    assert TenantSalts(SECRET).of(TenantId("a")) == TenantSalts(SECRET).of(TenantId("a"))
    assert all(len(salt) == 32 for salt in found)


def test_the_secret_is_not_shown_and_a_weak_one_is_refused() -> None:
    assert "1f" not in repr(TenantSalts(SECRET))
    for secret in (b"", SECRET[:-1]):
        with pytest.raises(InvalidRequest, match=str(SECRET_BYTES_MIN)):
            TenantSalts(secret)
