"""Starts the truth server and speaks with it."""

from __future__ import annotations

import json
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any

from truth.schedule import Plan


class TruthServer:
    """A truth server in a process of its own, on ``core`` alone if given.

    ``resting``: it sleeps between tokens and keeps no records, for runs of hours where the exact
    moments do not matter.
    """

    def __init__(self, core: int | None = None, *, resting: bool = False) -> None:
        command = [sys.executable, "-m", "truth.server", "--until-eof"]
        if resting:
            command.append("--resting")
        if core is not None:
            command += ["--core", str(core)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[1],
        )
        assert self._process.stdout is not None
        self.port: int = json.loads(self._process.stdout.readline())["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            reply = connection.getresponse()
            said = json.loads(reply.read())
        finally:
            connection.close()
        if reply.status != 200:
            raise RuntimeError(f"the truth server: {said['error']['message']}")
        return said

    def plan(self, plan: Plan) -> None:
        """From now on answer like this; records of before are gone."""
        self._ask("POST", "/truth/plan", plan.as_json())

    def records(self) -> list[dict[str, Any]]:
        """One object a request since the last plan."""
        found: list[dict[str, Any]] = self._ask("GET", "/truth/records")["requests"]
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> TruthServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
