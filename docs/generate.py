"""Writes what in the documentation is made from code: docs/api.md, docs/cli.md, docs/metrics.md, and the marked parts
of docs/adapters.md and README.md.

    python docs/generate.py            (or: make docs)

A marked part lies between ``<!-- generated: NAME -->`` and ``<!-- end -->``; the rest of those files is written by
hand. A test compares every file with what this would write.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from lorry.adapters.config.formats import Section, sections
from lorry.cli.app import build_parser
from lorry.errors import LorryError
from lorry.gateway.metrics import ROUTER, SECTIONS, Kind
from lorry.gateway.metrics import Metric as MetricEntry
from lorry.gateway.metrics import Section as MetricSection
from lorry.gateway.served import NOT_SERVED

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ("generate", "adapter_admin", "tenant_admin", "user_admin", "fleet")
_API_HEAD = """\
# The gRPC API

Generated from `proto/lorry/api/v1/*.proto` and `lorry.errors` by `make docs`; do not edit.

All services are on one port. Every call carries the metadata `authorization: Bearer <api key>`, or in the key's place a
user token, which a web app makes for a minute for who is logged in. Health (`grpc.health.v1.Health`) and reflection are
on the same port and need no key.

"""
_SHARED = ("--address", "--tls", "--ca", "--cert", "--cert-key", "--tenant", "--retries", "--json")
"""Flags that docs/cli.md lists once."""
_CLI_HEAD = """\
# The command line

Generated from the parser of `lorry` by `make docs`; do not edit.

| exit status | |
| --- | --- |
| 0 | done |
| 1 | refused or failed; for `adapters validate`, `doctor` and `audit verify` also: the answer is no |
| 2 | wrong usage: nothing was sent |
| 130 | interrupted |

**Answers** go to standard output, everything else to standard error. With `--json` the answer is one JSON document with
the field names of the API's proto JSON (`chat`: a line for each answer), and an error is `{"error": {...}}` on standard
error with code, reason, message, remedy, metadata and field violations. Without it an error is one line:
`lorry: CODE REASON: message; remedy`. [api.md](api.md#errors) lists the reasons.

**Address and key** come from flags, then `LORRY_ADDRESS`, `LORRY_API_KEY` and `LORRY_TENANT`, then the profile that
`lorry login` keeps: `$XDG_CONFIG_HOME/lorry/profile.toml` (`~/.config` by default) or `LORRY_PROFILE`, readable by its
owner alone, or it is refused. A profile's key is sent to the profile's address and to no other. The key is typed unseen
or read from standard input: `lorry keys create ann | lorry login --address HOST:PORT`.

**Names** may be short: `pirate`, `pirate@prod` and `pirate/versions/3` are adapters of the tenant, a key's or a quota's
id is enough. `adapters show` and `diff` take an alias, or the bare name for the newest READY version.

**Times** are dates (`2026-11-01`, `2026-11-01T10:00Z`) or spans (`90s`, `15m`, `24h`, `30d`).

What fails before it has an answer is tried again, twice unless `--retries` says otherwise, when the server says, or
sooner and then later by itself; what must not be done twice (making a key, a user or a password, stepping an alias
back) is not. A push that breaks off goes on by itself, or later with `--resume`.

"""


_METRICS_HEAD = """\
# Metrics

Generated from `lorry.gateway.metrics.catalog` by `make docs`; do not edit.

`GET /metrics` of the operators' port (`--ops-host`, `--ops-port`, default `127.0.0.1:50062`; no authentication) answers
in Prometheus' text format, or in OpenMetrics where the `Accept` header asks for it: the gateway, and the engines behind
it, labelled by `replica`. Beside what is listed here there are the `process_*` metrics of the gateway's process.
Prometheus adds `job` and `instance`.

Labels never carry an adapter, a key, a user or a request; `tenant` stands on two counters alone. So the number of
series does not grow with use. Counters begin at 0 with the process that counts. Bounds of histograms are in brackets.

[deploy/prometheus](../deploy/prometheus/rules.yml) has alert rules, each with a part of the [runbook](runbook.md), and
an example of a configuration; [deploy/grafana](../deploy/grafana) dashboards of gateway, engines and tenants.

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
        return _cell(self.paragraphs(*path).replace("\n\n", " "))


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
        + _table(("method", "takes", "answers", ""), rows)
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
        + (_table(("", "field", "type", ""), rows) if rows else "No fields.\n")
        + "\n"
    )


def _oneof(proto: Commented, index: int, group: int, name: str) -> str:
    comment = proto.line(4, index, 8, group)
    return f"one of `{name}`" + (f": {comment[0].lower()}{comment[1:].rstrip('.')}" if comment else "")


def _enum(proto: Commented, index: int, enum: EnumDescriptorProto) -> str:
    rows = [(str(value.number), f"`{value.name}`", proto.line(5, index, 2, at)) for at, value in enumerate(enum.value)]
    intro = proto.paragraphs(5, index)
    return f"### {enum.name}\n\n" + (f"{intro}\n\n" if intro else "") + _table(("", "value", ""), rows) + "\n"


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
        + _table(("reason", "gRPC status", "HTTP status"), rows)
        + "\n## Fields that are not served yet\n\n"
        f"Set, they answer `UNIMPLEMENTED` with the field's name; they are never ignored: {unserved}.\n\n"
    )


def _leaves() -> Iterator[type[LorryError]]:
    for name in lorry.errors.__all__:
        found = getattr(lorry.errors, name)
        if isinstance(found, type) and issubclass(found, LorryError) and found is not LorryError:
            yield found


def formats_tables() -> str:
    """What ``lorry adapters formats`` prints."""
    return "".join(_formats(section) for section in sections())


def _formats(section: Section) -> str:
    used = [at for at in range(len(section.columns)) if any(row[at] for row in section.rows)]
    rows = [[_cell(row[at]) for at in used] for row in section.rows]
    return f"### {section.title}\n\n" + _table([section.columns[at] for at in used], rows) + "\n"


def cli_page() -> str:
    """Every command with its arguments."""
    whole = build_parser()
    parts = [
        _CLI_HEAD,
        "Commands against a running platform, marked (\u2192), also take:\n\n",
        _arguments(_connected(whole), _SHARED),
    ]
    for name, text, parser in _commands(whole):
        actions = list(_commands(parser))
        parts.append(f"## lorry {name}\n\n{_sentence(text, parser)}\n\n")
        if not actions:
            parts.append(_arguments(parser, _own(parser)))
        for action, what, own in actions:
            parts.append(f"### lorry {name} {action}\n\n{_sentence(what, own)}\n\n{_arguments(own, _own(own))}")
    return "".join(parts).rstrip() + "\n"


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """(name, help, parser) of each."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            yield from ((name, helps[name], own) for name, own in action.choices.items())


def _flags(parser: argparse.ArgumentParser) -> set[str]:
    return {flag for action in parser._actions for flag in action.option_strings}


def _remote(parser: argparse.ArgumentParser) -> bool:
    return set(_SHARED) <= _flags(parser)


def _own(parser: argparse.ArgumentParser) -> set[str]:
    """Flags that a command's own table lists."""
    return _flags(parser) - set(_SHARED) if _remote(parser) else _flags(parser)


def _connected(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """One that has them all."""
    return next(own for _, _, own in _commands(parser) if _remote(own))


def _sentence(text: str, parser: argparse.ArgumentParser) -> str:
    mark = " (\u2192)" if _remote(parser) else ""
    return f"{_cell(text[0].upper() + text[1:])}.{mark}"


def _arguments(parser: argparse.ArgumentParser, flags: Collection[str]) -> str:
    """A table of the positional arguments and of those flags."""
    rows = [
        (_names(action), _cell((action.help or "") % {**vars(action), "prog": parser.prog}))
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction)
        and (not action.option_strings or action.option_strings[-1] in flags)
    ]
    return f"{_table(('argument', ''), rows)}\n" if rows else ""


def _names(action: argparse.Action) -> str:
    """As it is shown, then its other long names."""
    others = [flag for flag in action.option_strings[:-1] if flag.startswith("--")]
    return ", ".join(f"`{name}`" for name in (_usage(action), *others))


def _usage(action: argparse.Action) -> str:
    choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
    value = action.metavar if isinstance(action.metavar, str) else choices or action.dest.upper()
    if not action.option_strings:
        return action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    flag = action.option_strings[-1]
    if action.nargs == 0:
        return flag
    return f"{flag} [{value}]" if action.nargs == "?" else f"{flag} {value}"


def metrics_page() -> str:
    """Every metric that is served."""
    parts = [_METRICS_HEAD, *(_metrics(section) for section in (*SECTIONS, ROUTER))]
    return "".join(parts).rstrip() + "\n"


def _metrics(section: MetricSection) -> str:
    rows = [
        (
            f"`{metric.name}`",
            _kind(metric),
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.unit,
            _cell(metric.help),
        )
        for metric in section.metrics
    ]
    table = _table(("metric", "kind", "labels", "unit", ""), rows)
    return f"## {section.title}\n\n{section.intro}\n\n{table}\n"


def _kind(metric: MetricEntry) -> str:
    if metric.kind is not Kind.HISTOGRAM:
        return str(metric.kind)
    return f"histogram [{', '.join(f'{bound:g}' for bound in metric.bounds)}]"


def make_help() -> str:
    """What ``make help`` prints, as a code block."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    shown = subprocess.run(
        ["make", "--silent", "--no-print-directory", "help"],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return f"```\n{shown.stdout.rstrip()}\n```\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def fill(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """``text`` with every marked part made anew. Raises KeyError for a name that nobody makes."""

    def made(match: re.Match[str]) -> str:
        return f"{match[1]}\n{parts[match[2]]()}{match[3]}"

    return re.sub(r"(<!-- generated: ([a-z-]+) -->)\n.*?(<!-- end -->)", made, text, flags=re.DOTALL)


def pages() -> dict[Path, str]:
    """Every file that is generated, or holds generated parts, as it should be."""
    parts: dict[str, Callable[[], str]] = {"formats": formats_tables, "make-help": make_help}
    found = {
        ROOT / "docs" / "api.md": api_page(),
        ROOT / "docs" / "cli.md": cli_page(),
        ROOT / "docs" / "metrics.md": metrics_page(),
    }
    for path in (ROOT / "docs" / "adapters.md", ROOT / "README.md"):
        found[path] = fill(path.read_text(encoding="utf-8"), parts)
    return found


def main() -> int:
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
