"""A request's input as token ids, computed off the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import InvalidRequest
from lorry.text import Tokenizer


async def prompt_ids(
    request: pb.GenerateRequest | pb.CountTokensRequest, tokenizer: Tokenizer, pool: Executor
) -> tuple[int, ...]:
    """Raises InvalidRequest where the input makes no token, or the chat template refuses the messages."""
    field = request.WhichOneof("input") or "prompt"
    if isinstance(request, pb.GenerateRequest) and field == "token_ids":
        return tuple(request.token_ids.ids)
    ids = await asyncio.get_running_loop().run_in_executor(pool, _encode, request, tokenizer)
    if not ids:
        raise InvalidRequest.field(field, "it makes no token with this model's tokenizer; send some text")
    return ids


def _encode(request: pb.GenerateRequest | pb.CountTokensRequest, tokenizer: Tokenizer) -> tuple[int, ...]:
    if request.WhichOneof("input") != "chat":
        return tuple(tokenizer.encode(request.prompt, add_special=True))
    chat = request.chat
    opens = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
    text = tokenizer.render_chat([{"role": m.role, "content": m.content} for m in chat.messages], opens)
    return tuple(tokenizer.encode(text, add_special=False))


__all__ = ["prompt_ids"]
