"""``GenerateService``, prepared."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from lorry.api.about import About, about_of
from lorry.api.v1 import generate_pb2 as pb
from lorry.client.prepared import GENERATE, PAGE_SIZE, Paged, Streamed, Unary
from lorry.client.requests import Message, count_request
from lorry.client.results import Result, choices_of, result


def generate(request: pb.GenerateRequest) -> Unary[Result]:
    """One whole answer."""
    n = choices_of(request)
    return GENERATE.picked("Generate", named(request), pb.GenerateResponse, lambda answer, _: result(answer, n))


def stream(request: pb.GenerateRequest) -> Streamed[pb.GenerateStreamResponse]:
    """Its pieces."""
    return GENERATE.streamed("GenerateStream", named(request), pb.GenerateStreamResponse, lambda message: message)


def count_tokens(
    model: str, prompt: str | None = None, *, messages: Sequence[Message] | None = None
) -> Unary[tuple[int, ...]]:
    """The ids that Generate would make of the input."""
    request = count_request(model, prompt, messages)
    return GENERATE.picked("CountTokens", request, pb.CountTokensResponse, lambda answer, _: tuple(answer.token_ids))


def list_models() -> Paged[pb.Model]:
    """Every model that this key's tenant may use now."""
    request = pb.ListModelsRequest(page_size=PAGE_SIZE)
    return GENERATE.paged("ListModels", request, pb.ListModelsResponse, lambda page: page.models)


def get_model(name: str) -> Unary[pb.Model]:
    """One of them, by the names that ``generate`` takes."""
    return GENERATE.unary("GetModel", pb.GetModelRequest(name=name), pb.Model)


def whoami() -> Unary[About]:
    """Whose key it is and what the server says of itself. Raises Unauthenticated for a key that is not good."""
    request = pb.ListModelsRequest(page_size=1)
    return GENERATE.picked("ListModels", request, pb.ListModelsResponse, lambda _, trailing: about_of(trailing))


def named(request: pb.GenerateRequest) -> pb.GenerateRequest:
    """With a request_id, minted where there is none: all tries of one call are one request to the server, and an
    alias's canary takes them all or none."""
    if not request.request_id:
        request.request_id = uuid.uuid4().hex
    return request


__all__ = ["count_tokens", "generate", "get_model", "list_models", "named", "stream", "whoami"]
