"""Text to ids and back: tokenizer, chat template, incremental detokenising, stop strings. No torch, no wire."""

from lorry.text.detokenizer import Detokenizer
from lorry.text.overlay import TEXT_FILES, TextRefused, VersionTextFacts, base_end_ids, read_version_text
from lorry.text.spelling import Spelling, spell
from lorry.text.stops import StopMatcher
from lorry.text.tokenizer import Tokenizer, tokenizer_digest

__all__ = [
    "TEXT_FILES",
    "Detokenizer",
    "Spelling",
    "StopMatcher",
    "TextRefused",
    "Tokenizer",
    "VersionTextFacts",
    "base_end_ids",
    "read_version_text",
    "spell",
    "tokenizer_digest",
]
