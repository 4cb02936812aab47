"""What was found, for a reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from truth import search
from truth.search import Step


def ms(value: float | None) -> str:
    """A time for a table."""
    return "–" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def table(results: Mapping[str, Mapping[str, Any]], streams: Sequence[int]) -> None:
    """Part 1, for a reader."""
    print(
        "\n|error| in ms, P50 / P99; 'read': the reported percentile minus the true one, worst run"
    )
    print(
        f"{'streams':>7} {'client':17} {'TTFT':>15} {'each gap':>15} {'TTFT P50 read':>13} "
        f"{'TTFT P95 read':>13} {'ITL P95 read':>12} {'CPU s/1000':>10} {'merged':>7} {'lost':>4}"
    )
    for n in streams:
        for name, by_streams in results.items():
            row = by_streams[str(n)]
            if not row["runs"]:
                print(f"{n:7} {name:17} no result: {'; '.join(row['failed'])}")
                continue
            gap = row["gap_error"]
            gaps = f"{ms(gap['p50'])} / {ms(gap['p99'])}" if gap["n"] else "not reported"
            ttft = f"{ms(row['ttft_error']['p50'])} / {ms(row['ttft_error']['p99'])}"
            cpu, merged = row["cpu_s_per_1000_events"], row["merged"]
            reads = [row[f"reported_{f}_minus_truth"] for f in ("ttft_p50", "ttft_p95", "itl_p95")]
            print(
                f"{n:7} {name:17} {ttft:>15} {gaps:>15} {ms(reads[0]):>13} {ms(reads[1]):>13} "
                f"{ms(reads[2]):>12} {'–' if cpu is None else format(cpu, '.3f'):>10} "
                f"{'–' if merged is None else merged:>7} {row['lost'] + row['miscounted']:>4}"
            )


def rate_table(found: Mapping[str, Sequence[Step]]) -> dict[str, Step | None]:
    """Part 2, for a reader; the best step of each client."""
    print(
        "\nhighest rate, token events/s, 64 streams, the client with all its processes on one core:"
        "\n|error| of gaps P95 ≤ 1 ms and ≤ half a gap; in brackets at the end: ≤ 1 ms alone, "
        "which\na client that merges tokens keeps as well where gaps are short"
    )
    best = {name: search.highest(steps) for name, steps in found.items()}
    for name, step in best.items():
        if step is None:
            print(f"  {name:17}     none: {search.why(found[name])}")
            continue
        cpu = "" if step.cpu_ms_per_event is None else f", CPU {step.cpu_ms_per_event:.3f} s/1000"
        above = [s for s in found[name] if s.offered > step.offered]
        why = search.why(above)
        in_time = search.highest_in_time(found[name])
        parsed = "" if in_time is None else f"; parsed in time up to {in_time:.0f}"
        alone = search.within_goal(found[name])
        by_goal = "" if alone is None else f" [{alone.rate:.0f}, P95 {ms(alone.error_p95_ms)} ms]"
        print(
            f"  {name:17} {step.rate:8.0f}  (P95 {ms(step.error_p95_ms)} ms{cpu}){parsed}; "
            f"{why}{by_goal}"
        )
    return best
