"""API keys: ``lorry_<key id>_<secret>``, kept only as HMAC-SHA256 under a server pepper.

The secret has 256 random bits, so a fast MAC is enough: there is nothing to guess. The pepper keeps a
stolen database from being checked offline, and a row from being forged by someone who can only write SQL.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

_KEY = re.compile(r"lorry_([0-9a-f]{16})_([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class NewKey:
    """``text`` is shown once and kept nowhere; the rest is the row."""

    text: str = field(repr=False)
    key_id: str
    mac: str = field(repr=False)
    pepper_id: str
    last_four: str


@dataclass(frozen=True, slots=True)
class Peppers:
    """Server peppers, newest first; each row names the one that it was made under, so they can rotate."""

    secrets: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.secrets or any(len(pepper) < 32 for pepper in self.secrets):
            raise ValueError("pepper: at least one secret of at least 32 bytes is needed; see bootstrap()")

    @property
    def current_id(self) -> str:
        return pepper_id(self.secrets[0])

    def mac(self, text: str, wanted_id: str) -> str:
        """Hex MAC of a key's text under the pepper of that id; under the newest where it is unknown (the
        result then matches nothing, in the same time)."""
        pepper = next((p for p in self.secrets if pepper_id(p) == wanted_id), self.secrets[0])
        return hmac.new(pepper, text.encode(), hashlib.sha256).hexdigest()

    def new_key(self) -> NewKey:
        """A fresh key under the newest pepper."""
        key_id, secret = secrets.token_hex(8), secrets.token_hex(32)
        text = f"lorry_{key_id}_{secret}"
        return NewKey(text, key_id, self.mac(text, self.current_id), self.current_id, secret[-4:])


def pepper_id(pepper: bytes) -> str:
    """Names a pepper without giving it away."""
    return hashlib.sha256(b"lorry-pepper-id\n" + pepper).hexdigest()[:16]


def key_id_of(text: str) -> str | None:
    """The public part of a well-formed key, else None."""
    found = _KEY.fullmatch(text)
    return found[1] if found else None


__all__ = ["NewKey", "Peppers", "key_id_of", "pepper_id"]
