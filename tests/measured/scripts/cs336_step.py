"""One training step, or one forward, of a transformer of single ops, as a solution of Stanford's CS336 profiled it.

Wedsonlin/assignment2-systems, cs336_systems/nsys_profile.py: five steps to warm up, then one that is recorded. Same ops
in the same order; which version of the course's optimizer and losses ran is told by the lines in the snapshot's frames.
The last output and loss are let go of before the recorded step; no step that still held them has a higher peak.
"""

import argparse
import math

import torch
from torch import nn

VOCABULARY, WIDTH, INNER, LAYERS, HEADS, BATCH = 10000, 1024, 4096, 24, 16, 4


class Linear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        std = math.sqrt(2 / (inputs + outputs))
        start = nn.init.trunc_normal_(torch.empty(outputs, inputs), std=std, a=-3 * std, b=3 * std)
        self.weight = nn.Parameter(start)

    def forward(self, x):
        return torch.einsum("...i,oi->...o", x, self.weight)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(dtype)


class Rotary(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        frequencies = torch.tensor(10000.0) ** -(torch.arange(0, width, 2) / width)
        angles = torch.einsum("t,f->tf", torch.arange(length), frequencies)
        self.register_buffer(
            "turns", torch.stack((torch.cos(angles), torch.sin(angles))), persistent=False
        )

    def forward(self, x):
        first, second = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2).movedim(-1, 0).unbind(0)
        cos, sin = self.turns[:, : x.size(-2), :].unbind(0)
        turned = cos * first - sin * second
        other = sin * first + cos * second
        return torch.concat((turned, other), dim=-1)


def softmax(x):
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    powers = torch.exp(shifted)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


def cross_entropy(logits, targets):
    largest = torch.max(logits, dim=-1, keepdim=True)[0]
    x = logits - largest
    negative = -(x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True)))
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


class Attention(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.query, self.key, self.value, self.output = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.rotary = rotary

    def forward(self, x):
        query = self.query(x)
        key = self.key(x)
        value = self.value(x)
        query, key, value = (
            part.reshape(*part.shape[:-1], HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in (query, key, value)
        )
        query = self.rotary(query)
        key = self.rotary(key)
        places = torch.arange(x.size(1), device=x.device)
        mask = places[:, None] >= places[None, :]
        mask = mask[None, ...]
        mixed = attend(query, key, value, mask)
        mixed = mixed.transpose(1, 2).reshape(*x.shape)
        return self.output(mixed)


def attend(query, key, value, mask):
    scores = torch.einsum("...qd,...kd->...qk", query, key) / math.sqrt(key.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, value)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.down, self.up = (
            Linear(WIDTH, INNER),
            Linear(INNER, WIDTH),
            Linear(WIDTH, INNER),
        )

    def forward(self, x):
        return self.down(silu(self.gate(x)) * self.up(x))


def silu(x):
    return x * torch.sigmoid(x)


class Layer(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.attention, self.inner = Attention(rotary), Gated()
        self.before, self.between = RmsNorm(WIDTH), RmsNorm(WIDTH)

    def forward(self, x):
        attended = self.attention(self.before(x))
        summed = x + attended
        inner = self.inner(self.between(summed))
        return summed + inner


class Model(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.embedding = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(VOCABULARY, WIDTH), a=-3, b=3)
        )
        rotary = Rotary(length, WIDTH // HEADS)
        self.layers = nn.ModuleList(Layer(rotary) for _ in range(LAYERS))
        self.norm, self.head = RmsNorm(WIDTH), Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        embedded = self.embedding[ids, :]
        x = embedded
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.head(x)


class AdamW(torch.optim.Optimizer):
    """As the course has it: new moments for every step, the old ones alive until the next parameter's."""

    def __init__(self, parameters):
        super().__init__(
            parameters, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
        )

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.data
                state = self.state[p]
                first, second = group["betas"]
                t = state.get("t", 1)
                rate = group["lr"] * math.sqrt(1 - second**t) / (1 - first**t)
                p.data -= group["lr"] * group["weight_decay"] * p.data
                last_m = state.get("m", torch.zeros_like(grad))
                last_v = state.get("v", torch.zeros_like(grad))
                m = first * last_m + ((1 - first) * grad)
                v = second * last_v + ((1 - second) * torch.square(grad))
                p.data -= rate * m / (torch.sqrt(v) + group["eps"])
                state["m"] = m
                state["v"] = v
                state["t"] = t + 1


parser = argparse.ArgumentParser()
parser.add_argument("task", choices=("train", "forward"))
parser.add_argument("--length", type=int, required=True)
parser.add_argument("--autocast", action="store_true")
args = parser.parse_args()

device = torch.device("cuda")
model = Model(args.length)
model.to(device)
optimizer = AdamW(model.parameters())


def draw(steps):
    return torch.randint(0, VOCABULARY, (steps, BATCH, args.length), device=device)


warm_inputs, inputs = draw(5), draw(1)
if args.task == "forward":
    model.eval()
    with torch.inference_mode():
        for ids in (*warm_inputs, *inputs):
            with torch.autocast("cuda", torch.bfloat16, enabled=args.autocast):
                model(ids)
    raise SystemExit
warm_targets, targets = draw(5), draw(1)
model.train()
for i in range(5):
    with torch.autocast("cuda", torch.bfloat16, enabled=args.autocast):
        output = model(warm_inputs[i])
        loss = cross_entropy(output, warm_targets[i])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
del output, loss
with torch.autocast("cuda", torch.bfloat16, enabled=args.autocast):
    output = model(inputs[0])
    loss = cross_entropy(output, targets[0])
loss.backward()
optimizer.step()
