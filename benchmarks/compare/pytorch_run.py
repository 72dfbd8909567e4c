"""Trains a GPT-2 or Llama shape with PyTorch on the CPU and prints the seconds of each step as JSON.

Started by compare.py. The model is written as one would write it in PyTorch: fused projections, scaled dot product
attention, cross-entropy over whole logits, AdamW (fused where this version has it on the CPU), gradients clipped to a
norm of 1. bfloat16 is autocast over float32 weights. More than one process: DistributedDataParallel over Gloo.
"""

import argparse
import json
import os
import time

import torch
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    """Root mean square norm."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (x.float() * scale).type_as(x) * self.weight


def attend(q, k, v):
    """Causal attention of (B, H, T, D); keys and values may have fewer heads."""
    if k.shape[1] != q.shape[1]:
        copies = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(copies, 1), v.repeat_interleave(copies, 1)
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


class Gpt2Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, self.heads = c["n_embd"], c["n_head"]
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, width = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(width, 2))
        x = x + self.out(attend(q, k, v).transpose(1, 2).reshape(b, t, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tokens = nn.Embedding(c["vocab_size"], c["n_embd"])
        self.positions = nn.Embedding(c["n_positions"], c["n_embd"])
        self.layers = nn.ModuleList(Gpt2Layer(c) for _ in range(c["n_layer"]))
        self.norm = nn.LayerNorm(c["n_embd"])
        self.head = nn.Linear(c["n_embd"], c["vocab_size"], bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class LlamaLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, self.heads, self.kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.dim, ffn = width // self.heads, c["intermediate_size"]
        self.norm1, self.norm2 = Norm(width, c["rms_norm_eps"]), Norm(width, c["rms_norm_eps"])
        self.qkv = nn.Linear(width, (self.heads + 2 * self.kv) * self.dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * ffn, bias=False), nn.Linear(ffn, width, bias=False)

    def forward(self, x, cos, sin):
        b, t, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, -1, self.dim).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv, self.kv], 1)

        def rotate(y):
            first, second = y.chunk(2, -1)
            return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).type_as(y)

        x = x + self.out(attend(rotate(q), rotate(k), v).transpose(1, 2).reshape(b, t, width))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(LlamaLayer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        half = c["hidden_size"] // c["num_attention_heads"] // 2
        self.frequencies = c["rope_theta"] ** (-torch.arange(half) / half)

    def forward(self, tokens):
        angles = torch.outer(torch.arange(tokens.shape[1]).float(), self.frequencies)
        x, cos, sin = self.tokens(tokens), angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def optimizer_of(model):
    try:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    except (RuntimeError, TypeError):  # this version fuses on GPUs only
        return torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)


def train(rank, a):
    torch.set_num_threads(a.threads)
    torch.manual_seed(rank)
    with open(a.config) as file:
        config = json.load(file)
    model = (Gpt2 if config["model_type"] == "gpt2" else Llama)(config)
    parameters = sum(p.numel() for p in model.parameters())
    wrapped = model
    if a.dp > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=a.dp)
        wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = optimizer_of(model)
    seconds = []
    for _ in range(a.steps):
        tokens = torch.randint(config["vocab_size"], (a.batch, a.seq_len + 1))
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "bfloat16"):
            logits = wrapped(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps({"seconds": seconds, "loss": loss.item(), "parameters": parameters}), flush=True)
    if a.dp > 1:
        torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="Hugging Face config.json")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    for name, value in (("dp", 1), ("batch", 1), ("seq-len", 512), ("steps", 4), ("threads", 1), ("port", 29511)):
        parser.add_argument("--" + name, type=int, default=value)
    a = parser.parse_args()
    if a.dp == 1:
        train(0, a)
    else:
        torch.multiprocessing.spawn(train, (a,), nprocs=a.dp)


if __name__ == "__main__":
    main()
