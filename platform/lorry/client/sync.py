"""The blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import generate_pb2_grpc
from lorry.client.requests import GenerateParams, Message, build_request, choices_of, count_request
from lorry.client.results import Delta, Result, StreamState, result


class Stream(StreamState):
    """Iterate it for deltas; leave its ``with`` block (or ``close``) to stop the generation early."""

    def __init__(self, call: Any, n: int) -> None:
        super().__init__(n)
        self._call = call

    def __iter__(self) -> Iterator[Delta]:
        """Raises the LorryError that ended the stream, and EmptyStream where it ended without StreamEnd."""
        try:
            for message in self._call:
                delta = self._feed(message)
                if delta is not None:
                    yield delta
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        finally:
            self._call.cancel()
        self._close()

    def close(self) -> None:
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Client:
    """``Client("127.0.0.1:50061", api_key)``. Safe to share between threads; not across a fork.

    Every method raises leaves of ``lorry.errors``. ``timeout_s`` is the request's deadline, None is none.
    Without ``credentials`` (grpc's, for TLS) the key travels in clear: on one machine or inside a mesh only.
    """

    def __init__(self, address: str, api_key: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._channel = (
            grpc.secure_channel(address, credentials) if credentials is not None else grpc.insecure_channel(address)
        )
        self._stub: Any = generate_pb2_grpc.GenerateServiceStub(self._channel)
        self._metadata = (("authorization", f"Bearer {api_key}"),)

    def generate(
        self,
        model: str,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        timeout_s: float | None = None,
        **params: Unpack[GenerateParams],
    ) -> Result:
        """One whole answer to exactly one of ``prompt``, ``messages`` and ``token_ids``."""
        request = build_request(model, prompt, messages, token_ids, params)
        return result(self._unary("Generate", request, timeout_s), choices_of(request))

    def stream(
        self,
        model: str,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        timeout_s: float | None = None,
        **params: Unpack[GenerateParams],
    ) -> Stream:
        """As ``generate``, piece by piece. What is refused raises at the first step of the iteration."""
        request = build_request(model, prompt, messages, token_ids, params)
        call = self._stub.GenerateStream(request, timeout=timeout_s, metadata=self._metadata)
        return Stream(call, choices_of(request))

    def count_tokens(
        self, model: str, prompt: str | None = None, *, messages: Sequence[Message] | None = None
    ) -> tuple[int, ...]:
        """The ids that Generate would make of the input."""
        request = count_request(model, prompt, messages)
        return tuple(self._unary("CountTokens", request, None).token_ids)

    def list_models(self) -> list[pb.Model]:
        """Every model that this key's tenant may use now."""
        found: list[pb.Model] = []
        token = ""
        while True:
            page = self._unary("ListModels", pb.ListModelsRequest(page_size=1000, page_token=token), None)
            found.extend(page.models)
            token = page.next_page_token
            if not token:
                return found

    def get_model(self, name: str) -> pb.Model:
        model: pb.Model = self._unary("GetModel", pb.GetModelRequest(name=name), None)
        return model

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _unary(self, method: str, request: Any, timeout_s: float | None) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None


__all__ = ["Client", "Stream"]
