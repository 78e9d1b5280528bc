"""What a browser keeps of a web session: ``lorrys_<session id>_<secret>``, kept by the registry as an HMAC alone."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

from lorry.registry.keys import Peppers

_TEXT = re.compile(r"lorrys_([0-9a-f]{32})_([0-9a-f]{64})")
_CSRF = b"lorry-csrf-v1"


@dataclass(frozen=True, slots=True)
class NewCookie:
    """``text`` is for the browser and kept nowhere; the rest is the row."""

    text: str = field(repr=False)
    session_id: str
    mac: str = field(repr=False)
    pepper_id: str


def new_cookie(peppers: Peppers) -> NewCookie:
    number, secret = secrets.token_hex(16), secrets.token_hex(32)
    text = f"lorrys_{number}_{secret}"
    return NewCookie(text, f"ws_{number}", peppers.mac(text, peppers.current_id), peppers.current_id)


def session_id_of(text: str) -> str:
    """The public part of a well-formed text, else "", which no session has."""
    found = _TEXT.fullmatch(text)
    return f"ws_{found[1]}" if found else ""


def csrf_of(text: str) -> str:
    """The session's own word for its forms. Only who has the cookie can say it, and it does not tell the cookie."""
    return hmac.new(text.encode(), _CSRF, hashlib.sha256).hexdigest()


__all__ = ["NewCookie", "csrf_of", "new_cookie", "session_id_of"]
