"""The cookies that there are. All are HttpOnly and SameSite=Strict; Secure, with the prefix that binds them to the
host, where browsers come by TLS."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from lorry_admin.web.config import WebConfig

SESSION = "lorry_session"
LOGIN_FORM = "lorry_login"
"""Pairs with a hidden field of the login page, so that nobody can log a visitor in as somebody else."""
SAID = "lorry_said"
"""What the page after a redirect tells: a word of a fixed list."""


class Cookies:
    def __init__(self, config: WebConfig) -> None:
        self._secure = config.secure

    def name(self, cookie: str) -> str:
        return f"__Host-{cookie}" if self._secure else cookie

    def get(self, request: Request, cookie: str) -> str:
        return request.cookies.get(self.name(cookie), "")

    def set(self, response: Response, cookie: str, value: str, expires_at: float | None = None) -> None:
        """Until the browser is closed where ``expires_at`` (Unix seconds) is None."""
        age = None if expires_at is None else max(0, int(expires_at - time.time()))
        response.set_cookie(
            self.name(cookie), value, max_age=age, path="/", secure=self._secure, httponly=True, samesite="strict"
        )

    def clear(self, response: Response, cookie: str) -> None:
        response.delete_cookie(self.name(cookie), path="/", secure=self._secure, httponly=True, samesite="strict")


__all__ = ["LOGIN_FORM", "SAID", "SESSION", "Cookies"]
