"""User tokens: what a web app acts with for who is logged in. ``lorryt_<payload>_<mac>``, good for a minute.

A token is made without SQL and is kept nowhere: its MAC proves that this deployment made it, and a snapshot knows what
of it has been taken back since. Its key is derived from a pepper, so that no MAC of an API key is ever one of a token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lorry.registry.keys import Peppers, pepper_id

PREFIX = "lorryt_"
TOKEN_S = 60.0
"""How long a token begins calls."""
SKEW_S = 240.0
"""How far the clock of who made a token may be ahead."""
REMEMBER_S = 900.0
"""For so long a snapshot remembers what ended a session or changed a login. No token that was made before then is good
any more, by any clock that ``SKEW_S`` allows."""

_TOKEN = re.compile(rf"{PREFIX}([A-Za-z0-9_-]{{1,1024}})_([0-9a-f]{{64}})")
_DOMAIN = b"lorry-user-token-v1\n"


@dataclass(frozen=True, slots=True)
class Claims:
    """``tenant`` is its id, ``principal`` the name within it. ``expires_at``: the token begins no call from then on;
    ``session_ends_at``: nothing that it began goes on from then on. Unix seconds."""

    session: str
    login: str
    tenant: str
    principal: str
    role: str
    expires_at: float
    session_ends_at: float


def make_token(peppers: Peppers, claims: Claims) -> str:
    """Under the newest pepper."""
    payload = _encode({"pepper": peppers.current_id, **asdict(claims)})
    return f"{PREFIX}{payload}_{_mac(peppers.secrets[0], payload)}"


def read_token(peppers: Peppers, text: str, now: float, *, begun: bool = False) -> Claims | None:
    """None for whatever is no good: another form, another deployment, tampered with, expired, of a clock that is too
    far ahead. A MAC is computed and compared in constant time for every text. ``begun``: whether the call that it began
    may go on."""
    found = _TOKEN.fullmatch(text)
    payload, given = (found[1], found[2]) if found else ("", "0" * 64)
    fields = _decode(payload)
    wanted = fields.get("pepper")
    pepper = next((one for one in peppers.secrets if pepper_id(one) == wanted), peppers.secrets[0])
    if not hmac.compare_digest(_mac(pepper, payload), given) or found is None:
        return None
    claims = Claims(**{name: fields[name] for name in Claims.__dataclass_fields__})
    if claims.session_ends_at <= now or claims.expires_at > now + TOKEN_S + SKEW_S:
        return None
    return claims if begun or claims.expires_at > now else None


def is_token(text: str) -> bool:
    """Whether it is meant as one."""
    return text.startswith(PREFIX)


def _mac(pepper: bytes, payload: str) -> str:
    key = hmac.new(pepper, _DOMAIN, hashlib.sha256).digest()
    return hmac.new(key, payload.encode(), hashlib.sha256).hexdigest()


def _encode(fields: Mapping[str, object]) -> str:
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(payload: str) -> dict[str, Any]:
    """Empty for what is none; whether it can be believed is the MAC's to say."""
    try:
        found = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


__all__ = ["PREFIX", "REMEMBER_S", "SKEW_S", "TOKEN_S", "Claims", "is_token", "make_token", "read_token"]
