"""The dashboards: a web app that is a client of the platform, and acts with the rights of whoever is logged in.

It knows no SQL and decides no right: what a page shows was asked of the services, with a token of the user's.
"""

from lorry_admin.web.accounts import Accounts, Login, WebSession
from lorry_admin.web.app import build_web
from lorry_admin.web.config import WebConfig
from lorry_admin.web.memory_accounts import MemoryAccounts, MemoryLogin, MemorySession
from lorry_admin.web.server import WebServer

__all__ = [
    "Accounts",
    "Login",
    "MemoryAccounts",
    "MemoryLogin",
    "MemorySession",
    "WebConfig",
    "WebServer",
    "WebSession",
    "build_web",
]
