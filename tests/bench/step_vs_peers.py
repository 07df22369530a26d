#!/usr/bin/env python3
"""A training step of GPT-2 124M in f32: ptbench, llm.c's CPU trainer and PyTorch eager side by side, at B=4, T=64 and
T=256, on 1 and 2 threads. Each round starts them one after the other on the same processors; printed are medians over the
rounds with least and largest: tokens/s, ptbench's speed as a multiple of the others', and the share of the best matrix
product that ptbench measures in the same round; last the multiple that the fastest rounds of both give, which other work
on the machine disturbs least. FLOPs of a token, the same for all three: 6 x (12 L h^2 + h V) + 6 L h T
(every matrix product with the tied head, and the causal half of attention; nothing that is computed twice).

llm.c's weights and tokens cannot be downloaded everywhere, so files of random ones in its format are written; speed does
not depend on their values. Its source is compiled as its Makefile does (-Ofast -march=native -fopenmp), with T and the
number of steps as wanted and without validation and text generation between steps. PyTorch trains the same model as plain
modules: scaled_dot_product_attention, AdamW (fused where there is such a one), nothing compiled.

usage: LLMC=.../llm.c PYTHON=.../python PTBENCH=build/ptbench tests/bench/step_vs_peers.py [ROUNDS [T,... [THREADS,...]]]
       (llm.c's source and a Python with PyTorch, beside the project; without one of them that column is left out; on a
       machine that does nothing else)
"""
import array
import os
import random
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile

PTBENCH = os.environ.get("PTBENCH", "build/ptbench")
LLMC, PYTHON = os.environ.get("LLMC"), os.environ.get("PYTHON")
L, H, HEADS, V, V_PADDED, POSITIONS, B = 12, 768, 12, 50257, 50304, 1024, 4

PYTORCH = """
import sys, time, torch, torch.nn as nn, torch.nn.functional as F
L, H, HEADS, V, POSITIONS, B, T, threads, steps = map(int, sys.argv[1:])
torch.set_num_threads(threads)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(H), nn.LayerNorm(H)
        self.qkv, self.projection = nn.Linear(H, 3 * H), nn.Linear(H, H)
        self.up, self.down = nn.Linear(H, 4 * H), nn.Linear(4 * H, H)
    def forward(self, x):
        q, k, v = (t.reshape(B, T, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(H, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(a.transpose(1, 2).reshape(B, T, H))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, H), nn.Embedding(POSITIONS, H)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(L)), nn.LayerNorm(H)
    def forward(self, x):
        x = self.tokens(x) + self.positions(torch.arange(T))
        for b in self.blocks:
            x = b(x)
        return F.linear(self.norm(x), self.tokens.weight)
model = GPT()
try:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
except RuntimeError:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(steps):
    data = torch.randint(V, (B, T + 1))
    begin = time.perf_counter()
    loss = F.cross_entropy(model(data[:, :-1]).reshape(-1, V), data[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("ms", (time.perf_counter() - begin) * 1e3, flush=True)
"""


def output(command, threads, folder=None):
    processors = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    # OPENBLAS_CORETYPE may force another processor's kernels on whoever uses OpenBLAS.
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    env["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run(["taskset", "-c", processors, *command], env=env, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)[:200]}\nended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout


def write_files(folder):
    """Random weights and tokens in llm.c's formats (its train_gpt2.c and llmc/dataloader.h read them)."""
    rng = random.Random(1)
    with open(os.path.join(folder, "gpt2_124M.bin"), "wb") as out:
        header = [20240326, 3, POSITIONS, V, L, HEADS, H, V_PADDED]
        array.array("i", header + [0] * (256 - len(header))).tofile(out)
        noise = array.array("f", (rng.gauss(0, 0.02) for _ in range(H * 64)))
        ones = array.array("f", [1.0] * H)
        zeros = array.array("f", [0.0] * H)
        sizes = [(V_PADDED * H, noise), (POSITIONS * H, noise)]
        for count, kind in ((H, ones), (H, zeros), (3 * H * H, noise), (3 * H, zeros), (H * H, noise), (H, zeros),
                            (H, ones), (H, zeros), (4 * H * H, noise), (4 * H, zeros), (4 * H * H, noise), (H, zeros)):
            sizes.append((L * count, kind))
        for count, kind in sizes + [(H, ones), (H, zeros)]:
            for at in range(0, count, len(kind)):
                kind[:min(len(kind), count - at)].tofile(out)
    os.makedirs(os.path.join(folder, "dev/data/tinyshakespeare"))
    for part in ("train", "val"):
        count = 100 * B * 256 + 1
        with open(os.path.join(folder, f"dev/data/tinyshakespeare/tiny_shakespeare_{part}.bin"), "wb") as out:
            array.array("i", [20240520, 1, count] + [0] * 253).tofile(out)
            array.array("H", (rng.randrange(V) for _ in range(count))).tofile(out)


def build_llmc(folder, length, steps):
    source = open(os.path.join(LLMC, "train_gpt2.c"), encoding="utf-8").read()
    for pattern, text in ((r"int T = 64;", f"int T = {length};"), (r"step <= 40;", f"step < {steps};"),
                          (r"if \(step % 10 == 0\)", "if (0)"), (r"if \(step > 0 && step % 20 == 0\)", "if (0)")):
        source, changed = re.subn(pattern, text, source)
        if changed != 1:
            sys.exit(f"{LLMC}/train_gpt2.c is another version: there is no single '{pattern}'")
    path = os.path.join(folder, f"llmc-{length}")
    with open(path + ".c", "w", encoding="utf-8") as out:
        out.write(source)
    subprocess.run([os.environ.get("CC", "cc"), "-Ofast", "-march=native", "-fopenmp", "-DOMP", "-w", "-I", LLMC, path + ".c",
                    "-o", path, "-lm"], check=True)


def llmc(folder, length, threads):
    text = output([os.path.join(folder, f"llmc-{length}")], threads, folder)
    return [float(ms) for ms in re.findall(r"took ([\d.]+) ms", text)][1:]  # the first allocates


def pytorch(_, length, threads):
    steps = 10 if length < 128 else 6
    text = output([PYTHON, "-c", PYTORCH, *map(str, (L, H, HEADS, V, POSITIONS, B, length, threads, steps))], threads)
    return [float(ms) for ms in re.findall(r"ms ([\d.]+)", text)][2:]


def ptbench(folder, length, threads):
    db = os.path.join(folder, "step.db")
    output([PTBENCH, "run", "step", "--np", "1", "--bind", "none", "--model", "gpt2-124m", "--batch", str(B), "--sequence",
            str(length), "--threads", str(threads), "--precision", "f32", "--lr", "0.0001", "-w", "2",
            "-n", "8" if length < 128 else "4", "--max-time", "600s", "--db", db, "-q"], threads)
    con = sqlite3.connect(db)
    metric = dict(con.execute("SELECT name, value FROM metric"))
    state, ns = con.execute("SELECT state, median_ns FROM bench_case").fetchone()
    con.close()
    os.unlink(db)
    if state != "ok":
        sys.exit(f"ptbench's step ended as {state}")
    return [ns / 1e6], metric["matmul_peak"]


def spread(values, form):
    return f"{format(statistics.median(values), form)} ({format(min(values), form)}-{format(max(values), form)})"


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    lengths = [int(t) for t in sys.argv[2].split(",")] if len(sys.argv) > 2 else [64, 256]
    counts = [int(t) for t in sys.argv[3].split(",")] if len(sys.argv) > 3 else [1, 2]
    peers = {name: run for name, run, there in (("llm.c", llmc, LLMC), ("PyTorch", pytorch, PYTHON)) if there}
    print(f"{'T':>4} {'threads':>7} {'':8} {'tokens/s':>20} {'share of peak':>20} {'ptbench is faster by':>21} "
          f"{'fastest rounds':>14}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if LLMC:
            write_files(folder)
            for length in lengths:
                build_llmc(folder, length, 3 if length < 128 else 2)
        results = {}
        for _ in range(rounds):
            for length in lengths:
                for threads in counts:
                    ours, peak = ptbench(folder, length, threads)
                    row = {"ptbench": ours, **{name: run(folder, length, threads) for name, run in peers.items()}}
                    rates = {name: B * length / statistics.median(ms) * 1e3 for name, ms in row.items()}
                    results.setdefault((length, threads), []).append((rates, peak))
        for (length, threads), found in results.items():
            flops = 6 * (12 * L * H * H + H * V) + 6 * L * H * length
            for name in found[0][0]:
                rate = [r[name] for r, _ in found]
                times = [r["ptbench"] / r[name] for r, _ in found]
                share = [r[name] * flops / peak for r, peak in found]
                line = f"{length:4} {threads:7} {name:8} {spread(rate, '.1f'):>20} {spread(share, '.3f'):>20}"
                if name != "ptbench":
                    best = max(r["ptbench"] for r, _ in found) / max(rate)
                    line += f" {spread(times, '.2f'):>21} {best:14.2f}"
                print(line, flush=True)


main()
