"""What a version's own text files change, judged before anything is answered with them. Runs none of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorry.errors import UnsupportedBase
from lorry.text.files import CONFIG, GENERATION, LIMITS, TOKENIZER, TextFiles, parse_object, read_bounded
from lorry.text.tokenizer import Tokenizer, special_text

TEXT_FILES: tuple[str, ...] = tuple(LIMITS)
"""Files of a version that decide text: all that reading one takes."""
END_IDS_MAX = 64
_ID_MAX = (1 << 31) - 1
_NAMED = re.compile(r"[a-z_]+\.(json|jinja)")


class TextRefused(ValueError):
    """A version's text file that cannot be used. ``file`` names it; ``message`` begins with it and has the remedy."""

    def __init__(self, file: str, message: str, value: object = None, limit: object = None) -> None:
        super().__init__(message)
        self.file = file
        self.message = message
        self.value = value
        self.limit = limit


@dataclass(frozen=True, slots=True)
class VersionTextFacts:
    """``sha256`` is ``tokenizer_digest(base_dir, folder)``; ids are 0 <= id < ``vocabulary``; any of ``end_ids``,
    sorted, ends a generation."""

    sha256: str
    vocabulary: int
    end_ids: tuple[int, ...]


def base_end_ids(base_dir: Path, config_ids: Collection[int] | None = None) -> tuple[int, ...]:
    """End-of-sequence ids of config.json (``config_ids``, where the caller has read it with its family's defaults) and
    generation_config.json together, sorted."""
    if config_ids is None:
        content = (base_dir / "config.json").read_bytes()
        config_ids = _token_ids("config.json", parse_object("config.json", content).get("eos_token_id"))
    return tuple(sorted({*config_ids, *(_generation_ids(base_dir) or ())}))


def read_version_text(
    base_dir: Path, folder: Path, config_ids: Collection[int] | None = None
) -> VersionTextFacts | None:
    """What the files of ``TEXT_FILES`` in ``folder`` make of the base's text side; None where that is nothing, be it
    that there are none or that they say the same (a tokenizer that was only saved again).

    End ids: those of the version's generation_config.json; where that has none, the base's and the version's own
    eos_token. ``config_ids``: see ``base_end_ids``. Raises TextRefused for a file that cannot be used, and
    UnsupportedBase where it is the base's own that cannot.

    No template is compiled here, let alone rendered. A tokenizer.json does run: its library puts added tokens through
    the normalizer when it reads them, which can take any time and memory. So what nobody has validated yet is read
    under limits (``lorry.adapters.sandbox.examine``).
    """
    if not any((folder / name).exists() or (folder / name).is_symlink() for name in TEXT_FILES):
        return None
    base = Tokenizer.load(base_dir)
    try:
        ends_of_base = base_end_ids(base_dir, config_ids)
    except TextRefused as refused:
        raise UnsupportedBase(f"the base's {refused.message}") from refused
    try:
        return _read(base, ends_of_base, base_dir, folder)
    except UnsupportedBase as error:
        named = _NAMED.match(error.message)
        raise TextRefused(named.group() if named else _template_file(folder), error.message) from error


def _read(base: Tokenizer, ends_of_base: tuple[int, ...], base_dir: Path, folder: Path) -> VersionTextFacts | None:
    own = base.with_overlay(base_dir, folder)
    _check_named(own, base_dir, folder)
    ends = _generation_ids(folder)
    if ends is None:
        ends = {*ends_of_base, *_own_eos(own, folder)}
    end_ids = tuple(sorted(ends))
    if own is base and end_ids == ends_of_base:
        return None
    return VersionTextFacts(own.sha256, own.vocabulary, end_ids)


def _check_named(own: Tokenizer, base_dir: Path, folder: Path) -> None:
    """transformers adds the tokens that tokenizer_config.json names to those of tokenizer.json; here they must be in
    it, so that a text has the ids that the version was trained on."""
    content = read_bounded(folder, CONFIG)
    if content is None:
        return
    named_by_base = set(_named(TextFiles.of(base_dir).settings()))
    for text, token_id in _named(parse_object(CONFIG, content)):
        have = own.token_id(text)
        if (text, token_id) not in named_by_base and (have is None or token_id not in (None, str(have))):
            raise TextRefused(
                CONFIG,
                f"{CONFIG}: names the token {text[:80]!r}{'' if token_id is None else f' as {token_id[:20]}'}, which "
                f"{TOKENIZER} {'does not have' if have is None else f'has as {have}'}; save the tokenizer with "
                "save_pretrained, both files",
                text[:80],
            )


def _named(config: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Tokens that a tokenizer_config.json wants added, with the id where it states one."""
    decoder = config.get("added_tokens_decoder")
    for token_id, token in decoder.items() if isinstance(decoder, dict) else ():
        if text := special_text(token):
            yield text, token_id
    if text := special_text(config.get("bos_token")):
        yield text, None
    for field in ("additional_special_tokens", "extra_special_tokens"):
        listed = config.get(field)
        if isinstance(listed, dict):
            listed = list(listed.values())
        for token in listed if isinstance(listed, list) else ():
            if text := special_text(token):
                yield text, None


def _own_eos(own: Tokenizer, folder: Path) -> tuple[int, ...]:
    text = own.special_tokens["eos_token"]
    if not text:
        return ()
    token = own.token_id(text)
    if token is None:
        file = CONFIG if (folder / CONFIG).exists() else TOKENIZER
        raise TextRefused(
            file,
            f"{file}: eos_token {text[:80]!r} is no token of tokenizer.json; save the tokenizer with save_pretrained",
            text[:80],
        )
    return (token,)


def _generation_ids(folder: Path) -> set[int] | None:
    content = read_bounded(folder, GENERATION)
    if content is None:
        return None
    value = parse_object(GENERATION, content).get("eos_token_id")
    return None if value is None else set(_token_ids(GENERATION, value))


def _token_ids(file: str, value: Any) -> tuple[int, ...]:
    found = value if isinstance(value, list) else [] if value is None else [value]
    wrong = [one for one in found if not isinstance(one, int) or isinstance(one, bool) or not 0 <= one <= _ID_MAX]
    if wrong:
        raise TextRefused(file, f"{file}: eos_token_id {str(wrong[0])[:80]} is no token id; name ids of the tokenizer")
    if len(found) > END_IDS_MAX:
        raise TextRefused(
            file, f"{file}: eos_token_id has {len(found)} ids, over {END_IDS_MAX}", len(found), END_IDS_MAX
        )
    return tuple(found)


def _template_file(folder: Path) -> str:
    name = "chat_template.jinja"
    return name if (folder / name).exists() else CONFIG


__all__ = ["END_IDS_MAX", "TEXT_FILES", "TextRefused", "VersionTextFacts", "base_end_ids", "read_version_text"]
