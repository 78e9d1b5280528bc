"""A call that is written down and not made yet: what the blocking and the asyncio client share of every method.

Functions make them (``prepare``); ``lorry.client.blocking`` and ``lorry.client.awaited`` make them methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message

from lorry.api.v1 import adapter_admin_pb2, fleet_pb2, generate_pb2, tenant_admin_pb2, user_admin_pb2

T_co = TypeVar("T_co", covariant=True)
M = TypeVar("M", bound=Message)
E = TypeVar("E")
Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Unary(Generic[T_co]):
    """``method``: full path. ``pick`` makes the caller's answer of the server's and of the trailing metadata.
    ``repeatable``: doing it twice is as good as once. ``slow``: a client's default deadline is not for it."""

    method: str
    request: Message
    answer: type[Message]
    pick: Callable[[Any, Metadata], T_co]
    repeatable: bool = True
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Paged(Generic[T_co]):
    """``request`` has ``page_size`` and ``page_token``; ``items`` are one page's."""

    method: str
    request: Message
    answer: type[Message]
    items: Callable[[Any], Iterable[T_co]]

    def page(self, token: str) -> Unary[tuple[Iterable[T_co], str]]:
        """(items, next token) of the page at ``token``."""
        request = type(self.request)()
        request.CopyFrom(self.request)
        fields: Any = request
        fields.page_token = token
        items = self.items
        return Unary(self.method, request, self.answer, lambda page, _: (items(page), page.next_page_token))


@dataclass(frozen=True, slots=True)
class Streamed(Generic[T_co]):
    """``pick`` makes the caller's item of each message."""

    method: str
    request: Message
    answer: type[Message]
    pick: Callable[[Any], T_co]


class Service:
    """Makes calls of one service. Methods and answers are looked up in the descriptor: what is not there raises
    KeyError or TypeError when it is prepared, not when it is sent."""

    def __init__(self, file: FileDescriptor, name: str) -> None:
        found = file.services_by_name[name]
        self.name: str = found.full_name
        self._answers: Mapping[str, str] = {m.name: m.output_type.full_name for m in found.methods}

    def unary(
        self, method: str, request: Message, answer: type[M], *, repeatable: bool = True, slow: bool = False
    ) -> Unary[M]:
        return Unary(self._path(method, answer), request, answer, _itself, repeatable, slow)

    def picked(self, method: str, request: Message, answer: type[M], pick: Callable[[M, Metadata], E]) -> Unary[E]:
        return Unary(self._path(method, answer), request, answer, pick)

    def paged(self, method: str, request: Message, answer: type[M], items: Callable[[M], Iterable[E]]) -> Paged[E]:
        return Paged(self._path(method, answer), request, answer, items)

    def streamed(self, method: str, request: Message, answer: type[M], pick: Callable[[M], E]) -> Streamed[E]:
        return Streamed(self._path(method, answer), request, answer, pick)

    def _path(self, method: str, answer: type[Message]) -> str:
        if self._answers[method] != answer.DESCRIPTOR.full_name:
            raise TypeError(f"{self.name}.{method} answers {self._answers[method]}, not {answer.DESCRIPTOR.full_name}")
        return f"/{self.name}/{method}"


def _itself(answer: Any, trailing: Metadata) -> Any:
    return answer


PAGE_SIZE = 1000
"""The largest that servers give."""
GENERATE = Service(generate_pb2.DESCRIPTOR, "GenerateService")
ADAPTERS = Service(adapter_admin_pb2.DESCRIPTOR, "AdapterAdminService")
TENANTS = Service(tenant_admin_pb2.DESCRIPTOR, "TenantAdminService")
USERS = Service(user_admin_pb2.DESCRIPTOR, "UserAdminService")
FLEET = Service(fleet_pb2.DESCRIPTOR, "FleetService")

__all__ = [
    "ADAPTERS",
    "FLEET",
    "GENERATE",
    "PAGE_SIZE",
    "TENANTS",
    "USERS",
    "Metadata",
    "Paged",
    "Service",
    "Streamed",
    "Unary",
]
