"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.client import generating
from lorry.client.blocking import BlockingCaller, Method, Sleep
from lorry.client.channels import Tls, open_channel
from lorry.client.prepared import Streamed
from lorry.client.requests import GenerateParams, Message, build_request
from lorry.client.results import Delta, Result, StreamState, choices_of
from lorry.client.retry import Retry
from lorry.errors import RequestCancelled


class Stream(StreamState):
    """Iterate it for deltas; leave its ``with`` block (or ``close``) to stop the generation early."""

    def __init__(
        self, caller: BlockingCaller, prepared: Streamed[pb.GenerateStreamResponse], timeout_s: float | None, n: int
    ) -> None:
        super().__init__(n)
        self._caller, self._prepared = caller, prepared
        self._tries = caller.tries(timeout_s)
        self._closed = False
        self._call: Any = caller.open(prepared, self._tries.left_s)

    def __iter__(self) -> Iterator[Delta]:
        """Raises the LorryError that ended the stream, and EmptyStream where it ended without StreamEnd. A stream of
        which a message has arrived is never begun again."""
        try:
            while True:
                try:
                    for message in self._call:
                        delta = self._feed(message)
                        if delta is not None:
                            yield delta
                    break
                except grpc.RpcError as error:
                    if self.begun or self._closed:
                        raise error_from_rpc(error) from None
                    wait_s = self._tries.failed(error)
                self._caller.sleep(wait_s)
                self._again()
        finally:
            self._call.cancel()
        self._close()

    def close(self) -> None:
        self._closed = True
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _again(self) -> None:
        if self._closed:
            raise RequestCancelled("the stream was closed before its first message")
        self._call = self._caller.open(self._prepared, self._tries.left_s)


class Client:
    """``Client("127.0.0.1:50061", api_key)``. Safe to share between threads; not across a fork.

    Every method raises leaves of ``lorry.errors``. ``timeout_s`` is the request's deadline, all tries together; None is
    none. ``retry`` says how often and when what failed before its first message is tried again. Without ``tls`` (files)
    or ``credentials`` (grpc's) the key travels in clear: on one machine or inside a mesh only. ``sleep`` is for tests.
    """

    def __init__(
        self,
        address: str,
        api_key: str,
        credentials: grpc.ChannelCredentials | None = None,
        *,
        tls: Tls | None = None,
        retry: Retry = Retry(),  # noqa: B008  # frozen
        sleep: Sleep = time.sleep,
    ) -> None:
        self._channel = open_channel(address, credentials, tls)
        self.caller = BlockingCaller(self._channel, api_key, retry, sleep)

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
        return self.caller.unary(generating.generate(request), timeout_s)

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
        return Stream(self.caller, generating.stream(request), timeout_s, choices_of(request))

    def list_models(self) -> list[pb.Model]:
        """Every model that this key's tenant may use now."""
        return list(self.caller.pages(generating.list_models()))

    count_tokens = Method(generating.count_tokens)
    get_model = Method(generating.get_model)
    whoami = Method(generating.whoami)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


__all__ = ["Client", "Stream"]
