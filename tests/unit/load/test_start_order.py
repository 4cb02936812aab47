"""What ended is judged in the order it was started in."""

from __future__ import annotations

from pytest_llmsla.load.start_order import StartOrder
from pytest_llmsla.timeline import Timeline


def ended(name: str) -> Timeline:
    return Timeline(id=name, bucket="short", start_ns=0, end_ns=1)


def test_what_ended_early_waits_for_those_before_it() -> None:
    """The second and third end first, and come out after the first."""
    order = StartOrder()
    for name in "abc":
        order.started(name)
    order.ended(ended("c"))
    order.ended(ended("b"))
    assert list(order.ready()) == []
    order.ended(ended("a"))
    assert [t.id for t in order.ready()] == ["a", "b", "c"]
    assert list(order.rest()) == []


def test_what_was_lost_does_not_hold_the_others_back_for_ever() -> None:
    """At the end: all that ended, without the one that never did."""
    order = StartOrder()
    for name in "abc":
        order.started(name)
    order.ended(ended("c"))
    order.ended(ended("b"))
    assert [t.id for t in order.rest()] == ["b", "c"]
    assert list(order.ready()) == []
