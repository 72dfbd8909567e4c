#!/usr/bin/env python3
"""Trains the same GPT-2 and Llama shapes with cuboid and with PyTorch, alternating, and prints the ratios.

Same machine, threads, batch and sequence length; float32 and bfloat16; one rank, and two data-parallel ones (cuboid's
rank threads against two processes over Gloo). A round runs every variant once with each program, one after the other;
the figure of a run is the median of its steps without the first, that of a variant the median over rounds, and a ratio
is taken within a round. Compare only what one call printed.

    python3 benchmarks/compare/compare.py --threads 1 --rounds 3

Needs Python 3 with PyTorch. Where there is none:

    python3 -m venv torch && torch/bin/pip install torch numpy
    torch/bin/python benchmarks/compare/compare.py
"""

import argparse
import array
import importlib.util
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

SHAPES = {
    # GPT-2 124M.
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 12, "n_embd": 768, "n_head": 12,
        "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    },
    # A Llama of that size: grouped queries, SwiGLU, no biases, output matrix of its own.
    "llama": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 12, "hidden_size": 768,
        "num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 2048, "vocab_size": 32000,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
}


def run(words, threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\nended with status {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_cuboid(a, folder, shape, dtype, dp):
    out = folder / "run"
    result = run([a.cuboid, "train", "--model", folder / shape, "--data", folder / f"{shape}.bin",
                  "--seq-len", str(a.seq_len), "--micro-batch", str(a.batch), "--global-batch", str(a.batch * dp),
                  "--dp", str(dp), "--dtype", dtype, "--steps", str(a.steps), "--lr", "1e-4",
                  "--threads-per-rank", str(a.threads), "--out", out, "--json"], a.threads)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return result["params"], [json.loads(line)["step_seconds"] for line in lines]


def run_pytorch(a, folder, shape, dtype, dp):
    result = run([sys.executable, HERE / "pytorch_run.py", "--config", folder / shape / "config.json", "--dtype", dtype,
                  "--dp", str(dp), "--batch", str(a.batch), "--seq-len", str(a.seq_len), "--steps", str(a.steps),
                  "--threads", str(a.threads), "--port", str(free_port())], a.threads)
    return result["parameters"], result["seconds"]


def write_inputs(a, folder):
    draw = random.Random(1)
    for shape in a.shapes:
        (folder / shape).mkdir()
        (folder / shape / "config.json").write_text(json.dumps(SHAPES[shape]))
        count = a.steps * a.batch * max(a.dp) * a.seq_len + 1
        tokens = array.array("H", (draw.randrange(SHAPES[shape]["vocab_size"]) for _ in range(count)))
        (folder / f"{shape}.bin").write_bytes(tokens.tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuboid", default=HERE.parent.parent / "build/bin/cuboid", help="the program")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--dp", nargs="+", type=int, default=[1, 2], help="data-parallel ranks")
    for name, value, text in (("batch", 2, "sequences a rank and step"), ("seq-len", 512, "tokens of a sequence"),
                              ("steps", 4, "steps of a run; the first is not counted"),
                              ("rounds", 3, "runs of each variant"), ("threads", 1, "threads a rank")):
        parser.add_argument("--" + name, type=int, default=value, help=text + f" ({value})")
    a = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("PyTorch is not installed for this Python:\n\n" + __doc__[__doc__.index("    python3 -m venv"):])
    if a.steps < 2:
        sys.exit("--steps: at least 2, since the first is not counted")
    import torch
    print(f"PyTorch {torch.__version__}; {a.threads} thread(s) a rank, {a.batch} x {a.seq_len} tokens a rank and step, "
          f"{a.rounds} rounds of {a.steps - 1} steps")
    print(f"{'variant':28} {'cuboid s':>9} {'PyTorch s':>10} {'PyTorch / cuboid':>20}   ratio of each round")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_inputs(a, folder)
        variants = [(shape, dtype, dp) for shape in a.shapes for dtype in a.dtypes for dp in a.dp]
        measured = {variant: [] for variant in variants}
        for _ in range(a.rounds):
            for variant in variants:
                (mine, ours), (parameters, theirs) = run_cuboid(a, folder, *variant), run_pytorch(a, folder, *variant)
                if mine != parameters:
                    sys.exit(f"{variant[0]}: {mine} weights here, {parameters} in PyTorch: not the same shape")
                measured[variant].append((statistics.median(ours[1:]), statistics.median(theirs[1:])))
        for (shape, dtype, dp), rounds in measured.items():
            ours, theirs = (statistics.median(times) for times in zip(*rounds))
            ratios = [pytorch / cuboid for cuboid, pytorch in rounds]
            print(f"{f'{shape} {dtype} dp={dp}':28} {ours:9.3f} {theirs:10.3f} {statistics.median(ratios):19.2f}x   "
                  + ", ".join(f"{r:.2f}" for r in ratios))


if __name__ == "__main__":
    main()
