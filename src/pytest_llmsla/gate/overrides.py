"""What a test may ask otherwise than its policy says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError

OF_A_RUN = ("max_new_tokens", "sampling")
OF_A_REQUEST = (*OF_A_RUN, "system")


def check_overrides(overrides: Mapping[str, Any], valid: tuple[str, ...], most: int) -> None:
    """Check names and values; ``most`` tokens are what the policy judges.

    Raises:
        UsageError: an override that is not known, of another type, or more tokens than that.
    """
    for name in overrides:
        if name not in valid:
            raise UsageError(f"{name!r} cannot be overridden; valid: {', '.join(valid)}.")
    sampling = overrides.get("sampling")
    if not (sampling is None or isinstance(sampling, Mapping)):
        raise UsageError(f"sampling is {sampling!r:.80}; valid: a mapping, as in sla.yaml.")
    asked = overrides.get("max_new_tokens")
    if asked is not None and not (
        isinstance(asked, int) and not isinstance(asked, bool) and 1 <= asked <= most
    ):
        raise UsageError(
            f"max_new_tokens is {asked!r}; valid: a whole number from 1 to {most}, the number "
            "this gate's limits are judged for (set max_new_tokens in the mark or the policy)."
        )
