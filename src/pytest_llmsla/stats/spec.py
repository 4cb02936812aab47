"""What a gate tests and how sure it must be, checked before the first request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import UsageError
from .samples import allowed_share, exact_level


@dataclass(frozen=True)
class GateSpec:
    """One limit on one percentile.

    Raises :class:`UsageError` for a value outside what the field says.
    """

    quantile: float = 0.95
    """Share of samples that must keep the limit, in (0, 1)."""
    limit: float = 300.0
    """Finite, above 0, in the unit of the samples."""
    max_samples: int = 1
    """M: the most samples one request can give (TTFT 1, ITL max_new_tokens − 1)."""
    alpha_pass: float = 0.05
    """Most probability of ever passing a service that breaks the limit, in (0, 1)."""
    alpha_fail: float = 0.01
    """Most probability of ever failing one that keeps it, in (0, 1)."""
    min_fail: int = 5
    """Units before a FAIL, at least 1."""
    guard: bool = True
    """Whether noise that drifts costs evidence."""

    def __post_init__(self) -> None:
        check_quantile(self.quantile)
        check_share("alpha_pass", self.alpha_pass, "0.05 is the preset normal")
        check_share("alpha_fail", self.alpha_fail, "0.01 is the default")
        if not (_is_number(self.limit) and math.isfinite(self.limit) and self.limit > 0):
            raise UsageError(
                f"limit: got {self.limit!r}; valid is a finite number above 0; "
                "write the limit in the unit of the samples"
            )
        _check_count("max_samples", self.max_samples, "give the most samples one request can have")
        _check_count("min_fail", self.min_fail, "5 is the default")

    @property
    def p0(self) -> float:
        """Share of samples allowed over the limit: 1 − quantile."""
        return allowed_share(self.quantile)

    @property
    def need_pass(self) -> float:
        """ln(1/α_pass): the evidence a PASS takes."""
        return -math.log(self.alpha_pass)

    @property
    def need_fail(self) -> float:
        """ln(1/α_fail): the evidence a FAIL takes."""
        return -math.log(self.alpha_fail)


def check_share(name: str, value: float, hint: str) -> None:
    """Raise :class:`UsageError` unless ``value`` is a number strictly between 0 and 1."""
    if not (_is_number(value) and 0 < value < 1):
        raise UsageError(
            f"{name}: got {value!r}; valid is a number between 0 and 1, both excluded; {hint}"
        )


def check_quantile(value: float) -> None:
    """Raise :class:`UsageError` unless a percentile lies between 0 and 1, as a fraction too."""
    check_share("quantile", value, "write P95 as 0.95")
    if not 0 < exact_level(value) < 1:
        raise UsageError(
            f"quantile: got {value!r}; valid is at least 1e-9 from 0 and from 1; "
            "no number of requests could tell it apart from the largest sample"
        )


def _check_count(name: str, value: int, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name}: got {value!r}; valid is a whole number from 1; {hint}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
