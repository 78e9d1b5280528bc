"""A chat's messages."""

from __future__ import annotations

from typing import Any

from lorry.api.v1 import generate_pb2 as pb
from lorry.gateway.checks import MESSAGES_MAX, Violations
from lorry.gateway.http.fields import Fields, shown
from lorry.gateway.http.served import refuse

_NOT_SERVED = ("name", "tool_calls", "tool_call_id", "function_call", "audio", "refusal")
_ROLES_NOT_SERVED = ("tool", "function")
_PARTS_NOT_SERVED = ("image_url", "input_audio", "file", "refusal")
_SAME_ROLE = {"developer": "system"}
"""OpenAI's newer word; chat templates know the older one."""


def read_messages(fields: Fields, chat: pb.Chat, bad: Violations) -> None:
    """Raises NotServedYet for tools, pictures, sound and names. Roles are checked behind the service layer."""
    chat.SetInParent()
    if "messages" not in fields:
        fields.refuse("messages", "missing; send a list with at least one message")
    found = fields.list("messages") or []
    if len(found) > MESSAGES_MAX:
        fields.refuse("messages", f"{len(found)} messages; send at most {MESSAGES_MAX}")
        return
    for at, one in enumerate(found):
        path = f"messages[{at}]"
        if isinstance(one, dict):
            _read_message(Fields(one, bad, path), chat.messages.add(), bad, path)
        else:
            bad.add(path, f"{shown(one)}; send an object with role and content")


def _read_message(fields: Fields, message: pb.ChatMessage, bad: Violations, path: str) -> None:
    if "role" not in fields:
        fields.refuse("role", "missing; send system, user or assistant")
    role = fields.text("role")
    if role in _ROLES_NOT_SERVED:
        refuse([f"{path}.role"])
    refuse([f"{path}.{name}" for name in _NOT_SERVED if fields.take(name) not in (None, [])])
    if role is not None:
        message.role = _SAME_ROLE.get(role, role)
    content = fields.take("content")
    if isinstance(content, str):
        message.content = content
    elif isinstance(content, list) and content:
        message.content = "".join(_part(part, bad, f"{path}.content[{at}]") for at, part in enumerate(content))
    else:
        bad.add(f"{path}.content", f"{shown(content)}; send a string")
    fields.finish()


def _part(part: Any, bad: Violations, path: str) -> str:
    if not isinstance(part, dict):
        bad.add(path, f"{shown(part)}; send an object with type and text")
        return ""
    fields = Fields(part, bad, path)
    kind, text = fields.text("type"), fields.text("text")
    if kind in _PARTS_NOT_SERVED:
        refuse([f"{path}.type"])
    if kind != "text" or text is None:
        bad.add(path, "not a text; send type `text` and its text")
    fields.finish()
    return text or ""


__all__ = ["read_messages"]
