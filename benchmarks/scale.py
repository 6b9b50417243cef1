"""Simulate `captioner batch` on a cluster whose machines fail: hours, failures, work done twice.

    python -m benchmarks.scale [--seconds-per-photo 0.05] [--machines-fail-every 20] ...

Workers take shards in order. A machine that fails takes its workers' shards with it; they are done
again, and after --replaced-after a new machine is there, which starts its workers anew. The run
itself may be killed; then it plans again, reads what is done, and all workers start anew. Means of
20 simulations. The defaults are the figures of docs/scale.md.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import sys
from typing import NamedTuple

SIMULATIONS = 20


class Result(NamedTuple):
    """Of a simulated collection."""

    hours: float
    failures: int
    restarts: int
    lost_worker_hours: float


def simulate(
    options: argparse.Namespace, photos: int, machines: int, shard_size: int, seed: int
) -> Result:
    """Return how a collection goes; the same seed gives the same failures. Times in seconds."""
    draw = random.Random(seed)
    todo = -(-photos // shard_size)
    shards = todo
    shard_s = shard_size * options.seconds_per_photo
    lost_s, failures, restarts = 0.0, 0, 0
    now = photos * options.plan
    while todo:
        # One life of the run: from its start to its end, or until it is killed.
        killed_at = now + draw.expovariate(1 / (3600 * options.run_killed_every))
        # Ends of shards and failures, by time. A machine's generation tells whether the worker
        # that would end a shard is still alive.
        generation = [0] * machines
        busy: list[dict[int, float]] = [{} for _ in range(machines)]
        events: list[tuple[float, str, int, int, int]] = []
        waiting = todo
        for machine in range(machines):
            failing = now + draw.expovariate(1 / (3600 * options.machines_fail_every))
            heapq.heappush(events, (failing, "fails", machine, 0, 0))
            for core in range(options.cores):
                heapq.heappush(events, (now + options.start, "free", machine, core, 0))
        while todo and events:
            at, event, machine, core, of = heapq.heappop(events)
            if at > killed_at:
                restarts += 1
                lost_s += sum(killed_at - begun for each in busy for begun in each.values())
                done = (shards - todo) * shard_size
                now = killed_at + photos * options.plan + done * options.verify
                break
            now = at
            if event == "fails":
                failures += 1
                lost_s += sum(now - begun for begun in busy[machine].values())
                waiting += len(busy[machine])
                busy[machine].clear()
                generation[machine] += 1
                back = now + options.replaced_after
                new = generation[machine]
                for each in range(options.cores):
                    heapq.heappush(events, (back + options.start, "free", machine, each, new))
                failing = back + draw.expovariate(1 / (3600 * options.machines_fail_every))
                heapq.heappush(events, (failing, "fails", machine, 0, new))
                continue
            if of != generation[machine]:
                continue
            if busy[machine].pop(core, None) is not None:
                todo -= 1
            if waiting:
                waiting -= 1
                busy[machine][core] = now
                # Photos and cores differ: a tenth either way.
                end = now + shard_s * draw.uniform(0.9, 1.1)
                heapq.heappush(events, (end, "free", machine, core, of))
            else:  # what a failed machine had may still come back
                heapq.heappush(events, (now + 60, "free", machine, core, of))
    return Result(now / 3600, failures, restarts, lost_s / 3600)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds-per-photo", type=float, default=0.05)
    parser.add_argument("--cores", type=int, default=16, help="of a machine")
    parser.add_argument(
        "--start", type=float, default=10, help="seconds of a worker until its first shard"
    )
    parser.add_argument("--machines-fail-every", type=float, default=20, metavar="HOURS")
    parser.add_argument("--replaced-after", type=float, default=300, metavar="S")
    parser.add_argument("--run-killed-every", type=float, default=24, metavar="HOURS")
    parser.add_argument(
        "--plan", type=float, default=3e-6, help="seconds a photo, by the run alone"
    )
    parser.add_argument("--verify", type=float, default=1e-6, help="the same, of what is done")
    parser.add_argument("--bytes", type=float, default=120, help="of the output, a photo")
    arguments = parser.parse_args()
    print("| photos | machines | shard | hours | machine hours | failures | work lost | output |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for photos, machines, shard_size in (
        (10**6, 1, 1000),
        (10**6, 4, 1000),
        (10**8, 32, 1000),
        (10**8, 32, 10_000),
        (10**9, 100, 10_000),
        (10**9, 400, 10_000),
    ):
        results = [
            simulate(arguments, photos, machines, shard_size, seed) for seed in range(SIMULATIONS)
        ]
        hours, failed, restarts, lost_hours = map(statistics.fmean, zip(*results, strict=True))
        work = photos * arguments.seconds_per_photo / 3600
        failures = f"{failed:.1f}, of the run {restarts:.1f}"
        lost = f"{lost_hours:,.1f} core hours, {lost_hours / work:.2%}"
        print(
            f"| {photos:,} | {machines} | {shard_size:,} | {hours:.1f} | "
            f"{hours * machines:,.0f} | {failures} | {lost} | "
            f"{photos * arguments.bytes / 1e9:.1f} GB |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
