"""Size of a KV cache: what the formula expects, what the cache object holds, layer by layer.

Nothing is imported from torch or transformers: a cache is read by the shape of its attributes, so
that dynamic, static and sliding caches and the older tuples of (key, value) all work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """What one cached token is made of. ``head_dim`` counts numbers of one key (or value) head."""

    layers: int
    kv_heads: int
    head_dim: int

    def bytes_per_token(self, bytes_per_element: float) -> float:
        """Bytes one token of one sequence takes in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_element


@dataclass(frozen=True, slots=True)
class LayerReading:
    """One layer of a cache object.

    ``length``: tokens the layer has seen; ``capacity``: tokens it has room for (fewer than seen
    in a sliding window, more in a static cache).
    """

    layer: int
    length: int
    capacity: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KvReport:
    """Measured beside expected, bytes. Every figure is finite or None with a reason."""

    expected_bytes: float | None
    """By :func:`expected_bytes` for the tokens seen."""
    expected_capacity_bytes: float | None
    """The same for the tokens allocated, where a cache allocates ahead; else as above."""
    measured_bytes: int | None
    tokens: int
    batch: int
    bytes_per_element: float | None
    layers: tuple[LayerReading, ...]
    wrong_lengths: tuple[int, ...]
    """Layers that have not seen exactly ``tokens`` tokens."""
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        out = asdict(self)
        out["layers"] = [asdict(layer) for layer in self.layers]
        out["wrong_lengths"] = list(self.wrong_lengths)
        return out


def expected_bytes(
    geometry: KvGeometry, tokens: int, *, batch: int = 1, bytes_per_element: float = 2
) -> float:
    """Bytes = 2 · layers · kv_heads · head_dim · tokens · batch · bytes_per_element.

    Key/value heads, not attention heads: with grouped-query attention they are fewer.
    """
    return geometry.bytes_per_token(bytes_per_element) * tokens * batch


def geometry_of(config: Any) -> KvGeometry | None:
    """Geometry from a model config; None when it does not state its layers and heads.

    ``head_dim`` defaults to hidden size ÷ attention heads, ``kv_heads`` to the attention heads.
    """
    config = getattr(config, "text_config", None) or config
    layers = getattr(config, "num_hidden_layers", None)
    heads = getattr(config, "num_attention_heads", None)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    hidden = getattr(config, "hidden_size", None)
    head_dim = getattr(config, "head_dim", None)
    if head_dim is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        head_dim = hidden // heads
    if not all(isinstance(v, int) and v > 0 for v in (layers, kv_heads, head_dim)):
        return None
    return KvGeometry(int(layers or 0), int(kv_heads or 0), int(head_dim or 0))


def report(cache: Any, config: Any, *, tokens: int, batch: int = 1) -> KvReport:
    """Measured beside expected for a cache that has seen ``tokens`` tokens in ``batch`` rows.

    After ``generate`` the last token has not been fed back, so ``tokens`` is prompt + output − 1.
    """
    pairs, reason = _pairs(cache)
    geometry = geometry_of(config)
    size = _element_size(pairs)
    layers = tuple(_layer(i, layer, k, v) for i, (layer, k, v) in enumerate(pairs))
    if geometry is None:
        reason = reason or "the model config does not state its layers and heads"
    expected = capacity = None
    if geometry is not None and size is not None:
        expected = expected_bytes(geometry, tokens, batch=batch, bytes_per_element=size)
        allocated = max((x.capacity for x in layers), default=tokens)
        capacity = expected_bytes(geometry, allocated, batch=batch, bytes_per_element=size)
    return KvReport(
        expected_bytes=expected,
        expected_capacity_bytes=capacity,
        measured_bytes=sum(x.bytes for x in layers) if layers and reason is None else None,
        tokens=tokens,
        batch=batch,
        bytes_per_element=size,
        layers=layers,
        wrong_lengths=tuple(x.layer for x in layers if x.length != tokens),
        reason=reason,
    )


def _pairs(cache: Any) -> tuple[list[tuple[Any, Any, Any]], str | None]:
    """``(layer object or None, keys, values)`` for each layer, and why it is not complete."""
    cache = getattr(cache, "self_attention_cache", cache)  # encoder-decoder models hold two
    if cache is None:
        return [], "there is no cache (use_cache is off)"
    found: Iterable[tuple[Any, Any, Any]]
    if hasattr(cache, "layers"):
        found = (
            (x, getattr(x, "keys", None), getattr(x, "values", None)) for x in list(cache.layers)
        )
    elif hasattr(cache, "key_cache"):
        found = ((None, k, v) for k, v in zip(cache.key_cache, cache.value_cache, strict=True))
    elif isinstance(cache, (tuple, list)):
        found = ((None, x[0], x[1]) for x in cache)
    else:
        return [], f"a cache of type {type(cache).__name__} is not known"
    pairs = list(found)
    if not pairs:
        return [], "the cache holds no layer yet"
    packed = [i for i, (x, _, _) in enumerate(pairs) if hasattr(x, "_quantized_keys")]
    if packed:
        return [], f"{len(packed)} layers are held packed (quantised), their bytes are not readable"
    empty = [i for i, (_, k, v) in enumerate(pairs) if not (_tensor(k) and _tensor(v))]
    if empty:
        kept = [p for i, p in enumerate(pairs) if i not in set(empty)]
        return kept, f"layers {_some(empty)} hold no keys and values"
    return pairs, None


def _layer(index: int, layer: Any, keys: Any, values: Any) -> LayerReading:
    capacity = int(keys.shape[-2])
    length = capacity
    if hasattr(layer, "get_seq_length"):
        length = int(layer.get_seq_length())
    size = sum(int(t.numel()) * int(t.element_size()) for t in (keys, values))
    return LayerReading(index, length, capacity, size)


def _element_size(pairs: list[tuple[Any, Any, Any]]) -> float | None:
    sizes = {int(t.element_size()) for _, k, v in pairs for t in (k, v)}
    return float(sizes.pop()) if len(sizes) == 1 else None


def _tensor(value: Any) -> bool:
    return hasattr(value, "element_size") and len(getattr(value, "shape", ())) >= 2


def _some(indices: list[int]) -> str:
    shown = ", ".join(str(i) for i in indices[:5])
    return shown if len(indices) <= 5 else f"{shown} and {len(indices) - 5} more"
