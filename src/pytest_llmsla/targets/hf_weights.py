"""The weights in memory: dtypes, bytes, devices, quantised layers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..errors import TargetError

QUANTISED_LAYERS = ("Linear4bit", "Linear8bitLt")


@dataclass(frozen=True, slots=True)
class Weights:
    """What the parameters and buffers of a model are, each storage counted once."""

    parameters: int
    """Trained numbers: packed 4-bit weights count as unpacked, tied ones once, no buffers."""
    bytes_by_dtype: dict[str, int]
    """Bytes by dtype, largest first; quantised weights under their own name (nf4, fp4, int8)."""
    scale_bytes: int
    """Bytes of quantisation scales, beside ``bytes_by_dtype``."""
    devices: tuple[str, ...]
    quantised_layers: dict[str, int]
    """Number of layers by class name."""
    compute_dtypes: tuple[str, ...]
    """Dtypes that 4-bit layers multiply in."""
    expanded: bool
    """The weights came from a quantised file and were expanded while loading."""

    @property
    def total_bytes(self) -> int:
        """All bytes: weights and scales."""
        return sum(self.bytes_by_dtype.values()) + self.scale_bytes


def weigh(model: Any, *, expanded: bool) -> Weights:
    """Go through all parameters and buffers of ``model``.

    Raises:
        TargetError: a parameter has no memory (meta device): the model does not fit, or its
            checkpoint is not whole.
    """
    sizes: Counter[str] = Counter()
    devices: Counter[str] = Counter()
    numbers = scales = 0
    seen: set[tuple[int, int, str]] = set()
    trained = list(model.named_parameters())
    for i, (name, tensor) in enumerate([*trained, *model.named_buffers()]):
        if tensor.device.type == "meta":
            raise TargetError(
                f"the weight {name} is on no device (meta): the model does not fit on "
                "target.device, or its checkpoint is not whole. Use a larger device, a smaller "
                "dtype or quantization: nf4."
            )
        # Tied weights may be one object or two views of one memory.
        key = (tensor.data_ptr(), tensor.numel(), str(tensor.dtype))
        if key in seen and tensor.numel():
            continue
        seen.add(key)
        size = tensor.numel() * tensor.element_size()
        sizes[_dtype_name(tensor)] += size
        devices[str(tensor.device)] += size
        numbers += _unpacked(tensor) if i < len(trained) else 0
        scales += _scale_bytes(tensor)
    layers = Counter(type(m).__name__ for m in model.modules())
    computes = {
        _short(getattr(m, "compute_dtype", None))
        for m in model.modules()
        if type(m).__name__ == "Linear4bit"
    }
    return Weights(
        parameters=numbers,
        bytes_by_dtype=dict(sizes.most_common()),
        scale_bytes=scales,
        devices=tuple(d for d, _ in devices.most_common()),
        quantised_layers={n: layers[n] for n in QUANTISED_LAYERS if layers[n]},
        compute_dtypes=tuple(sorted(computes)),
        expanded=expanded,
    )


def _dtype_name(tensor: Any) -> str:
    kind = type(tensor).__name__
    if kind == "Params4bit":
        return str(tensor.quant_type)
    return _short(tensor.dtype)


def _unpacked(tensor: Any) -> int:
    state = getattr(tensor, "quant_state", None)
    if state is None:
        return int(tensor.numel())
    count = 1
    for n in state.shape:
        count *= int(n)
    return count


def _scale_bytes(tensor: Any) -> int:
    """Bytes that bitsandbytes keeps beside a weight: block scales, scales of those, row scales."""
    held: list[Any] = [getattr(tensor, "SCB", None)]
    state = getattr(tensor, "quant_state", None)
    while state is not None:
        held += [state.absmax, state.offset, state.code]
        state = state.state2
    return sum(int(t.numel() * t.element_size()) for t in held if hasattr(t, "element_size"))


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
