"""Pages: opaque tokens over the last key shown, so a page never skips or repeats a row that stays."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from lorry.errors import InvalidRequest

DEFAULT_SIZE = 100
MAX_SIZE = 1000
_KEY = re.compile(r"[A-Za-z0-9._-]{0,128}")

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    rows: Sequence[Row]
    next_token: str


@dataclass(frozen=True, slots=True)
class PageRequest:
    """``after`` is the last key of the page before, or ""; ``size`` is in [1, 1000]."""

    size: int
    after: str

    @classmethod
    def of(cls, page_size: int, page_token: str) -> PageRequest:
        if page_size < 0:
            raise InvalidRequest.field("page_size", f"{page_size} is negative; use 0 to {MAX_SIZE}")
        try:
            after = base64.b64decode(page_token.encode(), altchars=b"-_", validate=True).decode()
        except ValueError:
            raise bad_token() from None
        if not _KEY.fullmatch(after):
            raise bad_token()
        return cls(min(page_size or DEFAULT_SIZE, MAX_SIZE), after)

    def after_number(self) -> int | None:
        """The last key as a number, for rows that are numbered; None on the first page."""
        if not self.after:
            return None
        if not re.fullmatch(r"[0-9]{1,9}", self.after):
            raise bad_token()
        return int(self.after)

    def page(self, rows: Sequence[Row], key: Callable[[Row], str]) -> Page[Row]:
        """``rows`` were asked for with a limit of ``size`` + 1."""
        shown = rows[: self.size]
        more = len(rows) > self.size
        return Page(shown, base64.urlsafe_b64encode(key(shown[-1]).encode()).decode() if more else "")


def bad_token() -> InvalidRequest:
    return InvalidRequest.field("page_token", "is not one; use a next_page_token as it was given")


__all__ = ["DEFAULT_SIZE", "MAX_SIZE", "Page", "PageRequest", "bad_token"]
