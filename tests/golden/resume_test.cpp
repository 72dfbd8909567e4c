// A run goes on from a checkpoint as if it had never stopped, on any grid: losses and weights against the unbroken run.
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuboid/formats/checkpoint.h"

#include "formats/files.h"
#include "harness.h"

namespace cuboid::golden {
namespace {

namespace fs = std::filesystem;

struct Case {
  Layout layout;
  int zero = 0;
};
const std::vector<Case> kCases = {{{}, 0},
                                  {{.tp = 2}, 0},
                                  {{.pp = 3, .schedule = "gpipe"}, 0},
                                  {{.dp = 4}, 1},
                                  {{.dp = 4}, 2},
                                  {{.dp = 4}, 3},
                                  {{.pp = 2, .dp = 2, .cp = 2}, 2},
                                  {{.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .micro_batch = 1}, 1}};

const std::vector<Case> kExpertCases = {
    {{.ep = 2}, 0}, {{.tp = 2}, 0}, {{.ep = 4}, 1}, {{.cp = 2, .ep = 2}, 1}, {{.pp = 2, .dp = 2, .ep = 2}, 3}};

constexpr int kSaved = 10;

RunConfig run_of(const Case& c, const std::string& model, const std::string& out) {
  Layout layout = c.layout;
  layout.model = model;
  RunConfig run = oracle_run(layout);
  run.zero = c.zero;
  run.bucket_bytes = 20'000;  // several buckets, whose cuts fall inside parameters
  run.dropout = 0.1;
  run.seed = 3;
  run.out = out;
  run.checkpoint_every = kSaved;
  return run;
}

struct Followed {
  std::vector<double> losses;
  TrainResult result;
};
Followed follow(const RunConfig& run, const Checkpoint* from = nullptr) {
  Followed followed;
  TrainEvents events;
  events.on_step = [&](const StepMetrics& m) { followed.losses.push_back(m.loss); };
  followed.result = train(run, oracle_model(fs::path(run.model).filename()), events, from);
  return followed;
}

// Only the pipeline degree, schedule and fabric leave every bit as it is.
bool same_bits(const Case& a, const Case& b) {
  return a.layout.tp == b.layout.tp && a.layout.dp == b.layout.dp && a.layout.ep == b.layout.ep &&
         a.layout.cp == b.layout.cp && a.layout.micro_batch == b.layout.micro_batch && a.zero == b.zero &&
         a.layout.sequence_parallel == b.layout.sequence_parallel;
}

// Saves on cases[i] for every i, resumes on those that `wanted` says, and compares with the unbroken run.
template <typename Wanted>
void resume_all(const std::string& model, const std::vector<Case>& cases, Wanted wanted) {
  const test::TemporaryFolder folder;
  std::vector<Followed> unbroken;
  const auto out = [&](std::size_t i) { return folder / fmt::format("run-{}", i); };
  for (std::size_t i = 0; i < cases.size(); ++i) unbroken.push_back(follow(run_of(cases[i], model, out(i))));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Checkpoint saved = Checkpoint::open(out(i) + "/checkpoints/" + checkpoint_name(kSaved));
    EXPECT_TRUE(saved.verify().empty());
    EXPECT_EQ(saved.index().samples, kSaved * 8);
    for (std::size_t j = 0; j < cases.size(); ++j) {
      if (!wanted(i, j)) continue;
      SCOPED_TRACE(fmt::format("{} from {} to {}", model, i, j));
      const Followed resumed = follow(run_of(cases[j], model, folder / "resumed"), &saved);
      ASSERT_EQ(resumed.losses.size(), unbroken[i].losses.size() - kSaved);
      EXPECT_EQ(resumed.result.first_step, kSaved);
      for (std::size_t s = 0; s < resumed.losses.size(); ++s) {
        const double loss = unbroken[i].losses[s + kSaved];
        EXPECT_LE(std::abs(resumed.losses[s] - loss), 1e-5 * loss) << "step " << s + kSaved;
        if (same_bits(cases[i], cases[j])) {
          EXPECT_EQ(resumed.losses[s], loss) << "step " << s + kSaved;
        }
      }
      if (same_bits(cases[i], cases[j])) {
        EXPECT_EQ(resumed.result.weights_hash, unbroken[i].result.weights_hash);
      }
    }
  }
}

// Each layout goes on on itself or its neighbour; the next test is the full product.
TEST(Resume, OnAnotherLayout) {
  const std::size_t n = kCases.size();
  resume_all("llama-odd", kCases,
             [n](std::size_t i, std::size_t j) { return j == (i + 1) % n || (i == n - 1 && j == i); });
}

// Takes a minute: for whoever changes checkpoints.
TEST(Resume, DISABLED_OnEveryOtherLayout) {
  for (const char* model : {"gpt2-tiny", "llama-tiny", "llama-odd"}) {
    resume_all(model, kCases, [](std::size_t, std::size_t) { return true; });
  }
}

TEST(Resume, ExpertsMoveToOtherRanks) {
  resume_all("mixtral-tiny", kExpertCases,
             [](std::size_t i, std::size_t j) { return j == (i + 1) % kExpertCases.size(); });
}

// The float32 masters are what is stored: a bfloat16 run goes on bit by bit, also on another pipeline; on other tensor
// and data axes, and in float32, it stays as near as such runs are to each other.
TEST(Resume, BFloat16GoesOnFromItsMasters) {
  const test::TemporaryFolder folder;
  const auto run_on = [&](const Layout& layout, const char* out) {
    RunConfig run = run_of({layout, layout.zero}, "llama-odd", folder / out);
    run.dtype = DType::bfloat16;
    return run;
  };
  const RunConfig first = run_on({}, "first");
  const Followed unbroken = follow(first);
  const Checkpoint saved = Checkpoint::open(folder / "first/checkpoints/" + checkpoint_name(kSaved));
  const auto expect_near = [&](const RunConfig& run, double tolerance) {
    const Followed resumed = follow(run, &saved);
    ASSERT_EQ(resumed.losses.size(), unbroken.losses.size() - kSaved);
    for (std::size_t s = 0; s < resumed.losses.size(); ++s) {
      EXPECT_NEAR(resumed.losses[s], unbroken.losses[s + kSaved], tolerance) << "step " << s + kSaved;
    }
    if (tolerance == 0) {
      EXPECT_EQ(resumed.result.weights_hash, unbroken.result.weights_hash);
    }
  };
  expect_near(run_on({}, "itself"), 0);
  expect_near(run_on({.pp = 3, .schedule = "zb-h1"}, "pipeline"), 0);
  expect_near(run_on({.tp = 2, .dp = 2, .sequence_parallel = true, .zero = 3}, "grid"), 5e-3);
  RunConfig wider = run_on({.dp = 2}, "float32");
  wider.dtype = DType::float32;
  expect_near(wider, 2e-2);
}

// In the background the same checkpoints come out, each visible before the next; none is lost at the end.
TEST(Resume, BackgroundSavesAreTheSame) {
  const test::TemporaryFolder folder;
  RunConfig run = run_of(kCases.back(), "gpt2-tiny", folder / "plain");
  run.steps = 6;
  run.checkpoint_every = 2;
  const Followed plain = follow(run);
  run.out = folder / "background";
  run.async_save = true;
  std::vector<std::int64_t> visible;
  TrainEvents events;
  events.on_checkpoint = [&](const Position& position, const std::string& path) {
    EXPECT_TRUE(fs::exists(path + "/index.json"));
    EXPECT_EQ(fs::read_symlink(fs::path(path).parent_path() / "latest"), fs::path(path).filename());
    visible.push_back(position.step);
  };
  const TrainResult result = train(run, oracle_model("gpt2-tiny"), events);
  EXPECT_EQ(result.weights_hash, plain.result.weights_hash);
  EXPECT_EQ(visible, (std::vector<std::int64_t>{2, 4, 6}));
  for (const char* step : {"step_00000002", "step_00000004", "step_00000006"}) {
    const Checkpoint a = Checkpoint::open(folder / "plain/checkpoints/" + step);
    const Checkpoint b = Checkpoint::open(folder / "background/checkpoints/" + step);
    ASSERT_EQ(a.index().tensors.size(), b.index().tensors.size());
    for (const auto& [name, tensor] : a.index().tensors) {
      EXPECT_EQ(a.read_whole(tensor), b.read_whole(*b.find_tensor(name))) << name;
    }
  }
}

// Another global batch goes on at the sample where the stored run stood; without moments the optimizer begins anew.
TEST(Resume, SamplesAndMomentsGoOn) {
  const test::TemporaryFolder folder;
  RunConfig run = run_of(kCases.front(), "gpt2-tiny", folder / "first");
  run.steps = 3;
  run.checkpoint_every = 3;
  run.dropout = 0;
  follow(run);
  const Checkpoint saved = Checkpoint::open(folder / "first");
  EXPECT_EQ(saved.index().optimizer_steps, 3);
  EXPECT_EQ(saved.index().samples, 24);
  EXPECT_EQ(saved.index().seed, 3U);

  run.out = folder / "second";
  run.global_batch = 4;  // 24 + 4 samples after one step
  run.steps = 4;
  run.checkpoint_every = 1;
  run.optimizer.kind = OptimizerKind::sgd;
  follow(run, &saved);
  const Checkpoint without = Checkpoint::open(folder / "second");
  EXPECT_EQ(without.index().samples, 28);
  EXPECT_EQ(without.find_tensor("exp_avg/embedding.weight"), nullptr);

  run.optimizer.kind = OptimizerKind::adamw;
  run.out = folder / "third";
  run.steps = 6;
  follow(run, &without);
  EXPECT_EQ(Checkpoint::open(folder / "third").index().optimizer_steps, 2);
  EXPECT_EQ(Checkpoint::open(folder / "third").index().samples, 36);
}

TEST(Resume, OtherModelsAreRefusedByName) {
  const test::TemporaryFolder folder;
  RunConfig run = run_of(kCases.front(), "gpt2-tiny", folder / "run");
  run.steps = 1;
  run.checkpoint_every = 1;
  follow(run);
  const Checkpoint saved = Checkpoint::open(folder / "run");
  const std::string message =
      test::refusal([&] { follow(run_of(kCases.front(), "llama-odd", folder / "other"), &saved); });
  test::expect_mentions(message, {"is not of this model", "weights/embedding.weight", "more such differences"});
}

}  // namespace
}  // namespace cuboid::golden
