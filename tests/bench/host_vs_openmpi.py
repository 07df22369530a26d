#!/usr/bin/env python3
"""How fast is the `host` communicator's direct algorithm beside the best that Open MPI can do on this machine?

Two ranks, or RANKS. Each round runs, one after the other: host with registered buffers, host with private buffers, and Open MPI with both
single-copy mechanisms of its shared-memory transport and every all-reduce algorithm it offers, under settings that keep
its temporaries from page-faulting (see README, "MPI allocations"). A round gives one ratio a size: best Open MPI
median / host median; printed are the median of the rounds' ratios and their spread. Beside them stands the distance to
the memory limit: host's time over the time in which two cores copy as many bytes as the collective must move at least
(all-reduce and all-gather 4 S, reduce-scatter 3 S), measured in the same rounds by tests/bench/helper_membw.c.

usage: PTBENCH=build/ptbench tests/bench/host_vs_openmpi.py [ROUNDS [RANKS]]      (on a machine that does nothing else)
With more ranks than cores it shows whether host collapses where ranks have to give the processor to each other.
"""
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile

PTBENCH = os.environ.get("PTBENCH", "build/ptbench")
MEMBW = os.path.join(os.path.dirname(PTBENCH), "tests", "bench_helper_membw")
RANKS = sys.argv[2] if len(sys.argv) > 2 else "2"
MOVED = {"all_reduce": 4, "all_gather": 4, "reduce_scatter": 3}  # times S: bytes read and written by both ranks
SIZES = ["8", "64K", "1M", "16M", "64M"]
CASES = ["all_reduce", "all_gather", "reduce_scatter"]
FAIR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def run(folder, name, options, extra_env):
    """Runs one sweep and returns {(bench, bytes): (median ns, algorithm)} with the fastest algorithm of each size."""
    db = os.path.join(folder, name + ".db")
    command = [PTBENCH, "run", *CASES, "--np", RANKS, "--db", db, "--place", "out", "--type", "f32",
               "--bytes", ",".join(SIZES), "--max-time", "1s", *options]
    done = subprocess.run(command, env={**os.environ, **FAIR, **extra_env}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    best = {}
    rows = sqlite3.connect(db).execute(
        "SELECT bench, bytes, median_ns, json_extract(params, '$.algo') FROM bench_case WHERE state = 'ok'")
    for bench, size, median, algo in rows:
        if (bench, size) not in best or median < best[bench, size][0]:
            best[bench, size] = (median, algo)
    os.unlink(db)
    return best


def limits():
    """{bytes: ns to move 4 S} of this moment."""
    out = subprocess.run([MEMBW, *SIZES[1:]], capture_output=True, text=True, check=True).stdout
    return {int(line.split()[0]): 4 * int(line.split()[0]) / float(line.split()[1]) for line in out.splitlines()}


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    ratios, private, winners, times, distance = {}, {}, {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            host = run(folder, "host", ["--comm", "host", "--algo", "direct"], {})
            copied = run(folder, "private", ["--comm", "host", "--algo", "direct", "--register", "no"], {})
            library, limit = {}, limits()
            for copy in ("cma", "none"):
                for key, value in run(folder, copy, ["--comm", "mpi", "--algo", "all"],
                                      {"OMPI_MCA_btl_vader_single_copy_mechanism": copy}).items():
                    if key not in library or value[0] < library[key][0]:
                        library[key] = (*value, copy)
            for key in sorted(host):
                ratios.setdefault(key, []).append(library[key][0] / host[key][0])
                private.setdefault(key, []).append(library[key][0] / copied[key][0])
                times.setdefault(key, []).append(host[key][0])
                if key[1] in limit and RANKS == "2":
                    distance.setdefault(key, []).append(host[key][0] / (limit[key[1]] * MOVED[key[0]] / 4))
                winners[key] = f"{library[key][1]}, {library[key][2]}, {library[key][0] / 1e3:.2f} us"
            print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    print(f"{'collective':15} {'bytes':>9} {'host us':>9} {'ratio':>6} {'spread':>13} {'private':>8} {'spread':>13} {'x limit':>8}  best Open MPI (last round)")
    for key in sorted(ratios):
        r, p = ratios[key], private[key]
        away = f"{statistics.median(distance[key]):8.2f}" if key in distance else f"{'-':>8}"
        print(f"{key[0]:15} {key[1]:9d} {statistics.median(times[key]) / 1e3:9.2f} {statistics.median(r):6.2f} "
              f"{min(r):6.2f}-{max(r):<6.2f} {statistics.median(p):8.2f} {min(p):6.2f}-{max(p):<6.2f} {away}  {winners[key]}")


main()
