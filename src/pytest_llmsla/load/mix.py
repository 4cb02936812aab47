"""Which bucket the next request belongs to: interleaved by weight, the same in every run."""

from __future__ import annotations

from collections.abc import Mapping


class Mix:
    """Smooth weighted round-robin: every stretch of requests holds the weights' shares.

    Args:
        weights: share of each name, greater than 0; they need not sum to anything.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._credit = dict.fromkeys(weights, 0.0)

    @property
    def names(self) -> tuple[str, ...]:
        """Names that are still mixed in."""
        return tuple(self._weights)

    def next(self) -> str:
        """The next name.

        Raises:
            IndexError: none is left.
        """
        if not self._weights:
            raise IndexError("nothing is left to mix")
        total = sum(self._weights.values())
        for name, weight in self._weights.items():
            self._credit[name] += weight
        best = max(self._weights, key=lambda name: self._credit[name])
        self._credit[best] -= total
        return best

    def drop(self, name: str) -> None:
        """Leave a name out from now on."""
        self._weights.pop(name, None)
        self._credit.pop(name, None)
