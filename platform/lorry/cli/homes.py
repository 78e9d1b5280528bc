"""Where a platform on this machine keeps its things, and that only one runs there at a time."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from lorry.config import registry_url
from lorry.errors import FailedPrecondition


@dataclass(frozen=True, slots=True)
class Home:
    """A folder of its own for one platform: registry, objects, caches, secrets, logs."""

    root: Path

    @property
    def registry_url(self) -> str:
        return registry_url(self.root)

    @property
    def objects(self) -> Path:
        return self.root / "s3"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def spool(self) -> Path:
        return self.root / "uploads"

    @property
    def usage(self) -> Path:
        return self.root / "usage.jsonl"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def keys(self) -> Path:
        """API keys that this machine's own demo made, 0600."""
        return self.root / "keys.json"


class HomeLock:
    """Held while a platform runs in a home; the operating system drops it when the process ends."""

    def __init__(self, home: Home) -> None:
        self._path = home.root / "lock"
        self._file: int | None = None

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # It holds secrets, prompts' bills and tenants' adapters, and may have been made by somebody else.
        self._path.parent.chmod(0o700)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            self._file = None
            raise FailedPrecondition(
                f"home: a platform runs in {self._path.parent} already; stop it, or choose another with --home"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


__all__ = ["Home", "HomeLock"]
