"""Prompts made ahead of their requests: making one takes time that belongs to no request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..asker import say
from ..errors import LlmslaError
from ..runner import BucketPlan, ask_of
from ..targets.base import Ask
from ..workload import Prompt

Ready = tuple[Prompt, Ask]


class Stock:
    """Prompts of one bucket, ready to be sent.

    ``prepare`` does what a request needs before its clock starts; ``problem`` hears why no
    further prompt can be made.
    """

    def __init__(
        self, plan: BucketPlan, prepare: Callable[[Ask], Ask], problem: Callable[[str, str], None]
    ) -> None:
        self.plan = plan
        self._prepare = prepare
        self._problem = problem
        self._ready: dict[bool, deque[Ready]] = {True: deque(), False: deque()}
        self._dry: dict[bool, str] = {}
        """By warm-up or not: why no further prompt can be made; told when one is missing."""

    def fill(self, *, warmups: int, measured: int) -> None:
        """Have at least so many of each, as long as they can be made."""
        for warmup, least in ((True, warmups), (False, measured)):
            ready = self._ready[warmup]
            while len(ready) < least and (made := self._make(warmup)) is not None:
                ready.append(made)

    def take(self, *, warmup: bool) -> Ready | None:
        """The next one; made now where none is ready, None where none can be made."""
        ready = self._ready[warmup]
        if ready:
            return ready.popleft()
        made = self._make(warmup)
        if made is None:
            self._problem(self.plan.bucket, self._dry[warmup])
        return made

    def _make(self, warmup: bool) -> Ready | None:
        if warmup in self._dry:
            return None
        plan = self.plan
        try:
            prompt = next(plan.warmup_prompts if warmup else plan.prompts)
            return prompt, self._prepare(ask_of(plan, prompt))
        except StopIteration:
            self._dry[warmup] = "no prompt is left"
        except LlmslaError as e:
            self._dry[warmup] = str(e)
        except Exception as e:  # a target counts the tokens of a prompt while it is made
            self._dry[warmup] = f"making a prompt raised {say(e)}"
        return None
