"""docs/api.md, of the protos with their comments and of the errors."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

import lorry.errors
from lorry.errors import LorryError
from lorry.gateway.served import NOT_SERVED
from making.markdown import cell, table

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ("generate", "adapter_admin", "tenant_admin", "user_admin", "fleet")
_API_HEAD = """\
# The gRPC API

Generated from `proto/lorry/api/v1/*.proto` and `lorry.errors` by `make docs`; do not edit.

All services are on one port. Every call carries the metadata `authorization: Bearer <api key>`, or in the key's place a
user token, which a web app makes for a minute for who is logged in. Health (`grpc.health.v1.Health`) and reflection are
on the same port and need no key.

"""


class Commented:
    """One proto file and its comments, by the path that protobuf's source information gives each part."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self.file = file
        self._comments = {
            tuple(place.path): place.leading_comments or place.trailing_comments
            for place in file.source_code_info.location
        }

    def paragraphs(self, *path: int) -> str:
        """The comment as Markdown, its own line breaks removed; "" where there is none."""
        text = self._comments.get(path, "")
        blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n", text)]
        return "\n\n".join(block for block in blocks if block)

    def line(self, *path: int) -> str:
        """The comment for a table's cell."""
        return cell(self.paragraphs(*path).replace("\n\n", " "))


def read_protos() -> list[Commented]:
    """The public protos in the order they are documented."""
    names = [f"lorry/api/v1/{name}.proto" for name in PROTOS]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "descriptors"
        wellknown = files("grpc_tools") / "_proto"
        arguments = ["protoc", f"-I{ROOT / 'proto'}", f"-I{wellknown}", "--include_source_info"]
        if protoc.main([*arguments, f"--descriptor_set_out={out}", *names]) != 0:
            raise SystemExit("protoc failed")
        found = FileDescriptorSet.FromString(out.read_bytes())
    by_name = {file.name: file for file in found.file}
    return [Commented(by_name[name]) for name in names]


def api_page() -> str:
    parts = [_API_HEAD]
    protos = read_protos()
    for proto in protos:
        for index, service in enumerate(proto.file.service):
            parts.append(_service(proto, index, service))
    parts.append(_errors())
    for proto in protos:
        parts.append(f"## Messages of `{Path(proto.file.name).name}`\n\n")
        for index, message in enumerate(proto.file.message_type):
            parts.append(_message(proto, index, message))
        for index, enum in enumerate(proto.file.enum_type):
            parts.append(_enum(proto, index, enum))
    return "".join(parts).rstrip() + "\n"


def _service(proto: Commented, index: int, service: ServiceDescriptorProto) -> str:
    rows = [
        (
            f"`{method.name}`",
            _link(method.input_type),
            ("stream of " if method.server_streaming else "") + _link(method.output_type),
            proto.line(6, index, 2, at),
        )
        for at, method in enumerate(service.method)
    ]
    intro = proto.paragraphs(6, index)
    return (
        f"## `{proto.file.package}.{service.name}`\n\n{intro}\n\n"
        + table(("method", "takes", "answers", ""), rows)
        + "\n"
    )


def _message(proto: Commented, index: int, message: DescriptorProto) -> str:
    maps = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    rows = []
    for at, field in enumerate(message.field):
        meaning = proto.line(4, index, 2, at)
        if field.HasField("oneof_index") and not field.proto3_optional:
            group = message.oneof_decl[field.oneof_index]
            meaning = f"({_oneof(proto, index, field.oneof_index, group.name)}) {meaning}".strip()
        rows.append((str(field.number), f"`{field.name}`", _type(field, maps), meaning))
    intro = proto.paragraphs(4, index)
    return (
        f"### {message.name}\n\n"
        + (f"{intro}\n\n" if intro else "")
        + (table(("", "field", "type", ""), rows) if rows else "No fields.\n")
        + "\n"
    )


def _oneof(proto: Commented, index: int, group: int, name: str) -> str:
    comment = proto.line(4, index, 8, group)
    return f"one of `{name}`" + (f": {comment[0].lower()}{comment[1:].rstrip('.')}" if comment else "")


def _enum(proto: Commented, index: int, enum: EnumDescriptorProto) -> str:
    rows = [(str(value.number), f"`{value.name}`", proto.line(5, index, 2, at)) for at, value in enumerate(enum.value)]
    intro = proto.paragraphs(5, index)
    return f"### {enum.name}\n\n" + (f"{intro}\n\n" if intro else "") + table(("", "value", ""), rows) + "\n"


def _type(field: FieldDescriptorProto, maps: Mapping[str, DescriptorProto]) -> str:
    entry = maps.get(field.type_name.rsplit(".", 1)[-1])
    if entry is not None:
        key, value = (_type(part, {}) for part in entry.field)
        return f"map of {key} to {value}"
    if field.type_name:
        name = _link(field.type_name)
    else:
        name = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _link(type_name: str) -> str:
    """To a message of ours by its heading; another package's by name."""
    package, name = type_name.removeprefix(".").rsplit(".", 1)
    return f"[{name}](#{name.lower()})" if package == "lorry.api.v1" else f"`{package}.{name}`"


def _errors() -> str:
    rows = [
        (f"`{error.reason}`", f"`{error.grpc_code}`", str(error.http_status))
        for error in sorted(_leaves(), key=lambda error: (error.http_status, error.grpc_code, error.reason))
    ]
    unserved = ", ".join(f"`{path}`" for path in NOT_SERVED)
    return (
        "## Errors\n\n"
        "The status message says what is wrong and what to do. `google.rpc.ErrorInfo` in the status details has the "
        "reason below (domain `lorry`), `BadRequest` the fields that are at fault, `RetryInfo` when to try again. The "
        "HTTP status is the one that [OpenAI's API](http.md) answers.\n\n"
        + table(("reason", "gRPC status", "HTTP status"), rows)
        + "\n## Fields that are not served yet\n\n"
        f"Set, they answer `UNIMPLEMENTED` with the field's name; they are never ignored: {unserved}.\n\n"
    )


def _leaves() -> Iterator[type[LorryError]]:
    for name in lorry.errors.__all__:
        found = getattr(lorry.errors, name)
        if isinstance(found, type) and issubclass(found, LorryError) and found is not LorryError:
            yield found
