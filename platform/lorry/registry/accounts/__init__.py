"""Who logs in: users with passwords, their web sessions, and tokens that act for them."""

from lorry.registry.accounts.model import Login, SessionView, WebSession
from lorry.registry.accounts.passwords import PasswordParams
from lorry.registry.accounts.service import Accounts

__all__ = ["Accounts", "Login", "PasswordParams", "SessionView", "WebSession"]
