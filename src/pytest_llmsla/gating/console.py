"""Where progress goes: live lines on a terminal, plain lines elsewhere, past pytest's capture."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

_QUIETEST = -2


class Console:
    """Writes while a test runs. Does nothing under ``-qq``."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._quiet = config.get_verbosity() <= _QUIETEST
        self._shown = 0

    @property
    def _reporter(self) -> Any:
        return self._config.pluginmanager.getplugin("terminalreporter")

    @property
    def live(self) -> bool:
        """True where lines can be rewritten."""
        reporter = self._reporter
        return bool(
            reporter is not None
            and getattr(reporter, "isatty", False)
            and getattr(reporter, "hasmarkup", False)
            and self._config.option.capture != "no"  # -s: the model's own prints would interleave
        )

    def line(self, text: str) -> None:
        """Write one line that stays."""
        if not self._quiet:
            self._write(f"{text}\n")
            self._shown = 0

    def rewrite(self, lines: Sequence[str]) -> None:
        """Put ``lines`` in the place of those of the last call. Only where :attr:`live`."""
        if self._quiet:
            return
        width = max(self._width() - 1, 20)
        up = f"\x1b[{self._shown}A" if self._shown else ""
        self._write(up + "".join(f"\x1b[2K{line[:width]}\n" for line in lines))
        self._shown = len(lines)

    def settle(self) -> None:
        """Let what is shown stay; the next lines go below."""
        self._shown = 0

    def _width(self) -> int:
        reporter = self._reporter
        tw = getattr(reporter, "_tw", None)
        return int(getattr(tw, "fullwidth", 80))

    def _write(self, text: str) -> None:
        from .reports.escape import fit

        reporter = self._reporter
        with self._uncaptured():
            if reporter is None:  # -p no:terminal, or an xdist worker
                stream = sys.__stderr__
                if stream is not None:
                    with contextlib.suppress(OSError, ValueError):  # a closed stderr
                        stream.write(fit(text, stream.encoding))
                        stream.flush()
                return
            if not self._shown:
                reporter.ensure_newline()
            reporter.write(text, flush=True)

    @contextlib.contextmanager
    def _uncaptured(self) -> Iterator[None]:
        capture = self._config.pluginmanager.getplugin("capturemanager")
        if capture is None:
            yield
            return
        with capture.global_and_fixture_disabled():
            yield
