"""A request's input as token ids, by the text side of the version that it names."""

from __future__ import annotations

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import InvalidRequest
from lorry.gateway.texts import TextSide


async def prompt_ids(request: pb.GenerateRequest | pb.CountTokensRequest, text: TextSide) -> tuple[int, ...]:
    """Of ``prompt`` or ``chat``, whichever is set. Raises InvalidRequest where the input makes no token, or the chat
    template refuses the messages."""
    field = request.WhichOneof("input") or "prompt"
    if field == "chat":
        chat = request.chat
        opens = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
        messages = [{"role": one.role, "content": one.content} for one in chat.messages]
        ids = await text.encode_chat(messages, opens)
    else:
        ids = await text.encode(request.prompt)
    if not ids:
        raise InvalidRequest.field(field, "it makes no token with this model's tokenizer; send some text")
    return ids


__all__ = ["prompt_ids"]
