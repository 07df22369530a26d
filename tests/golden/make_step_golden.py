#!/usr/bin/env python3
"""Makes step_golden.json: losses and gradient norms of the training runs in step_cases.h, computed with PyTorch in double
precision from the weights and tokens that helper_step_data writes. The model is written here with PyTorch's own
functions, so nothing of it is shared with the engine. Needed only when step_cases.h, the initial weights or the order
of the text change; test_step_golden needs no PyTorch.

usage: PYTHON_WITH_TORCH tests/golden/make_step_golden.py BUILD_FOLDER
"""
import array
import json
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F

F32_MOST = 1e-5  # of PyTorch's own f32 from its f64: the test allows the engine 10 times what it is
LEAST = 1e-5     # least tolerance
WINDOW = 20      # steps of a curve whose mean loss is compared in bf16
SHORT = 10       # steps over which gradient norms are compared too; later rounding shows in them first
GAP_FACTOR = 20  # a router's decision is safe when its logits are so many times farther apart than f32 moves them


def load(folder, name):
    settings, tensors, parts = {}, [], []
    for line in open(os.path.join(folder, name + ".txt"), encoding="ascii"):
        word = line.split()
        if word[0] == "set":
            try:
                settings[word[1]] = float(word[2])
            except ValueError:
                settings[word[1]] = word[2]
        else:
            matrices, rows, columns, decay = map(int, word[3:7])
            shape = [matrices, rows, columns] if matrices > 1 else [rows, columns] if rows > 1 else [columns]
            tensors.append((int(word[1]), word[2], shape, decay == 1))
    weights, tokens = array.array("f"), array.array("i")
    weights.frombytes(open(os.path.join(folder, name + ".weights"), "rb").read())
    tokens.frombytes(open(os.path.join(folder, name + ".tokens"), "rb").read())
    at = 0
    for unit, tensor, shape, decay in tensors:
        count = torch.Size(shape).numel()
        parts.append(((unit, tensor), torch.tensor(weights[at:at + count]).reshape(shape), decay))
        at += count
    assert at == len(weights)
    batch, length = int(settings["batch"]), int(settings["sequence"])
    tokens = torch.tensor(tokens, dtype=torch.int64).reshape(int(settings["steps"]), 2, batch, length)
    return settings, parts, tokens


def wide(x):
    """At least f32, as Hugging Face's models do it for norms, angles and the loss."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Model:
    def __init__(self, settings, parts, dtype):
        self.s = settings
        self.layers, self.heads = int(settings["layers"]), int(settings["heads"])
        self.kv_heads, self.width = int(settings["kv_heads"]), int(settings["head_width"])
        self.p = {key: value.to(dtype).clone().requires_grad_() for key, value, _ in parts}
        self.decays = {key: decay for key, _, decay in parts}
        self.routers = []  # logits of every router of the last step

    def linear(self, unit, name, x):
        return F.linear(x, self.p[unit, name + ".weight"], self.p.get((unit, name + ".bias")))

    def feed_forward(self, unit, x):
        up = "gate_up" if self.s["swiglu"] else "up"
        return self.linear(unit, "down", self.activation(self.linear(unit, up, x)))

    def norm(self, unit, name, x):
        gain, epsilon = self.p[unit, name + ".gain"], self.s["epsilon"]
        if self.s["rms_norm"]:
            return (wide(x) * torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + epsilon)).to(x.dtype) * gain
        return F.layer_norm(x, gain.shape, gain, self.p.get((unit, name + ".bias")), epsilon)

    def rotate(self, x):  # [batch, heads, length, width], the halves paired
        half = self.width // 2
        angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * \
            self.s["rotary_base"] ** (-torch.arange(half, dtype=torch.float64) / half)
        a, b = wide(x)[..., :half], wide(x)[..., half:]
        cos, sin = angle.cos().to(a.dtype), angle.sin().to(a.dtype)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    def attention(self, unit, x):
        batch, length, _ = x.shape
        q, k, v = self.linear(unit, "qkv", x).split(
            [self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.width], -1)
        q = q.reshape(batch, length, self.heads, self.width).transpose(1, 2)
        k = k.reshape(batch, length, self.kv_heads, self.width).transpose(1, 2)
        v = v.reshape(batch, length, self.kv_heads, self.width).transpose(1, 2)
        if self.s["rotary"]:
            q, k = self.rotate(q), self.rotate(k)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        score = q @ k.transpose(2, 3) / self.width ** 0.5
        score = score.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
        out = (score.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)
        return self.linear(unit, "projection", out)

    def activation(self, x):
        if not self.s["swiglu"]:
            return F.gelu(x, approximate="tanh")
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    def mixture(self, unit, x):
        batch, length, hidden = x.shape
        x = x.reshape(-1, hidden)
        experts, top_k = int(self.s["experts"]), int(self.s["top_k"])
        logits = self.linear(unit, "router", x)
        self.routers.append(logits.detach())
        probability = logits.softmax(-1)
        weight, chosen = probability.topk(top_k, -1)
        share = F.one_hot(chosen, experts).sum((0, 1)).to(x.dtype) / (x.shape[0] * top_k)
        balance = self.s["balance"] * experts * (share * probability.mean(0)).sum()
        if self.s["normalise"]:
            weight = weight / weight.sum(-1, keepdim=True)
        up = "gate_up" if self.s["swiglu"] else "up"
        out = torch.zeros_like(x)
        for e in range(experts):
            row, k = (chosen == e).nonzero(as_tuple=True)
            y = self.activation(F.linear(x[row], self.p[unit, "experts." + up][e]))
            out = out.index_add(0, row, F.linear(y, self.p[unit, "experts.down"][e]) * weight[row, k, None])
        if (unit, "shared.down") in self.p:
            y = self.activation(F.linear(x, self.p[unit, "shared." + up]))
            out = out + F.linear(y, self.p[unit, "shared.down"])
        return out.reshape(batch, length, hidden), balance

    def loss(self, inputs, targets):
        self.routers = []
        table, last = self.p[0, "tokens"], self.layers + 1
        x = F.embedding(inputs, table)
        if (0, "positions") in self.p:
            x = x + self.p[0, "positions"][:inputs.shape[1]]
        balance = 0
        for unit in range(1, last):
            x = x + self.attention(unit, self.norm(unit, "norm1", x))
            y = self.norm(unit, "norm2", x)
            if (unit, "router.weight") in self.p:
                y, more = self.mixture(unit, y)
                balance = balance + more
            else:
                y = self.feed_forward(unit, y)
            x = x + y
        logits = F.linear(self.norm(last, "norm", x), self.p.get((last, "head.weight"), table))
        return F.cross_entropy(wide(logits).reshape(-1, logits.shape[-1]), targets.reshape(-1)) + balance


def optimizer_of(model):
    s = model.s
    groups = [{"params": [p for key, p in model.p.items() if model.decays[key] == decays],
               "weight_decay": s["decay"] if decays else 0.0} for decays in (True, False)]
    if s["optimizer"] == "sgd":
        return torch.optim.SGD(groups, lr=s["rate"], momentum=s["momentum"])
    assert s["optimizer"] == "adamw"
    return torch.optim.AdamW(groups, lr=s["rate"], betas=(s["beta1"], s["beta2"]), eps=1e-8)


def train(settings, parts, tokens, dtype):
    """In 16-bit types the optimizer has f32 weights, of which each step computes with a copy."""
    model = Model(settings, parts, dtype)
    master = model if dtype.itemsize >= 4 else Model(settings, parts, torch.float32)
    optimizer = optimizer_of(master)
    losses, norms, routers = [], [], []
    for step, (inputs, targets) in enumerate(tokens):
        for group in optimizer.param_groups:
            group["lr"] = settings["rate"] * min(1.0, (step + 1) / max(settings["warmup"], 1.0))
        for key, p in model.p.items():
            p.grad = None
            p.data.copy_(master.p[key].data)
        loss = model.loss(inputs, targets)
        loss.backward()
        for key, p in master.p.items():
            p.grad = model.p[key].grad.to(p.dtype)
        norm = torch.stack([p.grad.double().square().sum() for p in master.p.values()]).sum().sqrt().item()
        if settings["clip"] and norm > settings["clip"]:
            for p in master.p.values():
                p.grad *= settings["clip"] / norm
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
        routers.append([r.double() for r in model.routers])
    return losses, norms, routers


def furthest(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def windows(losses):
    """Means over WINDOW steps: what a reader of a curve sees."""
    return [sum(losses[i:i + WINDOW]) / WINDOW for i in range(0, len(losses), WINDOW)]


def check_routers(name, top_k, routers, routers32):
    """No decision may hang on rounding: the k-th and the next logit must be far apart."""
    pairs = [(r, q) for step, step32 in zip(routers, routers32) for r, q in zip(step, step32)]
    if not pairs:
        return
    gap, moved = 1e9, 0.0
    for r, r32 in pairs:
        order = r.sort(-1, descending=True).values
        gap = min(gap, (order[:, top_k - 1] - order[:, top_k]).min().item())
        moved = max(moved, (r - r32).abs().max().item())
    print(f"{name}: router logits at least {gap:.2g} apart; f32 moves them by {moved:.2g}")
    if gap < GAP_FACTOR * moved:
        sys.exit(f"{name}: a router's decision is within rounding of a tie ({gap:.3g} apart, moved by {moved:.3g}); "
                 "choose another seed in step_cases.h")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    here = os.path.dirname(os.path.abspath(__file__))
    torch.set_num_threads(1)
    cases = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([os.path.join(sys.argv[1], "tests", "golden_helper_step_data"), folder], check=True)
        for name in sorted(f[:-4] for f in os.listdir(folder) if f.endswith(".txt")):
            settings, parts, tokens = load(folder, name)
            losses, norms, routers = train(settings, parts, tokens, torch.float64)
            losses32, norms32, routers32 = train(settings, parts, tokens, torch.float32)
            check_routers(name, int(settings["top_k"]), routers, routers32)
            f32 = furthest(losses32, losses)
            if len(losses) <= SHORT:
                f32 = max(f32, furthest(norms32, norms))
            print(f"{name}: loss {losses[0]:.4f} to {losses[-1]:.4f}, gradient norm {norms[0]:.3f} to {norms[-1]:.3f}; "
                  f"f32 differs by {f32:.2g}")
            if f32 > F32_MOST:
                sys.exit(f"{name}: rounding grows to {f32:.2g}, so there is nothing to compare with; lower the rate")
            cases[name] = {"f32_differs": float(f"{f32:.2g}"), "tolerance": max(LEAST, float(f"{10 * f32:.2g}")),
                           "loss": [float(f"{v:.9g}") for v in losses]}
            if len(losses) <= SHORT:
                cases[name]["grad_norm"] = [float(f"{v:.9g}") for v in norms]
            else:
                bf16 = furthest(windows(train(settings, parts, tokens, torch.bfloat16)[0]), windows(losses))
                print(f"{name}: bf16 differs by {bf16:.2g} in means over {WINDOW} steps")
                cases[name]["bf16_differs"] = float(f"{bf16:.2g}")
    with open(os.path.join(here, "step_golden.json"), "w", encoding="ascii") as out:
        json.dump({"pytorch": torch.__version__, "cases": cases}, out)
        out.write("\n")


main()
