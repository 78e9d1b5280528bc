"""What all pages of one app share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from lorry_admin.web.accounts import Accounts
from lorry_admin.web.config import WebConfig
from lorry_admin.web.cookies import Cookies
from lorry_admin.web.platform import Platform


@dataclass(frozen=True, slots=True)
class Site:
    """``now``: Unix seconds."""

    config: WebConfig
    accounts: Accounts[Any]
    platform: Platform
    cookies: Cookies
    now: Callable[[], float] = field(default=time.time)


def site_of(request: Request) -> Site:
    found: Site = request.app.state.site
    return found


__all__ = ["Site", "site_of"]
