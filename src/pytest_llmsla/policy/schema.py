"""The JSON Schema of sla.yaml, for editors. The committed file is made by this module:

``python -m pytest_llmsla.policy.schema > src/pytest_llmsla/schemas/sla.schema.json``
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import VERSION

from .keys import VALID
from .models import Policy


def sla_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what :func:`policy.load_policy` accepts, rules across keys
    aside."""
    schema = Policy.model_json_schema(mode="validation")
    _tidy(schema)
    definitions = schema["$defs"]
    bucket = definitions["Bucket"]
    bucket["properties"].pop("prompt_min")  # resolved, never written in the file
    bucket["properties"]["ttft_ms"] = {
        "type": "number",
        "exclusiveMinimum": 0,
        "description": bucket["properties"]["ttft_ms"]["description"],
    }
    bucket["required"] = ["name", "ttft_ms"]
    definitions["TransformersTarget"]["required"] = ["model"]
    for kind in ("PythonTarget", "ScriptedTarget"):
        required = definitions[kind].setdefault("required", [])
        definitions[kind]["required"] = ["kind", *required]
    schema["required"] = ["version", "target", "buckets"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": f"Made by pytest_llmsla.policy.schema with pydantic {pydantic_version()}",
        "title": "sla.yaml (schema version 1)",
        **{k: v for k, v in schema.items() if k != "title"},
    }


def pydantic_version() -> str:
    """Major and minor version: the schema's wording differs between them."""
    return ".".join(VERSION.split(".")[:2])


def _tidy(node: Any) -> None:
    """Say what is valid in the description, drop generated titles."""
    if isinstance(node, list):
        for item in node:
            _tidy(item)
        return
    if not isinstance(node, dict):
        return
    valid = node.pop(VALID, None)
    if valid is not None:
        node["description"] = f"{node.get('description', '')} Valid: {valid}.".strip()
    if isinstance(node.get("title"), str):
        del node["title"]
    # A discriminator's mapping is OpenAPI; editors choose by the const of ``kind``.
    node.pop("discriminator", None)
    for child in node.values():
        _tidy(child)


def schema_text() -> str:
    """The file's content."""
    return json.dumps(sla_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
