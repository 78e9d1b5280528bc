"""People who log in, their web sessions, and what slows down who guesses passwords."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column, relationship

from lorry.registry.db.base import Model, utcnow
from lorry.registry.db.tables.identity import Principal
from lorry.registry.db.tables.types import ID, SHA256


class Login(Model):
    """A principal that has a password. ``revision`` counts changes of password, role and ``disabled``, and
    ``changed_at`` is the last one's time: a snapshot loads only what a user token could still be wrong about."""

    __tablename__ = "login"
    __table_args__ = (CheckConstraint("password_hash LIKE '$argon2id$%'", name="argon2id"),)
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    principal_id: Mapped[str] = mapped_column(ForeignKey("principal.id"), unique=True)
    password_hash: Mapped[str] = mapped_column(String(255))
    disabled: Mapped[bool] = mapped_column(default=False)
    revision: Mapped[int] = mapped_column(Integer, default=1)
    changed_at: Mapped[datetime] = mapped_column(default=utcnow, index=True)
    last_login_at: Mapped[datetime | None] = mapped_column(default=None)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    created_by: Mapped[str] = mapped_column(ID)
    principal: Mapped[Principal] = relationship(lazy="raise")


class WebSession(Model):
    """``mac`` is of the text that the browser has, under the pepper named. ``seen_at`` is right to a minute or so."""

    __tablename__ = "web_session"
    __table_args__ = (
        CheckConstraint("length(mac) = 64", name="mac_length"),
        CheckConstraint("expires_at > created_at", name="expiry"),
    )
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    login_id: Mapped[str] = mapped_column(ForeignKey("login.id"), index=True)
    mac: Mapped[str] = mapped_column(SHA256)
    pepper_id: Mapped[str] = mapped_column(String(16))
    agent: Mapped[str] = mapped_column(String(200))
    address: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column()
    seen_at: Mapped[datetime] = mapped_column()
    expires_at: Mapped[datetime] = mapped_column(index=True)
    ended_at: Mapped[datetime | None] = mapped_column(default=None, index=True)


class LoginThrottle(Model):
    """Attempts of a username or from an address that have not succeeded. ``subject``: a MAC of either, since people
    type passwords into the wrong field."""

    __tablename__ = "login_throttle"
    __table_args__ = (CheckConstraint("failures >= 0", name="failures"),)
    subject: Mapped[str] = mapped_column(SHA256, primary_key=True)
    failures: Mapped[int] = mapped_column(Integer, default=0)
    locked_until: Mapped[datetime | None] = mapped_column(default=None)
    forget_at: Mapped[datetime] = mapped_column(index=True)


__all__ = ["Login", "LoginThrottle", "WebSession"]
