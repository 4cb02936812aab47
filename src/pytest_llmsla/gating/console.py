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
        self._quiet = config.getoption("verbose", 0) <= _QUIETEST
        self._shown = 0

    @property
    def _reporter(self) -> Any:
        if hasattr(self._config, "workerinput"):
            return None  # an xdist worker's reporter writes where nobody reads
        return self._config.pluginmanager.getplugin("terminalreporter")

    @property
    def live(self) -> bool:
        """True where lines can be rewritten."""
        reporter = self._reporter
        return bool(
            reporter is not None
            and getattr(reporter, "isatty", False)
            and getattr(reporter, "hasmarkup", False)
            and self._config.getoption("capture", "no")
            != "no"  # -s: the model's own prints would interleave
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
        from rich.cells import chop_cells  # a wrapped line could not be drawn over

        width = max(self._width() - 1, 20)
        up = f"\x1b[{self._shown}A" if self._shown else ""
        fitting = [(chop_cells(line, width) or [""])[0] for line in lines]
        self._write(up + "".join(f"\x1b[2K{line}\n" for line in fitting))
        self._shown = len(lines)

    def settle(self) -> None:
        """Let what is shown stay; the next lines go below."""
        self._shown = 0

    def _width(self) -> int:
        reporter = self._reporter
        tw = getattr(reporter, "_tw", None)
        return int(getattr(tw, "fullwidth", 80))

    def _write(self, text: str) -> None:
        from ..reports.escape import fit

        reporter = self._reporter
        with self._uncaptured():
            if reporter is not None:
                if not self._shown:
                    reporter.ensure_newline()
                out = getattr(getattr(reporter, "_tw", None), "_file", sys.stdout)
                reporter.write(fit(text, getattr(out, "encoding", None)), flush=True)
            elif sys.__stderr__ is not None:
                with contextlib.suppress(OSError, ValueError):  # a closed stderr
                    sys.__stderr__.write(fit(text, sys.__stderr__.encoding))
                    sys.__stderr__.flush()

    @contextlib.contextmanager
    def _uncaptured(self) -> Iterator[None]:
        capture = self._config.pluginmanager.getplugin("capturemanager")
        if capture is None:
            yield
            return
        with capture.global_and_fixture_disabled():
            yield
