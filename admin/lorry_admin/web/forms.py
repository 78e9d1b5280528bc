"""What a form sent, read field by field. What is wrong raises InvalidRequest naming the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartParser
from starlette.requests import Request

from lorry.errors import InvalidRequest

FILES_MAX = 64
FIELDS_MAX = 100


@dataclass(frozen=True, slots=True)
class Form:
    """Text by name (the first of a name), and files in their order."""

    values: Mapping[str, str]
    files: Sequence[UploadFile] = ()

    def text(self, name: str) -> str:
        """Without blanks around it; "" where it is absent."""
        return self.values.get(name, "").strip()

    def lines(self, name: str) -> list[str]:
        return [line.strip() for line in self.text(name).splitlines() if line.strip()]

    def checked(self, name: str) -> bool:
        return self.values.get(name, "") in ("on", "1", "true")

    def optional_whole(self, name: str) -> int | None:
        """None where it is left empty."""
        text = self.text(name).replace(",", "").replace("_", "")
        if not text:
            return None
        if not text.isascii() or not text.lstrip("-").isdigit() or len(text) > 20:
            raise InvalidRequest.field(name, f"{text[:40]!r} is not a whole number; give one")
        return int(text)

    def whole(self, name: str) -> int:
        found = self.optional_whole(name)
        if found is None:
            raise InvalidRequest.field(name, "is missing; give a whole number")
        return found

    def optional_number(self, name: str) -> float | None:
        text = self.text(name)
        if not text:
            return None
        try:
            return float(text)
        except ValueError:
            raise InvalidRequest.field(name, f"{text[:40]!r} is not a number; give one") from None


async def read_form(request: Request, part_bytes: int) -> Form:
    """The whole form. Files go to temporary files as they come."""
    found = await request.form(max_files=FILES_MAX, max_fields=FIELDS_MAX, max_part_size=part_bytes)
    values: dict[str, str] = {}
    files: list[UploadFile] = []
    for name, value in found.multi_items():
        if isinstance(value, str):
            values.setdefault(name, value)
        elif value.filename:
            files.append(value)
    return Form(values, files)


async def read_text_alone(request: Request, most_bytes: int) -> tuple[Form, bool]:
    """The text that a form begins with, from its first ``most_bytes``, and whether it is one with files; for a sender
    who is not known."""
    kind = request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > most_bytes:
                return Form({}), False
        return await _parsed(request, bytes(body), most_bytes), False
    begun = bytearray()
    async for piece in request.stream():
        begun += piece
        if len(begun) > most_bytes:
            break
    try:
        return await _parsed(request, bytes(begun[:most_bytes]), most_bytes), True
    except Exception:  # whatever a parser says to half a body: there is nothing to keep then
        return Form({}), True


async def _parsed(request: Request, body: bytes, most_bytes: int) -> Form:
    kind = request.headers.get("content-type", "")

    async def stream() -> Any:
        yield body

    if kind.startswith("multipart/form-data"):
        parser = MultiPartParser(
            request.headers, stream(), max_files=FILES_MAX, max_fields=FIELDS_MAX, max_part_size=most_bytes
        )
        found = await parser.parse()
        texts = {name: value for name, value in found.multi_items() if isinstance(value, str)}
        await found.close()
        return Form(texts)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return await read_form(Request(dict(request.scope), receive), most_bytes)


__all__ = ["FIELDS_MAX", "FILES_MAX", "Form", "read_form", "read_text_alone"]
