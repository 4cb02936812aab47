"""What a target raises outside a generation, as an error that every limit hears of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..asker import say
from ..errors import LlmslaError, TargetError


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Turn what is raised while ``doing`` into a TargetError; this package's own errors stay."""
    try:
        yield
    except LlmslaError:
        raise
    except Exception as e:
        raise TargetError(f"{doing} raised {say(e)}") from e
