"""What a form sent, read field by field. What is wrong raises InvalidRequest naming the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesParser
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
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


async def read_form(request: Request, part_bytes: int, *, files: bool = False) -> Form:
    """The whole form. Files go to temporary files as they come; they are the caller's to close with ``request.close``
    where it wants any."""
    found = await request.form(max_files=FILES_MAX, max_fields=FIELDS_MAX, max_part_size=part_bytes)
    values: dict[str, str] = {}
    kept: list[UploadFile] = []
    for name, value in found.multi_items():
        if isinstance(value, str):
            values.setdefault(name, value)
        elif value.filename:
            kept.append(value)
    if not files:
        await request.close()
    return Form(values, kept if files else ())


async def read_text_alone(request: Request, most_bytes: int) -> Form:
    """The text that a form begins with, of a sender who is not known: no more than ``most_bytes`` of it is held, and
    nothing is written. Without values where that is not enough."""
    begun = bytearray()
    async for piece in request.stream():
        begun += piece
        if len(begun) > most_bytes:
            break
    kind = request.headers.get("content-type", "")
    if is_multipart(request):
        return Form(_first_texts(kind, bytes(begun[:most_bytes])))
    if len(begun) > most_bytes:
        return Form({})
    try:
        pairs = parse_qsl(begun.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        return Form({})
    return Form(dict(reversed(pairs)))


def is_multipart(request: Request) -> bool:
    return request.headers.get("content-type", "").startswith("multipart/form-data")


def _first_texts(kind: str, begun: bytes) -> dict[str, str]:
    """Of the parts that are whole: the last of them may be cut off, and is left out."""
    whole = BytesParser().parsebytes(b"content-type: " + kind.encode("latin-1") + b"\r\n\r\n" + begun)
    found: dict[str, str] = {}
    parts: list[Any] = list(whole.get_payload())[:-1] if whole.is_multipart() else []
    for part in parts:
        name, raw = part.get_param("name", header="content-disposition"), part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(raw, bytes) and part.get_filename() is None:
            found.setdefault(name, raw.decode(errors="replace"))
    return found


__all__ = ["FIELDS_MAX", "FILES_MAX", "Form", "is_multipart", "read_form", "read_text_alone"]
