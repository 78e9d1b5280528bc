"""A version's own tokenizer, chat template and end ids, as rows and as the plan's part of them. No torch."""

from __future__ import annotations

from pathlib import Path

from lorry.adapters.plan import TextPlan
from lorry.adapters.report import Check
from lorry.layers.spec import DecoderSpec
from lorry.text import TEXT_FILES, TextRefused, read_version_text


def check_text(
    folder: Path, spec: DecoderSpec, base_dir: Path | None, rows: int
) -> tuple[TextPlan | None, Check | None]:
    """The plan's ``text`` and the row on it; None: nothing of the kind. ``rows``: of the embedding that is served."""
    own = [name for name in TEXT_FILES if (folder / name).exists()]
    if not own:
        return None, None
    if base_dir is None:
        remedy = "the base's own are not on this machine to compare with; validate where they are"
        return None, Check.some_fail("text", own, "", remedy)
    try:
        facts = read_version_text(base_dir, folder, spec.eos_token_ids)
    except TextRefused as refused:
        return None, Check.fail(f"text.{refused.file}", refused.message, refused.value, refused.limit)
    if facts is None:
        return None, Check("text", "pass", f"{', '.join(own)}: as the base's")
    ends = ", ".join(map(str, facts.end_ids)) or "none"
    message = f"{', '.join(own)}: {facts.vocabulary} ids, of which {ends} end an answer"
    if facts.vocabulary > rows:
        message += (
            f"; the embedding has {rows} rows; resize it before training, so that the enlarged embed_tokens and "
            "lm_head are saved with the adapter"
        )
        return None, Check.fail("text.tokenizer.json", message, facts.vocabulary, rows)
    if any(one >= rows for one in facts.end_ids):
        message += f"; ids are below {rows}; correct eos_token_id"
        return None, Check.fail("text.generation_config.json", message, max(facts.end_ids), rows)
    plan = TextPlan(facts.sha256, facts.vocabulary, facts.end_ids)
    return plan, Check("text", "pass", message, facts.vocabulary, rows)


__all__ = ["check_text"]
