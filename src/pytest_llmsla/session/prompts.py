"""The prompts of a run: no two are alike, whatever gate asks."""

from __future__ import annotations

import json
import secrets

from ..gate import OwnPrompts
from ..policy import LoadedPolicy
from ..targets.base import Target
from ..workload import PromptFactory


class RunPrompts:
    """Where all gates of one run take their prompts from; ``part``: of a resumed run, from 1."""

    def __init__(self, part: int = 1) -> None:
        self._part = part
        self._factories: dict[str, PromptFactory] = {}
        self._own: dict[str, OwnPrompts] = {}

    def factory(self, loaded: LoadedPolicy, target: Target) -> PromptFactory:
        """One per target and prompt source, so that no prompt repeats in a run."""
        work = loaded.policy.workload
        # Not keyed by the seed: two gates on one target must not send the same prompts.
        key = json.dumps(
            [loaded.target_spec(), work.prompts, str(loaded.base), work.system_prompt],
            sort_keys=True,
        )
        if key not in self._factories:
            self._factories[key] = prompts_for(loaded, target, self._part)
        return self._factories[key]

    def own(self, loaded: LoadedPolicy) -> OwnPrompts:
        """What tests ask themselves: one per target, whatever test asks."""
        key = json.dumps(loaded.target_spec(), sort_keys=True)
        return self._own.setdefault(key, OwnPrompts())

    @property
    def notes(self) -> list[str]:
        """What the report says of the prompts, each once."""
        return sorted({note for f in self._factories.values() for note in f.notes})


def prompts_for(loaded: LoadedPolicy, target: Target, part: int = 1) -> PromptFactory:
    """The prompts of a policy, counted by a target; another ``part`` of a run gets others.

    A target over HTTP has ``lengths``: how exact its counts are, and how to plan with few of them.
    Its server outlives the run, and with it what it remembers of prompts: they are new every time.
    """
    work, lengths = loaded.policy.workload, getattr(target, "lengths", None)
    seed, salted, notes = work.seed, False, list[str]()
    if part > 1:
        seed, salted = part << 64 | work.seed, True
    if lengths is not None and not work.warm_cache:
        if work.prompts == "builtin":
            own = secrets.randbits(32)
            seed, salted = own << 64 | work.seed, True
            notes.append(
                f"prompts are new in every run, because a server may remember those of an earlier "
                f"one: to seed {work.seed} came {own}"
            )
        else:
            notes.append(
                "prompts come from files and are the same in every run: a server that remembers "
                "them from an earlier one (prefix cache) answers sooner, and only some say so "
                "(cached_tokens). Restart it before a gate, or give new prompts"
            )
    return PromptFactory(
        target.count,
        target.encode,
        seed=seed,
        salted=salted,
        notes=notes,
        source=work.prompts,
        system=work.system_prompt,
        warm_cache=work.warm_cache,
        base=loaded.base,
        margin=0.0 if lengths is None else lengths.margin,
        languages=None if lengths is None else lengths.languages,
        size=lengths.size if lengths is not None and lengths.remote else None,
    )
