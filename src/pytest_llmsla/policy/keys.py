"""What the models of sla.yaml are made of: a key with its words, and types that are strict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictStr

VALID = "x-valid"
"""Schema key that holds the words for "what is valid"; every message about a key quotes it."""


def key(default: Any, valid: str, about: str, **constraints: Any) -> Any:
    """A key of sla.yaml: its default, what is valid (for messages), what it means (for editors)."""
    return Field(default, description=about, json_schema_extra={VALID: valid}, **constraints)


def _integer_keys(value: object) -> object:
    """YAML and JSON hold the keys of ``{4: 150}`` as text; make them numbers again."""
    if not isinstance(value, Mapping):
        return value
    return {int(k) if isinstance(k, str) and k.isdecimal() else k: v for k, v in value.items()}


Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1)]
Index = Annotated[int, Field(strict=True, ge=0)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Text = Annotated[StrictStr, Field(min_length=1)]
Percentile = Annotated[float, Field(strict=True, ge=1, lt=100, allow_inf_nan=False)]
PerConcurrency = Annotated[dict[Count, Positive], BeforeValidator(_integer_keys)]

MS = "a number of milliseconds greater than 0"
MS_OR_NULL = f"{MS}, or null for no limit"
SECONDS = "a number of seconds greater than 0"
GIB_OR_NULL = "a number of GiB greater than 0, or null for no limit"
COUNT = "a whole number from 1"
CONCURRENCY = "a list of different whole numbers from 1, such as [1, 4]"
FLAG = "true or false"
TEXT = "text that is not empty"
TEXT_OR_NULL = "text that is not empty, or null"
MAPPING = "a mapping of keys"


class Keys(BaseModel):
    """Base of all groups of keys: frozen, nothing unknown."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True
    )


class Timeouts(Keys):
    """When a request is given up; it then counts as failed."""

    first_token_s: Positive = key(60.0, SECONDS, "Longest wait for the first token.")
    idle_s: Positive = key(30.0, SECONDS, "Longest silence between two tokens.")
    total_s: Positive = key(300.0, SECONDS, "Longest request.")
