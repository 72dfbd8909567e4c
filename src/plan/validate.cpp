#include "cuboid/plan/validate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/formats/cluster_file.h"
#include "cuboid/plan/predict.h"
#include "cuboid/train/check.h"

namespace cuboid {
namespace {

/// Which preset describes the runs of a source.
struct Described {
  const char* source;  ///< the title begins with it
  const char* gpu;
  const char* cluster;
};
constexpr Described kDescribed[] = {
    {"Narayanan et al., Efficient Large-Scale", "A100-SXM4-80GB", "selene-2021"},
    {"Korthikanti et al., Reducing", "A100-SXM4-80GB", "dgx-a100"},
    {"NeMo-Framework-Launcher", "A100-SXM4-80GB", "dgx-a100"},
    {"BigScience tr11-176B", "A100-SXM4-80GB", "jean-zay"},
    {"VIA-Research vTrain", "A100-SXM4-80GB", "vtrain-a100"},
    {"GPT-NeoX-20B", "A100-SXM4-40GB", "neox-a100-40gb"},
    {"Zero Bubble Pipeline Parallelism", "A100-SXM4-80GB", "zero-bubble-a100"},
    {"MosaicML llm-foundry", "A100-SXM4-40GB", "fsdp-a100-40gb"},
    {"MosaicML llm-foundry", "A100-SXM4-80GB", "fsdp-a100"},
    {"MosaicML llm-foundry", "H100-SXM5-80GB", "fsdp-h100"},
    {"NVIDIA dgxc-benchmarking", "H100-SXM5-80GB", "dgx-h100"},
    {"NVIDIA dgxc-benchmarking", "GB200", "gb200-nvl72"},
    {"NVIDIA JAX-Toolbox Pax", "A100-SXM4-80GB", "pax-a100"},
    {"NVIDIA JAX-Toolbox Pax", "H100-SXM5-80GB", "pax-h100"},
    {"SimuMax B200", "B200", "hgx-b200"},
    {"nanotron", "H100-SXM5-80GB", "nanotron-h100"},
    {"karpathy/llm.c", "A100-SXM4-80GB", "llmc-a100"},
};

void add(ErrorSummary& summary, double error) {
  ++summary.runs;
  summary.mean += std::abs(error);
  summary.bias += error;
  summary.largest = std::max(summary.largest, std::abs(error));
}

void finish(ErrorSummary& summary) {
  if (summary.runs == 0) return;
  summary.mean /= summary.runs;
  summary.bias /= summary.runs;
}

// Ranks from 1, equal values sharing their mean rank.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<double> ranks;
  for (const double value : values) {
    const auto below = std::count_if(values.begin(), values.end(), [&](double v) { return v < value; });
    const auto equal = std::count(values.begin(), values.end(), value);
    ranks.push_back(static_cast<double>(below) + (static_cast<double>(equal) + 1) / 2);
  }
  return ranks;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double both = 0, only_a = 0, only_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    both += (a[i] - mean_a) * (b[i] - mean_b);
    only_a += (a[i] - mean_a) * (a[i] - mean_a);
    only_b += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return only_a > 0 && only_b > 0 ? both / std::sqrt(only_a * only_b) : 0;
}

using SweepKey = std::tuple<std::string, std::string, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                            std::int64_t, int, int, Recompute>;

SweepKey sweep_key(const PublishedRun& run) {
  // The padded vocabulary differs with tp; heads change the model.
  return {run.source,           run.gpu,          run.model.layers,    run.model.hidden,
          run.model.heads,      run.model.ffn,    run.model.positions, run.run.grid.world(),
          run.run.global_batch, run.run.recompute};
}

Sweep judge_sweep(const std::vector<const ValidatedRun*>& runs) {
  Sweep sweep;
  sweep.source = runs.front()->run.source;
  sweep.first_id = runs.front()->run.id;
  sweep.runs = static_cast<int>(runs.size());
  std::vector<double> measured, predicted;
  for (const ValidatedRun* run : runs) {
    measured.push_back(*run->run.step_seconds);
    predicted.push_back(run->step_seconds);
  }
  sweep.spearman = correlation(ranks_of(measured), ranks_of(predicted));
  const auto best = static_cast<std::size_t>(std::min_element(measured.begin(), measured.end()) - measured.begin());
  sweep.best_ranked = 1 + static_cast<int>(std::count_if(predicted.begin(), predicted.end(),
                                                         [&](double p) { return p < predicted[best]; }));
  return sweep;
}

// A sweep needs three different grids: repetitions of one say nothing about a choice.
bool differ(const std::vector<const ValidatedRun*>& runs) {
  std::vector<double> predicted;
  for (const ValidatedRun* run : runs) predicted.push_back(run->step_seconds);
  std::sort(predicted.begin(), predicted.end());
  return std::unique(predicted.begin(), predicted.end()) - predicted.begin() >= 3;
}

void judge_sweeps(Validation& validation) {
  std::map<SweepKey, std::vector<const ValidatedRun*>> sweeps;
  for (const ValidatedRun& run : validation.runs) {
    if (run.why_not.empty() && run.run.step_seconds) sweeps[sweep_key(run.run)].push_back(&run);
  }
  for (const auto& [key, runs] : sweeps) {
    if (differ(runs)) validation.sweeps.push_back(judge_sweep(runs));
  }
  for (const Sweep& sweep : validation.sweeps) validation.mean_spearman += sweep.spearman;
  if (!validation.sweeps.empty()) validation.mean_spearman /= static_cast<double>(validation.sweeps.size());
}

void summarize(Validation& validation) {
  for (const ValidatedRun& run : validation.runs) {
    if (!run.why_not.empty()) {
      ++validation.not_predicted;
      continue;
    }
    if (run.run.out_of_memory) {
      ++validation.out_of_memory;
      validation.called_infeasible += !run.feasible;
    }
    if (run.run.step_seconds) {
      add(validation.step, run.error());
      add(validation.by_source[run.run.source], run.error());
    }
    if (run.run.memory_bytes) {
      add(validation.memory, run.memory_error());
      validation.memory_within += std::abs(run.memory_error()) <= kMemoryTolerance;
    }
  }
  finish(validation.step);
  finish(validation.memory);
  for (auto& [source, summary] : validation.by_source) finish(summary);
  judge_sweeps(validation);
}

class Clusters {
 public:
  explicit Clusters(const std::vector<Cluster>& given) : given_(given) {}

  const Cluster& of(const std::string& name) {
    for (const Cluster& cluster : given_) {
      if (cluster.name == name) return cluster;
    }
    const auto found = loaded_.find(name);
    return found != loaded_.end() ? found->second : loaded_.emplace(name, load_cluster(name)).first->second;
  }

 private:
  const std::vector<Cluster>& given_;
  std::map<std::string, Cluster> loaded_;
};

// Embedding or head alone on a stage is what some programs do; this one trains with a layer on every stage, so that
// such runs are only predicted.
void check_published(const PublishedRun& published, Problems& problems) {
  RunConfig run = published.run;
  const bool empty_stage = std::count(run.stage_layers.begin(), run.stage_layers.end(), 0) > 0;
  if (empty_stage) {
    run.stage_layers.clear();
    run.schedule = "1f1b";
    run.virtual_stages = 0;
  }
  check_layout(published.model, run, problems);
}

void predict_run(ValidatedRun& out, Clusters& clusters) {
  out.cluster = cluster_of(out.run);
  if (out.cluster.empty()) {
    out.why_not = fmt::format("no preset describes {} of {}", out.run.gpu, out.run.source);
    return;
  }
  const Cluster& cluster = clusters.of(out.cluster);
  Problems problems;
  check_published(out.run, problems);
  check_cluster(cluster, out.run.run, problems);
  if (!problems.empty()) {
    out.why_not = problems.reasons().front();
    return;
  }
  const StepPrediction prediction = Predictor(out.run.model, cluster).predict(out.run.run);
  out.step_seconds = prediction.step_seconds;
  out.memory_bytes = prediction.memory().total();
  out.feasible = prediction.feasible;
}

}  // namespace

std::string cluster_of(const PublishedRun& run) {
  for (const Described& row : kDescribed) {
    if (run.gpu != row.gpu || !run.source.starts_with(row.source)) continue;
    // SC21's ZeRO-3 baseline is DeepSpeed; BLOOM's bfloat16 optimizer keeps gradients in float32.
    if (run.source.starts_with("Narayanan") && run.run.zero == 3) return "fsdp-a100";
    if (run.precision == "bf16 with fp32 grad accumulation") return "jean-zay-bf16";
    return row.cluster;
  }
  return "";
}

Validation validate(const std::vector<PublishedRun>& runs, const std::vector<Cluster>& given) {
  Clusters clusters(given);
  Validation validation;
  for (const PublishedRun& run : runs) {
    ValidatedRun& out = validation.runs.emplace_back();
    out.run = run;
    predict_run(out, clusters);
  }
  summarize(validation);
  return validation;
}

}  // namespace cuboid
