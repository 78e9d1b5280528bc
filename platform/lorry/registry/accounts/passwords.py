"""Passwords: which are good enough, and their hashes. argon2id, in a thread, a few at a time."""

from __future__ import annotations

import asyncio
import secrets
import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import Type

from lorry.errors import InvalidRequest, Overloaded

LENGTH_MIN, LENGTH_MAX = 12, 128
"""In characters, after normalisation."""
DISTINCT_MIN = 5
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


@dataclass(frozen=True, slots=True)
class PasswordParams:
    """argon2id's cost: about 0.1 s and 64 MiB for each hash. ``at_once``: hashes that are computed at a time;
    ``waiting``: how many more may wait for their turn before others are refused."""

    passes: int = 3
    memory_kib: int = 64 * 1024
    lanes: int = 1
    at_once: int = 2
    waiting: int = 32


class Passwords:
    """Belongs to one event loop."""

    def __init__(self, params: PasswordParams) -> None:
        self._params = params
        self._hasher = PasswordHasher(params.passes, params.memory_kib, params.lanes, type=Type.ID)
        self._turns = asyncio.Semaphore(params.at_once)
        self._here = 0
        self._nobodys: str | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Around whatever hashes or verifies: so much work and memory at a time. Raises Overloaded where too many wait,
        before anything was looked up."""
        if self._here >= self._params.at_once + self._params.waiting:
            raise Overloaded("login: too many at once; try again", retry_after_s=1.0)
        self._here += 1
        try:
            async with self._turns:
                yield
        finally:
            self._here -= 1

    async def hash(self, password: str) -> str:
        return await asyncio.to_thread(self._hasher.hash, normal(password))

    async def verify(self, password_hash: str | None, password: str) -> bool:
        """Takes the same time where there is no hash: None is nobody's, and so is a password that is too long."""
        if self._nobodys is None:
            self._nobodys = await asyncio.to_thread(self._hasher.hash, secrets.token_hex(32))
        text = normal(password[: LENGTH_MAX * 4])
        known = password_hash if len(password) <= LENGTH_MAX * 4 and len(text) <= LENGTH_MAX else None
        matches = await asyncio.to_thread(self._verify, known or self._nobodys, text)
        return matches and bool(known)

    def outdated(self, password_hash: str) -> bool:
        """Whether it was made with other parameters than these."""
        return self._hasher.check_needs_rehash(password_hash)

    def _verify(self, password_hash: str, text: str) -> bool:
        try:
            return self._hasher.verify(password_hash, text)
        except (VerificationError, InvalidHashError):
            return False


def normal(password: str) -> str:
    """One spelling for what keyboards spell in several (NFKC)."""
    return unicodedata.normalize("NFKC", password.encode(errors="replace").decode())


def check_password(field: str, password: str, username: str) -> str:
    """``password`` itself. Raises InvalidRequest, which never repeats it, for one that is too short, too long, has
    control characters, is of a few characters only, or holds the username."""
    text = normal(password[: LENGTH_MAX * 4])
    if not LENGTH_MIN <= len(text) <= LENGTH_MAX or len(password) > LENGTH_MAX * 4:
        raise InvalidRequest.field(
            field, f"{max(len(text), len(password))} characters; use {LENGTH_MIN} to {LENGTH_MAX}"
        )
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise InvalidRequest.field(field, "has control characters; leave them out")
    if len(set(text)) < DISTINCT_MIN:
        raise InvalidRequest.field(field, f"has fewer than {DISTINCT_MIN} different characters; use more")
    if len(username) > 2 and username.casefold() in text.casefold():
        raise InvalidRequest.field(field, "holds the username; leave it out")
    return password


def new_password() -> str:
    """99 random bits, in a form that can be read out."""
    return "-".join("".join(secrets.choice(_ALPHABET) for _ in range(5)) for _ in range(4))


__all__ = ["LENGTH_MAX", "LENGTH_MIN", "PasswordParams", "Passwords", "check_password", "new_password", "normal"]
