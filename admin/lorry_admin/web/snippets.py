"""A question of the playground as code that asks the same. The key is named and never shown: it is the reader's own."""

from __future__ import annotations

import json
import shlex
from typing import Any

from google.protobuf.json_format import MessageToDict

from lorry_admin.web.playing import Asked

_KEY = "LORRY_API_KEY"


def python(asked: Asked, address: str, tls: bool) -> str:
    arguments = [f"    {_literal(asked.model)},"]
    if asked.messages is None:
        arguments.append(f"    {_literal(asked.prompt)},")
    else:
        arguments.append("    messages=[")
        arguments += [f"        {_literal(dict(message))}," for message in asked.messages]
        arguments.append("    ],")
    arguments += [f"    {name}={_literal(value)}," for name, value in asked.params.items()]
    return "\n".join(
        [
            "import os",
            "",
            f"from lorry.client import Client{', Tls' if tls else ''}",
            "",
            f'with Client({_literal(address)}, os.environ["{_KEY}"]{", tls=Tls()" if tls else ""}) as client:',
            "    stream = client.stream(",
            *(f"    {line}" for line in arguments),
            "    )",
            "    for delta in stream:",
            '        print(delta, end="", flush=True)',
            "    print()",
            "    print(stream.resolved.sha256, stream.usage.output_tokens)",
            "",
        ]
    )


def curl(asked: Asked, url: str) -> str:
    """OpenAI's API; "" where there is none."""
    if not url:
        return ""
    body: dict[str, Any] = {"model": asked.model}
    if asked.messages is None:
        path, body["prompt"] = "/v1/completions", asked.prompt
    else:
        path, body["messages"] = "/v1/chat/completions", [dict(message) for message in asked.messages]
    body |= asked.params | {"stream": True}
    return "\n".join(
        [
            f"curl --no-buffer {shlex.quote(url.rstrip('/') + path)} \\",
            f'  -H "authorization: Bearer ${_KEY}" \\',
            "  -H 'content-type: application/json' \\",
            f"  -d {shlex.quote(json.dumps(body, ensure_ascii=False))}",
            "",
        ]
    )


def grpcurl(asked: Asked, address: str, tls: bool) -> str:
    request = MessageToDict(asked.request())
    return "\n".join(
        [
            f"grpcurl {'' if tls else '-plaintext '}\\",
            f'  -H "authorization: Bearer ${_KEY}" \\',
            f"  -d {shlex.quote(json.dumps(request, ensure_ascii=False))} \\",
            f"  {shlex.quote(address)} lorry.api.v1.GenerateService/GenerateStream",
            "",
        ]
    )


def _literal(value: object) -> str:
    """Python's own notation, whatever the text is."""
    return repr(value)


__all__ = ["curl", "grpcurl", "python"]
