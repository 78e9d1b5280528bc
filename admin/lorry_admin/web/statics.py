"""Style sheet, scripts and icon, at addresses that change with their content and so may be kept for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
_KINDS: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Statics:
    """All files have one digest in their address: a script imports another by a relative name."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in _KINDS}
        digest = hashlib.sha256()
        for name, data in self._files.items():
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
        self.digest = digest.hexdigest()[:16]

    def url(self, name: str) -> str:
        """Raises KeyError for a file that is not there."""
        assert self._files[name] is not None
        return f"/static/{self.digest}/{name}"

    def answer(self, request: Request, digest: str, name: str) -> Response | None:
        """None for what is not there. A page of another release gets today's file, and does not keep it."""
        data = self._files.get(name)
        if data is None:
            return None
        age = "public, max-age=31536000, immutable" if digest == self.digest else "no-store"
        kind = _KINDS[Path(name).suffix]
        return Response(data, media_type=kind, headers={"cache-control": age})


@cache
def shared_statics() -> Statics:
    """This installation's, read once."""
    return Statics()


__all__ = ["FOLDER", "Statics", "shared_statics"]
