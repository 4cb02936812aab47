"""Sums of a server's Prometheus counters, read without any code of the package."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families


def totals(text: str, names: Iterable[str]) -> dict[str, float]:
    """The sum over all labels of each sample that is named.

    Raises:
        AssertionError: a name is not there, so that a renamed metric is noticed.
    """
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    missing = [name for name in names if name not in found]
    assert not missing, f"no {missing} among {sorted(found)}"
    return {name: found[name] for name in names}
