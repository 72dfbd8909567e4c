#!/usr/bin/env python3
"""Loads exports of `cuboid checkpoint to-hf` in Hugging Face transformers and compares what both compute.

Each model of tests/data/oracle is trained for a few steps on a grid and exported. transformers then loads the folder,
and its loss on a batch and the L2 norm of every weight's gradient must be those of `cuboid train --weights FOLDER`:
a name, layout, tie or setting that one of them reads differently shows in one of these numbers.

    python3 -m venv hf && hf/bin/pip install torch transformers
    hf/bin/python tests/exports/check_with_transformers.py
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ORACLE = HERE.parent / "data" / "oracle"
ROWS, LENGTH = 8, 32
LOSS, NORM = 1e-5, 1e-4  # relative, as tests/data/oracle/README.md accepts of float32


def cuboid(a, *words):
    done = subprocess.run([a.cuboid, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"cuboid {' '.join(map(str, words))}\nended with status {done.returncode}:\n{done.stderr}")
    return done.stdout


def of_transformers(folder, tokens):
    import torch
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                       output_loading_info=True)
    for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[fault]:
            sys.exit(f"{folder}: transformers reports {fault}: {info[fault]}")
    model.eval()  # no dropout; gradients are the same
    model.get_input_embeddings().padding_idx = None  # or the padding token's row would get none from its inputs
    stream = torch.tensor(tokens[: ROWS * LENGTH + 1], dtype=torch.long)
    inputs, targets = stream[:-1].view(ROWS, LENGTH), stream[1:].view(ROWS, LENGTH)
    loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.item(), {name: weight.grad.double().norm().item() for name, weight in model.named_parameters()
                         if weight.grad is not None}


def check(a, model, folder):
    source = ORACLE / model
    data = ("--data", source / "tokens.bin", "--seq-len", LENGTH, "--global-batch", ROWS)
    cuboid(a, "train", "--model", source, "--weights", source, *data, "--steps", 3, "--tp", 2, "--pp", 2,
           "--checkpoint-every", 3, "--out", folder / "run")
    export = folder / "export"
    cuboid(a, "checkpoint", "to-hf", folder / "run", export)
    norms_file = folder / "norms.json"
    cuboid(a, "train", "--model", export, "--weights", export, *data, "--steps", 1, "--dump-grads", norms_file,
           "--out", folder / "again")
    ours = json.loads((folder / "again" / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    norms = json.loads(norms_file.read_text())
    raw = (source / "tokens.bin").read_bytes()
    theirs, their_norms = of_transformers(export, memoryview(raw).cast("H").tolist())
    faults = []
    if abs(ours - theirs) > LOSS * theirs:
        faults.append(f"loss {ours} here, {theirs} there")
    faults += [f"{name}: only one side has it" for name in norms.keys() ^ their_norms.keys()]
    largest = max(their_norms.values())
    for name in norms.keys() & their_norms.keys():
        # A key bias of a softmax has no gradient but rounding.
        if abs(norms[name] - their_norms[name]) > NORM * their_norms[name] + 1e-7 * largest:
            faults.append(f"{name}: norm {norms[name]} here, {their_norms[name]} there")
    print(f"{model}: loss {ours:.6f} and {theirs:.6f}, {len(norms)} gradients" + ("" if not faults else ": DIFFER"))
    for fault in faults:
        print("  " + fault)
    return not faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuboid", default=HERE.parent.parent / "build/bin/cuboid", help="the program")
    parser.add_argument("models", nargs="*", help="folders of tests/data/oracle (all)")
    a = parser.parse_args()
    good = True
    for model in a.models or sorted(p.name for p in ORACLE.iterdir() if (p / "model.safetensors").exists()):
        with tempfile.TemporaryDirectory() as folder:
            good = check(a, model, pathlib.Path(folder)) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
