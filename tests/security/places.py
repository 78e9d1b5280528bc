"""A platform whose every word is heard, and the secrets that must not be among them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorry.api.v1 import generate_pb2 as g
from tests.security.leaks import Said
from tests.security.world import Outcome, World

PASSWORD = "pw-3f9c1d7e5b"
S3_SECRET = "s3-secret-7d0b2a99c4"
PROMPT = "prompt-marker-51e0 my card is 4111"
ANSWER = "answer-marker-9a77"
UNUSED_PORT = 1
"""Nothing listens there, and nothing may: it belongs to the system."""


@dataclass
class Place:
    here: World
    said: Said
    home: Path

    def hear(self, what: str, found: Outcome) -> Outcome:
        self.said.hear(f"{what} {found.code}", f"{found.message} {found.reason} {found.details!r}")
        return found


def generate(model: str, prompt: str = PROMPT, **fields: Any) -> g.GenerateRequest:
    return g.GenerateRequest(model=model, prompt=prompt, stopping=g.StoppingParams(max_tokens=20), **fields)
