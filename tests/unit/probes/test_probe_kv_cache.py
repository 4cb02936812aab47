"""The size of a KV cache follows the formula, and what the object holds is shown beside it."""

from __future__ import annotations

import inspect
import json
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llmsla.probes.kv_cache import KvGeometry, expected_bytes, geometry_of, report

LLAMA_7B = KvGeometry(layers=32, kv_heads=32, head_dim=128)


def test_published_example() -> None:
    """LLaMA-2-7B, 1024 tokens in 16 bits: 512 MiB."""
    assert expected_bytes(LLAMA_7B, 1024, bytes_per_element=2) == 512 * (1 << 20)


def test_grouped_heads_count_once() -> None:
    """Eight key/value heads for 32 attention heads need a quarter of the memory."""
    config = SimpleNamespace(
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, hidden_size=4096
    )
    geometry = geometry_of(config)
    assert geometry == KvGeometry(32, 8, 128)
    assert geometry.bytes_per_token(2) * 4 == LLAMA_7B.bytes_per_token(2)


@pytest.mark.parametrize(
    "config",
    [
        SimpleNamespace(),
        SimpleNamespace(num_hidden_layers=2, num_attention_heads=None, hidden_size=64),
        SimpleNamespace(num_hidden_layers=0, num_attention_heads=4, hidden_size=64),
    ],
)
def test_config_without_its_shape_gives_no_number(config: Any) -> None:
    """A config that does not state its layers and heads yields None and a reason."""
    assert geometry_of(config) is None
    out = report(None, config, tokens=4)
    assert out.expected_bytes is None
    assert out.reason is not None


class StubTensor:
    """Shape and element size are all that is read of a tensor."""

    def __init__(self, *shape: int, size: int = 2) -> None:
        self.shape = shape
        self._size = size

    def numel(self) -> int:
        out = 1
        for n in self.shape:
            out *= n
        return out

    def element_size(self) -> int:
        return self._size


CONFIG = SimpleNamespace(num_hidden_layers=2, num_attention_heads=4, hidden_size=64)


def layered(*lengths: int, capacity: int | None = None) -> Any:
    def layer(n: int) -> Any:
        t = StubTensor(1, 4, capacity or n, 16)
        return SimpleNamespace(keys=t, values=t, get_seq_length=lambda: n)

    return SimpleNamespace(layers=[layer(n) for n in lengths])


@pytest.mark.parametrize(
    "cache",
    [
        layered(10, 10),
        ((StubTensor(1, 4, 10, 16),) * 2,) * 2,
        SimpleNamespace(
            key_cache=[StubTensor(1, 4, 10, 16)] * 2, value_cache=[StubTensor(1, 4, 10, 16)] * 2
        ),
        SimpleNamespace(self_attention_cache=layered(10, 10)),
    ],
    ids=["layers", "tuple", "lists", "encoder-decoder"],
)
def test_every_kind_of_cache_is_measured(cache: Any) -> None:
    """Measured equals expected for each kind of cache object."""
    out = report(cache, CONFIG, tokens=10)
    assert out.measured_bytes == out.expected_bytes == 2 * 2 * 4 * 16 * 10 * 2
    assert out.wrong_lengths == ()
    assert out.reason is None
    json.dumps(out.to_json(), allow_nan=False)


def test_cache_allocated_ahead_shows_both_sizes() -> None:
    """A static cache holds its capacity; the tokens seen need less."""
    out = report(layered(10, 10, capacity=40), CONFIG, tokens=10)
    assert out.expected_capacity_bytes == out.measured_bytes
    assert out.expected_bytes == out.expected_capacity_bytes / 4


def test_a_layer_of_another_length_is_named() -> None:
    """One layer that is longer than the tokens seen is pointed out by its index."""
    out = report(layered(10, 20), CONFIG, tokens=10)
    assert out.wrong_lengths == (1,)
    assert [x.length for x in out.layers] == [10, 20]


@pytest.mark.parametrize(
    ("cache", "reason"),
    [
        (None, "use_cache is off"),
        (object(), "type object is not known"),
        ((), "no layer"),
        (SimpleNamespace(layers=[SimpleNamespace(keys=None, values=None)]), "layers 0 hold no"),
        (SimpleNamespace(layers=[SimpleNamespace(_quantized_keys=1)]), "packed"),
    ],
)
def test_what_cannot_be_measured_is_none(cache: Any, reason: str) -> None:
    """No cache, an unknown one, an empty or packed one: no bytes, and why."""
    out = report(cache, CONFIG, tokens=10)
    assert out.measured_bytes is None
    assert out.reason is not None
    assert reason in out.reason


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_real_caches_of_transformers(kind: str) -> None:
    """A real tiny LLaMA's cache holds exactly what the formula says."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        vocab_size=50,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    cache = (
        transformers.DynamicCache()
        if kind == "dynamic"
        else transformers.StaticCache(config=config, max_cache_len=32)
    )
    # transformers renames the argument in 5.2x
    names = inspect.signature(model.forward).parameters
    given = {"cache" if "cache" in names else "past_key_values": cache}
    with torch.no_grad():
        model(torch.ones((1, 9), dtype=torch.long), use_cache=True, **given)
    out = report(cache, config, tokens=9)
    assert out.wrong_lengths == ()
    assert out.bytes_per_element == 4
    assert out.measured_bytes == out.expected_capacity_bytes
    assert out.expected_bytes == expected_bytes(KvGeometry(2, 2, 16), 9, bytes_per_element=4)
