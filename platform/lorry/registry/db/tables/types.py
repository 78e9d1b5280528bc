"""Column types that tables share."""

from __future__ import annotations

from sqlalchemy import String

ID = String(48)
NAME = String(63)
SHA256 = String(64)

__all__ = ["ID", "NAME", "SHA256"]
