#!/usr/bin/env python3
"""ptbench, the OSU micro-benchmarks and the Intel MPI Benchmarks side by side: the same MPI calls on two ranks.

Each round starts the three one after the other with the same mpirun settings; printed are medians over the rounds in
microseconds and their spread, and the two ratios that matter: how far OSU and Intel's benchmarks are from each other, and
where ptbench lies. OSU averages over iterations that each follow a barrier; Intel's times a loop without barriers; ptbench is shown
in both modes (latency: after a synchronised start; back-to-back), as mean over iterations and ranks, so that all are
the same statistic.

usage: OSU=.../osu-micro-benchmarks-7.4/c/mpi IMB=.../IMB-MPI1 PTBENCH=build/ptbench tests/bench/peers.py [ROUNDS]
       (built beside the project; on a machine that does nothing else)
"""
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile

PTBENCH = os.environ.get("PTBENCH", "build/ptbench")
OSU, IMB = os.environ.get("OSU"), os.environ.get("IMB")
SIZES = [8, 65536, 1 << 20, 4 << 20]  # S of ptbench; for all-gather the peers are asked for S / 2 a rank
BENCHES = {"all_reduce": ("osu_allreduce", "Allreduce", 1), "all_gather": ("osu_allgather", "Allgather", 2)}
MPIRUN = ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "-n", "2", "--bind-to", "core"]
FAIR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def output(command):
    done = subprocess.run(command, env={**os.environ, **FAIR}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout


def osu(name, share):
    us = {}
    for size in SIZES:
        text = output([*MPIRUN, f"{OSU}/collective/blocking/{name}", "-m", f"{max(size // share, 4)}:{max(size // share, 4)}",
                       "-T", "mpi_float", "-i", "2000" if size < 1 << 20 else "200", "-x", "100", "-M", "1073741824"])
        row = re.findall(r"^(\d+)\s+([\d.]+)\s*$", text, re.M)
        us[size] = float(row[-1][1])
    return us


def intel(name, share):
    us = {}
    for size in SIZES:
        log = max(size // share, 4).bit_length() - 1
        text = output([*MPIRUN, IMB, "-npmin", "2", "-msglog", f"{log}:{log}", "-iter_policy", "off",
                       "-iter", "2000" if size < 1 << 20 else "200", "-mem", "4", name])
        rows = re.findall(r"^\s+(\d+)\s+\d+\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s*$", text, re.M)
        us[size] = [float(r[3]) for r in rows if int(r[0]) == max(size // share, 4)][0]
    return us


def ptbench(bench, mode, folder):
    db = os.path.join(folder, "peers.db")
    output([PTBENCH, "run", bench, "--np", "2", "--comm", "mpi", "--type", "f32", "--place", "out", "--time", "avg", "--db", db,
            "--mode", mode, "--max-time", "1s", "--min-iters", "100", "--bytes", ",".join(map(str, SIZES))])
    rows = sqlite3.connect(db).execute("SELECT bytes, mean_ns / 1e3 FROM bench_case WHERE state = 'ok'").fetchall()
    os.unlink(db)
    return dict(rows)


def main():
    if not OSU or not IMB:
        sys.exit("set OSU to the folder c/mpi of the built OSU micro-benchmarks and IMB to the built IMB-MPI1")
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'':11}{'bytes':>9} {'OSU us':>10} {'Intel us':>10} {'latency us':>11} {'b-to-b us':>10} "
          f"{'OSU/Intel':>18} {'latency/OSU':>18} {'b-to-b/Intel':>18}")
    with tempfile.TemporaryDirectory() as folder:
        for bench, (osu_name, imb_name, share) in BENCHES.items():
            results = []
            for _ in range(rounds):
                results.append((osu(osu_name, share), intel(imb_name, share), ptbench(bench, "latency", folder),
                                ptbench(bench, "back-to-back", folder)))
            for size in SIZES:
                column = [[r[i][size] for r in results] for i in range(4)]
                median = [statistics.median(c) for c in column]

                def ratio(a, b):
                    r = [x / y for x, y in zip(column[a], column[b])]
                    return f"{statistics.median(r):5.2f} ({min(r):.2f}-{max(r):.2f})"

                print(f"{bench:11}{size:9} {median[0]:10.2f} {median[1]:10.2f} {median[2]:11.2f} {median[3]:10.2f} "
                      f"{ratio(0, 1):>18} {ratio(2, 0):>18} {ratio(3, 1):>18}", flush=True)


main()
