"""Text to ids and back: tokenizer, chat template, incremental detokenising, stop strings. No torch, no wire."""

from lorry.text.detokenizer import Detokenizer
from lorry.text.stops import StopMatcher
from lorry.text.tokenizer import Tokenizer, tokenizer_digest

__all__ = ["Detokenizer", "StopMatcher", "Tokenizer", "tokenizer_digest"]
