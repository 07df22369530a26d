#!/usr/bin/env python3
"""A data-parallel training step of 2 ranks, ptbench's ddp beside PyTorch's DistributedDataParallel with gloo, on the same two
processors: the same GPT (tied, learned positions, GELU, biases) in f32, the same batch, AdamW, buckets of 25 MB for both
(PyTorch's default). Each round runs one after the other; printed are the medians over the rounds with least and largest, and
the rounds' ratio PyTorch / ptbench (above 1: ptbench is faster).

usage: PYTHON=.../python PTBENCH=build/ptbench tests/bench/ddp_vs_torch.py [ROUNDS [LAYERS,... [SEQUENCE [BATCH]]]]
       (a Python with PyTorch, beside the project; on a machine that does nothing else; BATCH: sequences of both ranks)
"""
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile

PTBENCH, PYTHON = os.environ.get("PTBENCH", "build/ptbench"), os.environ.get("PYTHON", sys.executable)
HIDDEN, HEADS, VOCABULARY, RANKS, STEPS, WARM_UP = 768, 12, 50257, 2, 8, 3

PYTORCH = """
import os, sys, time, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
L, H, HEADS, V, T, B, steps, rank, size = map(int, sys.argv[1:])
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=size)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(H), nn.LayerNorm(H)
        self.qkv, self.projection = nn.Linear(H, 3 * H), nn.Linear(H, H)
        self.up, self.down = nn.Linear(H, 4 * H), nn.Linear(4 * H, H)
    def forward(self, x):
        q, k, v = (t.reshape(x.shape[0], T, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(H, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(a.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, H), nn.Embedding(T, H)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(L)), nn.LayerNorm(H)
    def forward(self, x):
        x = self.tokens(x) + self.positions(torch.arange(T))
        for b in self.blocks:
            x = b(x)
        return F.linear(self.norm(x), self.tokens.weight)
torch.manual_seed(1)
model = nn.parallel.DistributedDataParallel(GPT(), gradient_as_bucket_view=True)
try:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
except RuntimeError:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(steps):
    data = torch.randint(V, (B // size, T + 1))
    dist.barrier()
    begin = time.perf_counter()
    loss = F.cross_entropy(model(data[:, :-1]).reshape(-1, V), data[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    took = torch.tensor([(time.perf_counter() - begin) * 1e3], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    if rank == 0:
        print("ms", took.item(), flush=True)
dist.destroy_process_group()
"""


def pytorch(layers, sequence, batch):
    processors = sorted(os.sched_getaffinity(0))
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    sizes = (layers, HIDDEN, HEADS, VOCABULARY, sequence, batch, STEPS + WARM_UP)
    ranks = [subprocess.Popen(["taskset", "-c", str(processors[r]), PYTHON, "-c", PYTORCH, *map(str, sizes), str(r), str(RANKS)],
                              env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for r in range(RANKS)]
    outputs = [rank.communicate() for rank in ranks]
    for rank, (_, errors) in zip(ranks, outputs):
        if rank.returncode:
            sys.exit(f"PyTorch ended with {rank.returncode}:\n{errors[-2000:]}")
    times = [float(ms) for ms in re.findall(r"ms ([\d.]+)", outputs[0][0])]
    return statistics.median(times[WARM_UP:])


def ptbench(layers, sequence, batch):
    with tempfile.TemporaryDirectory() as folder:
        db = os.path.join(folder, "step.db")
        command = [PTBENCH, "run", "step", "--np", str(RANKS), "--strategy", "ddp", "--model", "gpt2-124m", "--layers", str(layers),
                   "--sequence", str(sequence), "--max-sequence", str(sequence), "--batch", str(batch), "--lr", "0.0001",
                   "--bucket", "25M", "-n", str(STEPS), "-w", str(WARM_UP), "--max-time", "600s", "--db", db, "-q"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"ptbench ended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
        con = sqlite3.connect(db)
        (ns,) = con.execute("SELECT median_ns FROM bench_case").fetchone()
        metric = dict(con.execute("SELECT name, value FROM metric"))
        con.close()
        return ns / 1e6, metric["ideal_step"]


def spread(values):
    return f"{statistics.median(values):.4g} [{min(values):.4g}-{max(values):.4g}]"


rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
layer_counts = [int(n) for n in (sys.argv[2] if len(sys.argv) > 2 else "2,12").split(",")]
length, sequences = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((3, 64), (4, 8)))
for count in layer_counts:
    mine, bound, theirs = [], [], []
    for _ in range(rounds):
        ms, ideal = ptbench(count, length, sequences)
        mine.append(ms)
        bound.append(ideal)
        theirs.append(pytorch(count, length, sequences))
    print(f"{count} layers, {HIDDEN} wide, {length} tokens, batch {sequences} on {RANKS} ranks: ptbench {spread(mine)} ms (without "
          f"communication {spread(bound)}), PyTorch DDP with gloo {spread(theirs)} ms; PyTorch / ptbench "
          f"{spread([b / a for a, b in zip(mine, theirs)])}")
