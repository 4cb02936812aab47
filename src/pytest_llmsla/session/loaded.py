"""The loaded targets of a run."""

from __future__ import annotations

import json
from collections.abc import Callable

from .. import targets
from ..asker import say as in_words
from ..errors import LlmslaError, TargetError
from ..policy import LoadedPolicy
from ..targets import entry
from ..targets.base import Target


class LoadedTargets:
    """One per target mapping and process; what could not be loaded is not tried again.

    ``say`` hears what takes time.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._found: dict[str, Target | LlmslaError] = {}

    def of(self, loaded: LoadedPolicy) -> Target:
        """The loaded target of a policy.

        Raises:
            UsageError, TargetError: it cannot be loaded; every later call raises the same.
        """
        spec = loaded.target_spec()
        key = json.dumps(spec, sort_keys=True)
        found = self._found.get(key)
        if found is None:
            if spec.get("base_url") is None:
                named = (spec.get(key) for key in ("model", "entry", "kind"))
                self._say(f"loading {next(filter(None, named))} …")
            if spec.get("entry"):
                entry.make_importable(loaded.base)
            try:
                found = targets.load(spec, say=self._say)
            except LlmslaError as e:
                found = e
            except Exception as e:  # a loader may raise anything; every limit must hear of it
                found = TargetError(f"loading the target raised {in_words(e)}")
            self._found[key] = found
        if isinstance(found, LlmslaError):
            raise found.with_traceback(None)  # else each test adds its frames to those before
        return found

    def retire(self, target: Target, reason: str) -> None:
        """Never use a target again: a generation that does not stop still runs in it."""
        for key, found in self._found.items():
            if found is target:
                self._found[key] = TargetError(reason)

    def close(self) -> None:
        """Close all of them. Idempotent."""
        for target in self._found.values():
            if not isinstance(target, LlmslaError):
                try:
                    target.close()
                except Exception as e:  # what was measured stands; there is nothing left to lose
                    self._say(f"closing the target raised {in_words(e)}")
        self._found.clear()
