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
from dataclasses import dataclass
from typing import NamedTuple

SIMULATIONS = 20


@dataclass(frozen=True)
class Cluster:
    """What the simulation knows; times in seconds."""

    machines: int
    cores: int  # workers of a machine
    photo_s: float  # of one worker for a photo
    start_s: float  # of a worker until its first shard
    fail_every_s: float  # mean time between failures of one machine
    replace_s: float  # from a failure until a new machine is there
    kill_every_s: float  # mean time between failures of the run itself
    plan_s: float  # for a photo, by the run alone, before any work
    verify_s: float  # the same, of what is done


class Result(NamedTuple):
    """Of a simulated collection."""

    hours: float
    failures: int
    restarts: int
    lost_worker_hours: float


def simulate(cluster: Cluster, photos: int, shard_size: int, seed: int = 0) -> Result:
    """Return how a collection goes; the same seed gives the same failures."""
    draw = random.Random(seed)
    todo = -(-photos // shard_size)
    shards = todo
    shard_s = shard_size * cluster.photo_s
    lost_s, failures, restarts = 0.0, 0, 0
    now = photos * cluster.plan_s
    while todo:
        # One life of the run: from its start to its end, or until it is killed.
        killed_at = now + draw.expovariate(1 / cluster.kill_every_s)
        # Ends of shards and failures, by time. A machine's generation tells whether the worker
        # that would end a shard is still alive.
        generation = [0] * cluster.machines
        busy: list[dict[int, float]] = [{} for _ in range(cluster.machines)]
        events: list[tuple[float, str, int, int, int]] = []
        waiting = todo
        for machine in range(cluster.machines):
            failing = now + draw.expovariate(1 / cluster.fail_every_s)
            heapq.heappush(events, (failing, "fails", machine, 0, 0))
            for core in range(cluster.cores):
                heapq.heappush(events, (now + cluster.start_s, "free", machine, core, 0))
        while todo and events:
            at, event, machine, core, of = heapq.heappop(events)
            if at > killed_at:
                restarts += 1
                lost_s += sum(killed_at - begun for each in busy for begun in each.values())
                done = (shards - todo) * shard_size
                now = killed_at + photos * cluster.plan_s + done * cluster.verify_s
                break
            now = at
            if event == "fails":
                failures += 1
                lost_s += sum(now - begun for begun in busy[machine].values())
                waiting += len(busy[machine])
                busy[machine].clear()
                generation[machine] += 1
                back = now + cluster.replace_s
                new = generation[machine]
                for each in range(cluster.cores):
                    heapq.heappush(events, (back + cluster.start_s, "free", machine, each, new))
                failing = back + draw.expovariate(1 / cluster.fail_every_s)
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
    parser.add_argument("--start", type=float, default=10, help="seconds of a worker")
    parser.add_argument("--machines-fail-every", type=float, default=20, metavar="HOURS")
    parser.add_argument("--replaced-after", type=float, default=300, metavar="S")
    parser.add_argument("--run-killed-every", type=float, default=24, metavar="HOURS")
    parser.add_argument("--plan", type=float, default=3e-6, help="seconds a photo")
    parser.add_argument("--verify", type=float, default=1e-6, help="seconds a photo")
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
        cluster = Cluster(
            machines=machines,
            cores=arguments.cores,
            photo_s=arguments.seconds_per_photo,
            start_s=arguments.start,
            fail_every_s=arguments.machines_fail_every * 3600,
            replace_s=arguments.replaced_after,
            kill_every_s=arguments.run_killed_every * 3600,
            plan_s=arguments.plan,
            verify_s=arguments.verify,
        )
        results = [simulate(cluster, photos, shard_size, seed) for seed in range(SIMULATIONS)]
        hours, failed, restarts, lost_hours = map(statistics.fmean, zip(*results, strict=True))
        work = photos * cluster.photo_s / 3600
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
