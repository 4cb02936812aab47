"""Requests sent from the machines of a Ray cluster; the schedule and the judging stay here.

Ray is loaded only when a policy names it (``workload.load.workers``).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..errors import InternalError, TargetError, UsageError
from ..targets.base import Ask, Crew, Job, Target, Timeouts
from ..targets.recording import never_sent, say
from ..timeline import NS_PER_S, Timeline
from .blocks import unpack
from .clocks import Alignment, Reading
from .ray_worker import Worker, clock_of, seconds_until

if TYPE_CHECKING:
    import types

_LEAD_NS = 200_000_000
"""How long before it is due a request is handed over: the way to a worker takes time."""
_FIRST_READINGS = 32
_READ_AGAIN_NS = NS_PER_S
_POLL_S = 5.0
_SILENT_S = 30.0
"""A worker says something every ``_POLL_S``. One that is this much later is lost: a cluster may
take minutes to find out that a machine is gone, or never do, and nobody would end the run."""
_START_S = 120.0
_LOOK_S = 1.0


@dataclass
class _Worker:
    """One worker as the head sees it."""

    number: int
    actor: Any
    facts: Mapping[str, Any]
    alignment: Alignment
    pending: Any = None
    """The ``take`` that is under way, since ``asked_at``."""
    asked_at: int = 0
    handed: list[Any] = field(default_factory=list)
    """The ``submit`` calls that are not known to have arrived."""
    jobs: dict[str, Timeline] = field(default_factory=dict)
    read_at: int = 0
    sent: int = 0

    @property
    def name(self) -> str:
        return f"worker {self.number} on {self.facts['host']}"


class RayCrew:
    """Keeps up to ``size`` requests on their way, spread over the workers of a cluster.

    A worker that is lost takes its requests with it: they are errors, and the run goes on with
    the others.

    Args:
        target: a running server, as loaded here; workers ask the same one.
        spec: the ``target`` mapping it was loaded from.
        size: requests in flight at most, over all workers.
        timeouts: of each request.
        address: ``ray`` (the cluster this machine belongs to, else one of its own) or
            ``ray://host:port``.
        workers: how many; None: one a machine, on a single machine one a core.

    Raises:
        UsageError: Ray is not installed, or the target is no server.
        TargetError: the cluster cannot be reached, or a worker cannot be started.
    """

    mode = "ray"
    lead_ns = _LEAD_NS

    def __init__(
        self,
        target: Target,
        spec: Mapping[str, Any],
        size: int,
        timeouts: Timeouts,
        *,
        address: str = "ray",
        workers: int | None = None,
    ) -> None:
        from ..targets.http.elsewhere import learnt
        from ..targets.http.target import HttpTarget

        if not isinstance(target, HttpTarget):
            raise UsageError(
                f"workload.load.workers: {address} sends requests from several machines to one "
                f"running server; the target is {target.kind}, in this process. Use workers: "
                "local, or gate a server"
            )
        self.size = size
        self._clock = target.clock
        self._ray = ray = _ray()
        self._started = False
        self._out: list[Timeline] = []
        self._workers: list[_Worker] = []
        self._home: Crew = target.crew(1, timeouts)  # renders prompts where a server must do it
        try:
            self._started = _connect(ray, address)
            args = (dict(spec), learnt(target), size, timeouts)
            self._workers, self._lost = _start(ray, workers, args)
            for worker in list(self._workers):
                if why := self._read_clock(worker, _FIRST_READINGS):
                    self._lose(worker, why)
        except BaseException:
            self.close()
            raise
        self._all = tuple(self._workers)

    @property
    def in_flight(self) -> int:
        """Requests handed over and not yet returned."""
        return sum(len(w.jobs) for w in self._workers) + len(self._out)

    @property
    def hung(self) -> str | None:
        """Every worker was lost."""
        if self._workers:
            return None
        return "every worker of the cluster was lost: " + "; ".join(self._lost)

    def facts(self) -> dict[str, Any]:
        """The workers, and how well their clocks are known."""
        return {
            "workers": [
                {
                    "host": w.facts["host"],
                    "pid": w.facts["pid"],
                    "requests": w.sent,
                    "same_clock": w.alignment.same,
                    "clock_bound_ms": w.alignment.worst_bound_ns / 1e6,
                }
                for w in self._all
            ],
            "lost": list(self._lost),
        }

    def prepare(self, ask: Ask) -> Ask:
        """As the server's own crew has it."""
        return self._home.prepare(ask)

    def start(self, job: Job) -> None:
        """Hand a request to the worker that has the fewest."""
        if self.in_flight >= self.size:
            raise InternalError(f"{self.size} requests are in flight already")
        if not self._workers:
            self._fail([job.blank], self.hung or "")
            return
        worker = min(self._workers, key=lambda w: len(w.jobs))
        blank, due = job.blank, job.blank.scheduled_ns
        worker.jobs[blank.id] = blank
        worker.sent += 1
        there = None if due is None else worker.alignment.theirs(due)
        # Texts and the schedule stay here: neither is needed to send a request.
        given = (job.ask, replace(blank, prompt=None, scheduled_ns=None), there)
        worker.handed.append(worker.actor.submit.remote([given]))

    def wait(self, until_ns: int | None = None) -> list[Timeline]:
        """Those that ended; see :class:`~pytest_llmsla.targets.base.Crew`."""
        while True:
            if self._out:
                out, self._out = self._out, []
                return out
            if until_ns is None and not self.in_flight:
                return []
            for worker in self._workers:
                if worker.pending is None:
                    worker.pending = worker.actor.take.remote(_POLL_S)
                    worker.asked_at = self._clock()
            left = _POLL_S if until_ns is None else min(_POLL_S, seconds_until(until_ns))
            waiting = {w.pending: w for w in self._workers}
            if not waiting:
                return []
            ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=left)
            for ref in ready:
                self._taken(waiting[ref], ref)
            self._lose_the_silent()
            if not ready and until_ns is not None and not seconds_until(until_ns):
                return []

    def _taken(self, worker: _Worker, ref: Any) -> None:
        worker.pending = None
        try:
            block = self._ray.get(ref, timeout=_SILENT_S)
        except self._ray.exceptions.RayError as e:
            self._lose(worker, _why(e))
            return
        now, why = self._clock(), self._refused(worker)
        if why is None and now - worker.read_at > _READ_AGAIN_NS:
            why = self._read_clock(worker, 1)
        # Whatever became of it: what it measured before is measured.
        for t in unpack(block, worker.alignment.shift_ns(now)):
            blank = worker.jobs.pop(t.id, None)
            if blank is not None:
                self._out.append(replace(t, scheduled_ns=blank.scheduled_ns, prompt=blank.prompt))
        if why is not None:
            self._lose(worker, why)

    def _refused(self, worker: _Worker) -> str | None:
        """Why a request that was handed over did not arrive; None where none is known to."""
        if not worker.handed:
            return None
        try:
            arrived, worker.handed = self._ray.wait(
                worker.handed, num_returns=len(worker.handed), timeout=0
            )
            self._ray.get(arrived, timeout=_SILENT_S)  # raises what one of them raised
        except self._ray.exceptions.RayError as e:
            return _why(e)
        return None

    def _lose_the_silent(self) -> None:
        latest = self._clock() - round((_POLL_S + _SILENT_S) * NS_PER_S)
        for worker in list(self._workers):
            if worker.pending is None or worker.asked_at >= latest:
                continue
            # It may have spoken long ago, while nobody listened here.
            if not self._ray.wait([worker.pending], timeout=0)[0]:
                self._lose(worker, f"it said nothing for {_POLL_S + _SILENT_S:.0f} s")

    def _read_clock(self, worker: _Worker, times: int) -> str | None:
        """Align its clock; why that was not possible, None where it was."""
        if worker.alignment.same:
            return None
        try:
            for _ in range(times):
                before = self._clock()
                there = self._ray.get(worker.actor.clock.remote(), timeout=_POLL_S)
                worker.alignment.add(Reading(before, there, self._clock()))
        except self._ray.exceptions.RayError as e:
            return _why(e)
        worker.read_at = self._clock()
        return None

    def _lose(self, worker: _Worker, why: str) -> None:
        """A worker is gone: what it had in flight are errors, and it sends nothing any more."""
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        with contextlib.suppress(Exception):  # its machine may be gone as well
            self._ray.kill(worker.actor)
        reason = f"{worker.name} was lost ({why})"
        self._lost.append(f"{reason}, with {len(worker.jobs)} requests in flight")
        self._fail(worker.jobs.values(), reason)
        worker.jobs.clear()

    def _fail(self, blanks: Any, reason: str) -> None:
        self._out += [never_sent(blank, self._clock, reason) for blank in blanks]

    def cancel(self) -> None:
        """End what is in flight as errors."""
        for worker in self._workers:
            worker.actor.cancel.remote()

    def close(self) -> None:
        """End the workers, and the cluster if it was started here. Idempotent."""
        self._home.close()
        workers, self._workers = self._workers, []
        for worker in workers:
            self._ray.kill(worker.actor)
        if self._started:
            self._started = False
            self._ray.shutdown()


def _why(e: Exception) -> str:
    """The kind of failure; where the worker itself raised, what it said (its last line)."""
    cause = getattr(e, "cause", None)
    return type(e).__name__ if cause is None else say(cause)


def _ray() -> types.ModuleType:
    try:
        import ray
    except ImportError as e:
        raise UsageError(
            "workload.load.workers asks for Ray, which is not installed: "
            "pip install 'pytest-llmsla[ray]', or use workers: local"
        ) from e
    found: types.ModuleType = ray
    return found


def _connect(ray: types.ModuleType, address: str) -> bool:
    """Join a cluster; True where this call began what has to be ended again."""
    if ray.is_initialized():
        return False
    where = address if address.startswith("ray://") else os.environ.get("RAY_ADDRESS")
    try:
        ray.init(
            address=where,
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False if where is None else None,
        )
    except Exception as e:  # Ray raises many kinds for a cluster that does not answer
        raise TargetError(
            f"the Ray cluster ({where or 'a local one'}) cannot be used: {say(e)}"
        ) from None
    return True


def _count(ray: types.ModuleType) -> int:
    """One worker a machine; on a single machine one a core, of at most four."""
    nodes = [n for n in ray.nodes() if n.get("Alive") and n.get("Resources", {}).get("CPU")]
    if len(nodes) > 1:
        return len(nodes)
    cores = nodes[0]["Resources"]["CPU"] if nodes else 1
    return max(1, min(4, int(cores)))


def _await(ray: types.ModuleType, told: Sequence[Any], most: Callable[[], int]) -> set[Any]:
    """Wait until all have said something; those that there is no machine for any more.

    A cluster lists a machine for some time after it died. What was meant for it then waits for one
    that will not come, and is given up when the others are as many as the machines left.
    """
    waiting = list(told)
    end = time.monotonic() + _START_S
    while waiting and time.monotonic() < end:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_LOOK_S)
        if waiting and len(told) - len(waiting) >= most():
            return set(waiting)
    return set()


def _start(
    ray: types.ModuleType, asked: int | None, args: Sequence[Any]
) -> tuple[list[_Worker], list[str]]:
    """Workers, spread over the machines, and those whose machine was gone before they began.

    Raises:
        TargetError: one of them, or all, cannot be started.
    """
    count = asked or _count(ray)
    actor = ray.remote(num_cpus=1, max_concurrency=4, scheduling_strategy="SPREAD")(Worker)
    actors = [actor.remote(*args) for _ in range(count)]
    told = [a.facts.remote() for a in actors]
    here, out, lost = clock_of(), list[_Worker](), list[str]()
    problem: str | None = None
    homeless = _await(ray, told, most=(lambda: count) if asked else (lambda: _count(ray)))
    for number, (one, ref) in enumerate(zip(actors, told, strict=True), 1):
        if ref in homeless:
            lost.append(f"worker {number} never began (the cluster has a machine less)")
            ray.kill(one)
            continue
        try:
            facts = ray.get(ref, timeout=0)
        except ray.exceptions.RayActorError as e:  # a node that a cluster still lists may be dead
            lost.append(f"worker {number} never began ({type(e).__name__})")
            continue
        except ray.exceptions.GetTimeoutError:
            problem = f"worker {number} did not begin within {_START_S:.0f} s"
            break
        except ray.exceptions.RayError as e:
            problem = say(e)
            break
        if facts["problem"]:
            problem = facts["problem"]
            break
        same = here is not None and facts["clock_of"] == here
        out.append(_Worker(number, one, facts, Alignment(same=same)))
    if problem is None and not out:
        problem = "; ".join(lost)
    if problem is not None:
        for one in actors:
            ray.kill(one)
        raise TargetError(
            f"a worker of the cluster could not be started: {problem}. Each of {count} workers "
            "needs a free CPU, this package, and the keys of the target in its environment"
        )
    return out, lost
