#!/usr/bin/env python3
"""Fits the software parameters of the cluster presets to published runs.

    benchmarks/published/fit.py [--write] [--half SEED] [PRESET...]

For each preset named below, its parameters are moved until the predictions of `cuboid simulate --validate` agree best
with the measured step times of all the runs that the preset describes: least squares of log(predicted / measured) with
the soft L1 loss, so that a few odd runs do not decide, and a weak pull towards the present values, so that parameters
that no run tells about stay where they are. Of two runs of one sweep (one model, several grids) the one that was
measured slower should also be predicted slower, which a pair of runs in the wrong order adds to the loss. Gauss-Newton with numerical derivatives in the logarithms of the
parameters. --half fits on a random half of each preset's runs and reports the other half. --write stores the values in
launch/clusters. Needs nothing but Python; reads and writes the presets' own files, so that what ships is what was
fitted.
"""
import argparse, json, math, pathlib, random, re, subprocess, tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RUNS = HERE / "published-runs.json"
PROGRAM = ROOT / "build" / "bin" / "cuboid"
SCALE = 0.05   # errors beyond this count less than quadratically
ORDER = 0.7    # weight of a pair of runs in the wrong order, for a sweep of two
APART = 0.005  # a pair is in the right order if predicted so much apart, or as far as it was measured
PULL = 0.03    # weight of a parameter's change by a factor e, in units of an error of 100 %

# Parameters of each preset that its runs can tell: of [stack], or of a level ("fabric.efficiency"). Upper bounds.
SHARES = {"matmul-efficiency", "attention-efficiency", "attention-backward-efficiency", "memory-efficiency",
          "tp-overlap", "dp-overlap", "cp-overlap", "pp-overlap", "contention", "nvlink.efficiency",
          "fabric.efficiency"}
# Where the search starts if the preset says 0, whose logarithm there is not.
AWAY_FROM_ZERO = {"micro-batch-seconds": 1e-3, "step-seconds": 1e-2, "host-seconds": 2e-5, "contention": 0.1,
                  "jitter": 1e-3, "reserved-bytes": 1e9, "activation-factor": 1.0, "parameter-bytes": 2.0, "gradient-bytes": 4.0,
                  "logits-bytes": 6.0, "tp-overlap": 0.1, "dp-overlap": 0.1, "pp-overlap": 0.1}
SPEC = {
    "selene-2021": ["matmul-efficiency", "row-traffic"],
    "dgx-a100": ["matmul-efficiency", "row-traffic", "fabric.efficiency", "micro-batch-seconds"],
    "jean-zay": ["matmul-efficiency", "row-traffic", "misaligned-slowdown", "micro-batch-seconds", "host-seconds",
                 "matmul-fill", "nvlink.half-bandwidth-bytes", "nvlink.latency", "fabric.efficiency"],
    "jean-zay-bf16": ["matmul-efficiency", "row-traffic"],
    "vtrain-a100": ["matmul-efficiency", "row-traffic", "score-traffic", "host-seconds", "micro-batch-seconds"],
    "zero-bubble-a100": ["matmul-efficiency", "row-traffic", "score-traffic", "micro-batch-seconds",
                         "fabric.efficiency", "pp-overlap", "host-seconds", "matmul-fill"],
    "fsdp-a100": ["matmul-efficiency", "row-traffic", "attention-backward-efficiency", "dp-overlap", "contention"],
    "fsdp-a100-40gb": ["matmul-efficiency", "row-traffic", "attention-backward-efficiency", "dp-overlap",
                       "contention", "fabric.efficiency"],
    "fsdp-h100": ["matmul-efficiency", "row-traffic", "attention-backward-efficiency", "dp-overlap", "contention"],
    "dgx-h100": ["matmul-efficiency", "row-traffic", "attention-efficiency", "attention-backward-efficiency",
                 "tp-overlap", "micro-batch-seconds", "jitter"],
    "gb200-nvl72": ["matmul-efficiency", "row-traffic", "tp-overlap"],
    "hgx-b200": ["matmul-efficiency", "row-traffic", "attention-efficiency", "attention-backward-efficiency",
                 "matmul-fill", "nvlink.efficiency", "nvlink.half-bandwidth-bytes", "micro-batch-seconds",
                 "step-seconds"],
    "nanotron-h100": ["matmul-efficiency", "row-traffic", "dp-overlap", "bucket-bytes", "step-seconds",
                      "micro-batch-seconds", "fabric.efficiency", "fabric.latency", "jitter"],
    "pax-a100": ["matmul-efficiency", "step-seconds"],
    "pax-h100": ["matmul-efficiency", "row-traffic", "step-seconds"],
    "llmc-a100": ["matmul-efficiency", "row-traffic"],
}

# The same for memory, where sources publish it.
MEMORY = {
    "jean-zay": ["activation-factor", "reserved-bytes"],
    "jean-zay-bf16": ["reserved-bytes"],
    "zero-bubble-a100": ["activation-factor", "reserved-bytes"],
    "hgx-b200": ["activation-factor", "reserved-bytes"],
    "nanotron-h100": ["activation-factor", "logits-bytes", "reserved-bytes"],
}


class Preset:
    """A preset's file: values can be looked up and replaced, comments stay."""

    def __init__(self, name):
        self.path = ROOT / "launch" / "clusters" / f"{name}.toml"
        self.text = self.path.read_text()
        base = re.search(r'^base = "(.*)"', self.text, re.M)
        self.base = Preset(base[1]) if base else None

    def section(self, parameter):
        if "." in parameter:
            level, key = parameter.split(".")
            begin = self.text.index(f'[[levels]]\nname = "{level}"')
        else:
            key, begin = parameter, self.text.index("\n[stack]") + 1
        end = self.text.find("\n[", begin + 2)
        return key, begin, len(self.text) if end < 0 else end + 1

    def own_levels(self):
        """Copies the base's levels, so that a value of theirs can be set."""
        if "[[levels]]" not in self.text:
            self.base.own_levels()
            levels = self.base.text[self.base.text.index("\n[[levels]]"):self.base.text.index("\n[stack]")]
            self.text = self.text.replace("\n[stack]", levels + "\n[stack]")

    def get(self, parameter):
        if "." in parameter and "[[levels]]" not in self.text:
            return self.base.get(parameter)
        key, begin, end = self.section(parameter)
        found = re.search(rf"^{key} = (\S+)", self.text[begin:end], re.M)
        if found:
            return float(found[1])
        return self.base.get(parameter) if self.base else None

    def set(self, parameter, value):
        if "." in parameter:
            self.own_levels()
        key, begin, end = self.section(parameter)
        line = f"{key} = {value:.4g}"
        if re.fullmatch(r"\S+ = -?\d+", line):
            line += ".0"
        part, count = re.subn(rf"^{key} = \S+ *", line.ljust(34) + "  ", self.text[begin:end], count=1, flags=re.M)
        if count == 0:
            part = part.rstrip("\n") + "\n" + line.ljust(34) + "  # fitted\n" + ("\n" if end < len(self.text) else "")
        self.text = self.text[:begin] + re.sub(r" +$", "", part, flags=re.M) + self.text[end:]


def validate(runs, cluster_text=None):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "runs.json").write_text(json.dumps(runs))
        command = [PROGRAM, "simulate", "--json", "--validate", folder / "runs.json"]
        if cluster_text is not None:
            (folder / "cluster.toml").write_text(cluster_text)
            command += ["--cluster", folder / "cluster.toml"]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["runs"]


def errors(runs, text, quantity):
    return [math.log(run[f"predicted_{quantity}"] / run[f"measured_{quantity}"]) for run in validate(runs, text)]


def sweep_of(run):
    """As validate.cpp tells sweeps apart."""
    model, parallel = run["model"], run["parallel"]
    world = math.prod(parallel.get(axis) or 1 for axis in ("tp", "cp", "ep", "pp", "dp"))
    return (run["source"]["title"], run["hardware"]["gpu"], world, parallel["global_batch"], parallel.get("recompute"),
            *(model.get(key) for key in ("layers", "hidden", "heads", "ffn", "seq_len")))


def ordered_pairs(runs):
    """(slower, faster, weight) of runs of one sweep. A run's pairs weigh as much together as the run."""
    members = {}
    for i, run in enumerate(runs):
        members.setdefault(sweep_of(run), []).append(i)
    pairs = []
    for sweep in members.values():
        for a in sweep:
            for b in sweep:
                if runs[a]["step_seconds"] > runs[b]["step_seconds"]:
                    pairs.append((a, b, ORDER / math.sqrt(len(sweep) - 1)))
    return pairs


def disorder(pairs, measured, predicted_errors):
    """Residuals of pairs, from the logarithms of measured seconds and of predicted / measured."""
    out = []
    for slower, faster, weight in pairs:
        apart = measured[slower] - measured[faster]
        out.append(weight * max(0.0, min(apart, APART) - apart - predicted_errors[slower] + predicted_errors[faster]))
    return out


def solve(matrix, vector):
    """Gaussian elimination with pivoting."""
    n = len(vector)
    rows = [row[:] + [value] for row, value in zip(matrix, vector)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(n):
            if k != i:
                factor = rows[k][i] / rows[i][i]
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i])]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def loss(residuals, moved):
    soft = sum(2 * SCALE**2 * (math.sqrt(1 + (r / SCALE) ** 2) - 1) for r in residuals)
    return soft + sum((PULL * m) ** 2 for m in moved)


def fit(name, names, runs, quantity):
    preset = Preset(name)
    start = [math.log(preset.get(p) or AWAY_FROM_ZERO[p]) for p in names]
    bound = [0.0 if p in SHARES else 50.0 for p in names]

    pairs = ordered_pairs(runs) if quantity == "step_seconds" else []
    measured = [math.log(run["step_seconds"]) if pairs else 0.0 for run in runs]

    def residuals(x):
        for parameter, value in zip(names, x):
            preset.set(parameter, math.exp(value))
        of_runs = errors(runs, preset.text, quantity)
        return of_runs + disorder(pairs, measured, of_runs)

    low = [math.log(1e6) if p == "bucket-bytes" else -25.0 for p in names]
    x = start[:]
    now = residuals(x)
    damping = 1e-3
    for _ in range(12):
        columns = []
        for i in range(len(x)):
            step = -0.02 if x[i] > bound[i] - 0.02 else 0.02
            there = residuals(x[:i] + [x[i] + step] + x[i + 1:])
            columns.append([(b - a) / step for a, b in zip(now, there)])
        weight = [1 / math.sqrt(1 + (r / SCALE) ** 2) for r in now]
        moved = [a - b for a, b in zip(x, start)]
        normal = [[sum(w * a * b for w, a, b in zip(weight, ci, cj)) + (PULL**2 if i == j else 0)
                   for j, cj in enumerate(columns)] for i, ci in enumerate(columns)]
        slope = [-sum(w * a * r for w, a, r in zip(weight, c, now)) - PULL**2 * m for c, m in zip(columns, moved)]
        best = loss(now, moved)
        for _ in range(8):
            damped = [[v * (1 + damping if i == j else 1) for j, v in enumerate(row)] for i, row in enumerate(normal)]
            change = solve(damped, slope)
            trial = [max(l, min(b, a + max(-0.7, min(0.7, d)))) for a, d, b, l in zip(x, change, bound, low)]
            there = residuals(trial)
            if loss(there, [a - b for a, b in zip(trial, start)]) < best - 1e-9:
                gained = best - loss(there, [a - b for a, b in zip(trial, start)])
                x, now, damping = trial, there, damping / 5
                break
            damping *= 5
        else:
            break
        if gained < 1e-5:
            break
    residuals(x)
    return preset, dict(zip(names, map(math.exp, x)))


def report(label, runs, text, quantity):
    if not runs:
        return []
    relative = [abs(math.exp(e) - 1) for e in errors(runs, text, quantity)]
    print(f"  {label}: {len(runs)} runs, mean {100 * sum(relative) / len(relative):.1f} %, "
          f"largest {100 * max(relative):.1f} %")
    return relative


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*")
    parser.add_argument("--write", action="store_true", help="store the fitted values in launch/clusters")
    parser.add_argument("--half", type=int, metavar="SEED", help="fit on a random half, report the other")
    parser.add_argument("--memory", action="store_true", help="memory parameters, not those of time")
    options = parser.parse_args()
    spec, quantity = (MEMORY, "memory_bytes") if options.memory else (SPEC, "step_seconds")
    runs = json.loads(RUNS.read_text())
    described = {}
    for run, row in zip(runs, validate(runs)):
        if row[f"predicted_{quantity}"] and row[f"measured_{quantity}"]:
            described.setdefault(row["cluster"], []).append(run)
    totals = {"fitted": [], "held out": []}
    for name in options.presets or spec:
        chosen = described.get(name, [])
        fitted, held_out = chosen, []
        if options.half is not None:
            shuffled = random.Random(options.half).sample(chosen, len(chosen))
            fitted, held_out = shuffled[::2], shuffled[1::2]
        preset, values = fit(name, spec[name], fitted, quantity)
        print(name, {k: float(f"{v:.4g}") for k, v in values.items()})
        for label, part in ("fitted", fitted), ("held out", held_out):
            totals[label] += report(label, part, preset.text, quantity)
        if options.write:
            preset.path.write_text(preset.text)
    for label, relative in totals.items():
        if relative:
            print(f"all {label}: {len(relative)} runs, mean {100 * sum(relative) / len(relative):.1f} %")


if __name__ == "__main__":
    main()
