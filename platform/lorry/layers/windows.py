"""Which layers attend through a sliding window. No torch."""

from __future__ import annotations

from lorry.layers.fields import ConfigFields

_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_windows(fields: ConfigFields, layers: int) -> tuple[int | None, tuple[int, ...]]:
    """(window in tokens or None, the layers that have it).

    Mistral's window is on every layer. Qwen's is there only with ``use_sliding_window``, and then on the layers that
    ``layer_types`` names, or from ``max_window_layers`` on. Families that do not choose by layer may still carry
    ``layer_types``, if it says what they do.
    """
    by_layer = fields.reads("use_sliding_window")
    window = None
    if fields.reads("sliding_window") and (not by_layer or fields.flag("use_sliding_window")):
        window = fields.size("sliding_window") if fields.get("sliding_window") is not None else None
    windowed = tuple(range(layers)) if window is not None else ()
    if by_layer:
        first = fields.get("max_window_layers")
        if not isinstance(first, int) or isinstance(first, bool):
            fields.refuse("max_window_layers", first, "it must be an integer")
            first = 0
        windowed = tuple(layer for layer in windowed if layer >= first)
    kinds = fields.get("layer_types")
    if kinds is not None:
        named = _named(fields, kinds, layers)
        if named and window is None:
            fields.refuse("layer_types", kinds, "a layer slides, but the config sets no sliding window")
        elif named != windowed and not by_layer:
            fields.refuse("layer_types", kinds, "this type of base does not choose the window by layer")
        windowed = named
    return (window, windowed) if windowed else (None, ())


def _named(fields: ConfigFields, kinds: object, layers: int) -> tuple[int, ...]:
    if not isinstance(kinds, list) or any(kind not in (_FULL, _SLIDING) for kind in kinds):
        fields.refuse("layer_types", kinds, f"it must be a list of {_FULL!r} and {_SLIDING!r}")
        return ()
    if len(kinds) != layers:
        fields.refuse("layer_types", kinds, f"it must have num_hidden_layers = {layers} entries")
        return ()
    return tuple(layer for layer, kind in enumerate(kinds) if kind == _SLIDING)


__all__ = ["read_windows"]
