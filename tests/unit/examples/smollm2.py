"""The shape of SmolLM2-135M-Instruct, so that checks of adapters need no download."""

from lorry.layers.rope import RopeSpec
from lorry.layers.spec import DecoderSpec

SMOLLM2 = DecoderSpec(
    model_type="llama",
    layers=30,
    hidden=576,
    intermediate=1536,
    heads=9,
    kv_heads=3,
    head_dim=64,
    vocabulary=49152,
    context_tokens=8192,
    rms_norm_eps=1e-5,
    rope=RopeSpec("default", 100_000.0),
    tied_head=True,
    bos_token_id=1,
    eos_token_ids=(2,),
)
