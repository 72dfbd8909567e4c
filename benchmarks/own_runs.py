#!/usr/bin/env python3
"""Predicted beside measured step time of eleven runs on this machine, with a cluster fitted here before.

Fits (`bench comm`, `bench step`), then trains every run some times in turn, and prints the median step beside the
prediction. Wants a machine that does nothing else: one other busy core and the comparison says nothing.

  benchmarks/own_runs.py [--cuboid build/bin/cuboid] [--cluster FILE.toml] [--steps 8] [--turns 3]
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

RUNS = [
    ("gpt2-nano", 128, 4, ""),
    ("gpt2-nano", 128, 4, "--tp 2"),
    ("gpt2-nano", 256, 4, "--tp 2 --sequence-parallel"),
    ("llama-nano", 128, 8, "--pp 2"),
    ("gpt2-nano", 128, 8, "--pp 2 --schedule zb-h1"),
    ("llama-nano", 256, 4, "--dp 2 --zero 1"),
    ("gpt2-micro", 128, 4, "--dp 2"),
    ("llama-micro", 128, 4, "--tp 2 --recompute full"),
    ("gpt2-nano", 128, 8, "--tp 2 --pp 2 --dp 2"),
    ("llama-nano", 128, 8, "--pp 2 --dp 2 --zero 1"),
    ("llama-nano", 512, 2, "--cp 2"),
]


def output_of(command):
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)}: {ended.stderr.strip()}")
    return ended.stdout


def fit(cuboid, path):
    output_of([cuboid, "bench", "comm", "--tp", "2", "--min-bytes", "16384", "--max-bytes", "4194304", "--seconds",
               "0.03", "--save", path])
    print(output_of([cuboid, "bench", "step", "--model", "gpt2-nano", "--seq-len", "64", "--rounds", "6", "--save",
                     path]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuboid", default="build/bin/cuboid")
    parser.add_argument("--cluster", help="fitted before; without it, it is fitted now")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = asked.cluster or os.path.join(folder, "here.toml")
        if not asked.cluster:
            fit(asked.cuboid, cluster)
        data = os.path.join(folder, "text.txt")
        pathlib.Path(data).write_text(pathlib.Path(__file__).read_text() * 8)
        seen = [[] for _ in RUNS]
        for _ in range(asked.turns):
            for i, (model, length, batch, flags) in enumerate(RUNS):
                seen[i].append(json.loads(output_of(
                    [asked.cuboid, "train", "--model", model, "--data", data, "--seq-len", str(length),
                     "--global-batch", str(batch), "--steps", str(asked.steps), "--cluster", cluster, "--json",
                     *flags.split()])))
    worst = 0
    print("| run | measured, ms | predicted, ms | error | of which |\n| --- | ---: | ---: | ---: | --- |")
    for (model, length, _, flags), results in zip(RUNS, seen):
        measured = statistics.median(r["step_seconds"] for r in results)
        predicted = results[0]["predicted_step_seconds"]
        causes = ", ".join(f"{k} {1e3 * v:.1f}" for k, v in results[0]["predicted_seconds"].items() if v > 1e-5)
        error = predicted / measured - 1
        worst = max(worst, abs(error))
        print(f"| {model}, {length} tokens {flags} | {1e3 * measured:.1f} | {1e3 * predicted:.1f} | {100 * error:+.0f} % "
              f"| {causes} |")
    print(f"largest error {100 * worst:.0f} %")


main()
