"""``lorry chat``: a conversation, line by line, on a terminal or through a pipe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from lorry.cli.generate import answer, params, who_answered
from lorry.cli.output import print_json_line, say, written
from lorry.cli.remedies import print_error
from lorry.cli.session import Session, session
from lorry.client import Client
from lorry.errors import LorryError

HELP = """\
/model NAME  another model answers from here on; the conversation stays
/reset       begin again
/quit        leave (also: end of input)
//...        a message that begins with a slash"""


class Chat:
    """``messages`` are the conversation; a question that got no answer is not in it."""

    def __init__(self, options: argparse.Namespace, here: Session, client: Client) -> None:
        self._options, self._here, self._client = options, here, client
        self.model = here.name(options.model)
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        system = self._options.system
        self.messages = [{"role": "system", "content": system}] if system else []

    def ask(self, text: str) -> None:
        """Prints the answer as it comes. Raises the LorryError that ended it."""
        asked = [*self.messages, {"role": "user", "content": text}]
        live = not self._options.json
        with self._client.stream(
            self.model, messages=asked, timeout_s=self._options.timeout, **params(self._options)
        ) as stream:
            for delta in stream:
                if live:
                    print(written(delta.text), end="", flush=True)
            if live:
                print()
                say(who_answered(stream))
            else:
                print_json_line(answer(stream))
        self.messages = [*asked, {"role": "assistant", "content": stream.text}]

    def command(self, line: str) -> bool:
        """Does what a line with a slash says; False: leave."""
        word, _, rest = line.partition(" ")
        match word:
            case "/quit" | "/exit":
                return False
            case "/reset":
                self.reset()
                say("a new conversation")
            case "/model" if rest.strip():
                self.model = self._here.name(rest.strip())
                say(f"{self.model} answers")
            case "/model":
                say(self.model)
            case _:
                say(HELP if word == "/help" else f"{word} is no command\n{HELP}")
        return True


def chat(options: argparse.Namespace) -> int:
    """On a terminal errors and Ctrl-C end an answer, not the conversation; through a pipe the first error ends it."""
    here = session(options)
    person = sys.stdin.isatty()
    lines = _prompted() if person else (line.rstrip("\n") for line in sys.stdin)
    with here.client() as client:
        talk = Chat(options, here, client)
        if person:
            say(f"{talk.model} answers; /help lists commands")
        for line in lines:
            if not line.strip():
                continue
            try:
                if line.startswith("/") and not line.startswith("//"):
                    if not talk.command(line):
                        break
                    continue
                talk.ask(line.removeprefix("/") if line.startswith("//") else line)
            except LorryError as error:
                if not person:
                    raise
                print()
                print_error(error, options.json)
            except KeyboardInterrupt:
                if not person:
                    raise
                print()
                say("stopped; the question is not part of the conversation")
    return 0


def _prompted(read: Callable[[str], str] = input) -> Iterator[str]:
    """Lines with the terminal's editing, until the end of input; Ctrl-C gives up a line."""
    try:
        import readline  # noqa: F401  # for its effect on input()
    except ImportError:
        pass  # not on every system; the line cannot be edited there
    while True:
        try:
            yield read("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()


__all__ = ["HELP", "Chat", "chat"]
