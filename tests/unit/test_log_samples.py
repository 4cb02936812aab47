"""Resources over time in the log: whole rows, or the file is refused."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gate_samples import write_log
from pytest_llmsla.errors import UsageError
from pytest_llmsla.log import SCHEMA, read_run

RUN = {"type": "run", "schema": SCHEMA}


def sample(columns: object, **more: Any) -> dict[str, Any]:
    """A line of samples."""
    return {
        "type": "resources",
        "gate": None,
        "bucket": None,
        "purpose": None,
        "phase": "sample",
        "t_ns": 5,
        "memory": {},
        "columns": columns,
        **more,
    }


def test_samples_are_read_back(tmp_path: Path) -> None:
    """Numbers and nulls, with the reasons for the nulls; a line without a clock has the first."""
    line = sample(
        {"t_ns": [1, 2], "process_cpu": [1.5, None]}, reasons={"process_cpu": "no permission"}
    )
    path = tmp_path / "timelines.jsonl"
    write_log(path, [RUN, line])
    assert read_run(path).resources == [{"segment": 0, **line}]


RESUME = {"type": "resume", "utc": None, "from": "a", "sha256": "0", "requests": 3, "in_flight": 1}


def test_they_keep_the_published_shape() -> None:
    """Samples and the place where another process went on are lines of the schema."""
    text = files("pytest_llmsla").joinpath("schemas/timelines.schema.json").read_text("utf-8")
    validator = Draft202012Validator(json.loads(text))
    server = {"type": "server", "gate": None, "server": {"requests": 4}}
    for line in (sample({"t_ns": [1], "a": [None]}, segment=1, reasons={"a": "b"}), RESUME, server):
        validator.validate(line)
    assert not validator.is_valid(sample({"t_ns": [1], "a": ["x"]}))
    assert not validator.is_valid({**RESUME, "sha256": None})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"t_ns": [1, 2], "a": [1.0]}, "columns.a has 1 values for 2 times"),
        ({"t_ns": [1], "a": ["high"]}, "columns.a holds 'high'"),
        ({"t_ns": [1], "a": [True]}, "columns.a holds True"),
        ({"t_ns": [1], "a": 3}, "valid: a list"),
        ({"t_ns": [None]}, "columns.t_ns is None"),
        ({"t_ns": [1.5]}, "columns.t_ns is 1.5"),
        ({"a": [1]}, "t_ns"),
        ([1], "columns is"),
        (None, "t_ns"),
    ],
)
def test_rows_that_are_not_whole_are_refused(tmp_path: Path, columns: object, words: str) -> None:
    """A series that cannot be laid along its times cannot be evidence of anything."""
    path = tmp_path / "timelines.jsonl"
    write_log(path, [RUN, sample(columns)])
    with pytest.raises(UsageError, match=r"timelines\.jsonl:2: ") as e:
        read_run(path)
    assert words in str(e.value)
