"""docs/cli.md, of the command line's parser."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator

from lorry.cli.app import build_parser
from making.markdown import cell, table

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


def cli_page() -> str:
    """Every command with its arguments."""
    whole = build_parser()
    parts = [
        _CLI_HEAD,
        "Commands against a running platform, marked (\u2192), also take:\n\n",
        _arguments(_connected(whole), _SHARED),
    ]
    for name, text, parser in commands(whole):
        actions = list(commands(parser))
        parts.append(f"## lorry {name}\n\n{_sentence(text, parser)}\n\n")
        if not actions:
            parts.append(_arguments(parser, _own(parser)))
        for action, what, own in actions:
            parts.append(f"### lorry {name} {action}\n\n{_sentence(what, own)}\n\n{_arguments(own, _own(own))}")
    return "".join(parts).rstrip() + "\n"


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
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
    return next(own for _, _, own in commands(parser) if _remote(own))


def _sentence(text: str, parser: argparse.ArgumentParser) -> str:
    mark = " (\u2192)" if _remote(parser) else ""
    return f"{cell(text[0].upper() + text[1:])}.{mark}"


def _arguments(parser: argparse.ArgumentParser, flags: Collection[str]) -> str:
    """A table of the positional arguments and of those flags."""
    rows = [
        (_names(action), cell((action.help or "") % {**vars(action), "prog": parser.prog}))
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction)
        and (not action.option_strings or action.option_strings[-1] in flags)
    ]
    return f"{table(('argument', ''), rows)}\n" if rows else ""


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
