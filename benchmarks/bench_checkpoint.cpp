// Saving and opening checkpoints, beside what the disk and the training allow:
//
//   bench_checkpoint FOLDER [MODEL]     FOLDER: on the disk in question; MODEL: gpt2 (1.5 GB of weights and moments)
//
// 1. Two replicas save, in turns with dd, which writes as many bytes and syncs them, to the same folder.
// 2. One rank trains and saves in the background: steps that a save overlaps, from the call that begins it on, beside
//    the others of the same run. It takes a spare core.
// 3. A checkpoint of 100 files is opened: only headers are read.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/median.h"
#include "cuboid/formats/checkpoint.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/train/trainer.h"

namespace cuboid {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::uintmax_t bytes_in(const fs::path& folder) {
  std::uintmax_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) bytes += entry.file_size();
  return bytes;
}

/// Seconds that dd takes to write and sync `bytes`.
double dd_seconds(const fs::path& folder, std::uintmax_t bytes) {
  const fs::path file = folder / "dd";
  const std::string command = fmt::format("dd if=/dev/zero of='{}' bs=1M count={} conv=fsync 2>/dev/null",
                                          file.string(), (bytes + (1 << 20) - 1) >> 20);
  const auto begin = Clock::now();
  if (std::system(command.c_str()) != 0) throw Error(ErrorKind::failed, command + ": failed");
  const double seconds = seconds_since(begin);
  fs::remove(file);
  return seconds;
}

/// Tokens enough for a few samples.
std::string some_tokens(const fs::path& folder) {
  const fs::path path = folder / "text.txt";
  std::ofstream file(path);
  for (int i = 0; i < 20'000; ++i) file << i << ' ';
  return path;
}

RunConfig small_steps(const fs::path& folder) {
  RunConfig run;
  run.data.paths = {some_tokens(folder)};
  run.out = folder / "run";
  run.keep = 1;
  return run;
}

void measure_saves(const fs::path& folder, const ModelConfig& model, int saves) {
  RunConfig run = small_steps(folder);
  run.grid = Grid({{1, 1, 1, 2, 1}}, Grid::kDefaultOrder);
  run.seq_len = 8;
  run.global_batch = 2;
  run.steps = saves + 1;
  run.checkpoint_every = 1;
  std::vector<double> ours;
  std::vector<double> plain;
  std::uintmax_t bytes = 0;
  Clock::time_point begin;
  TrainEvents events;
  events.on_step = [&](const StepMetrics&) { begin = Clock::now(); };  // the save comes next
  events.on_checkpoint = [&](const Position& position, const std::string& path) {
    const double seconds = seconds_since(begin);
    bytes = bytes_in(path);
    if (position.step == 1) return;  // makes the folder and the first files
    ours.push_back(seconds);
    plain.push_back(dd_seconds(folder, bytes));
  };
  train(run, model, events);
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  fmt::print("{:.2f} GB, 2 ranks, {} saves: {:.2f} GB/s; dd: {:.2f} GB/s; {:.0f} % (medians)\n", gigabytes, ours.size(),
             gigabytes / median(ours), gigabytes / median(plain), 100 * median(plain) / median(ours));
}

void measure_background(const fs::path& folder, const ModelConfig& model, int saves, int every) {
  RunConfig run = small_steps(folder);
  run.seq_len = 128;
  run.global_batch = 2;
  run.steps = saves * every;
  run.checkpoint_every = every;
  run.async_save = true;
  std::vector<double> free;
  std::vector<double> first;  // overlapped by the first save, which allocates the memory of its copy
  std::vector<double> overlapped;
  std::vector<double> writes;
  bool in_flight = false;
  bool ending = false;
  Clock::time_point last;
  Clock::time_point save;
  TrainEvents events;
  events.on_step = [&](const StepMetrics& metrics) {
    const double seconds = seconds_since(last);
    last = Clock::now();
    const bool beside = in_flight || ending;
    if (metrics.step > 0) (!beside ? free : metrics.step < 2 * every ? first : overlapped).push_back(seconds);
    ending = false;
    if ((metrics.step + 1) % every == 0) {
      in_flight = true;
      save = last;
    }
  };
  // A write that has ended is seen, and made visible, after the step that it ended in.
  events.on_checkpoint = [&](const Position&, const std::string&) {
    in_flight = false;
    ending = true;  // what is left to do falls into the next step
    writes.push_back(seconds_since(save));
  };
  train(run, model, events);
  const auto mean = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  if (free.empty() || first.empty() || overlapped.empty()) {
    throw Error(ErrorKind::failed,
                fmt::format("{} free steps, {} overlapped: a save takes {:.1f} s, {} steps {:.1f} s", free.size(),
                            overlapped.size(), median(writes), every, every * mean(free.empty() ? overlapped : free)));
  }
  fmt::print(
      "background saves of {:.1f} s: {} steps overlapped, {:.3f} s each; {} others, {:.3f} s; {:+.1f} % (means)\n",
      median(writes), overlapped.size(), mean(overlapped), free.size(), mean(free),
      100 * (mean(overlapped) / mean(free) - 1));
  fmt::print("the first one, which makes the memory of its copy: {} steps overlapped, {:.3f} s each\n", first.size(),
             mean(first));
}

void measure_opening(const fs::path& folder, int files) {
  const fs::path path = folder / "shards";
  fs::create_directories(path);
  const ModelConfig model = load_model("gpt2-nano");
  const std::vector<float> numbers(1 << 18, 0.5F);
  const auto count = static_cast<std::int64_t>(numbers.size());
  CheckpointIndex index;
  for (int i = 0; i < files; ++i) {
    const SliceToWrite slice{fmt::format("weights/part{}", i), Shape{count}, {0, count, 0, 1}, numbers.data()};
    merge_index(index, write_checkpoint_file(path, fmt::format("rank_{:05}.safetensors", i), {&slice, 1}));
  }
  write_checkpoint_end(path, index, model, nullptr);
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    const auto begin = Clock::now();
    const Checkpoint opened = Checkpoint::open(path);
    seconds.push_back(seconds_since(begin));
    if (opened.index().files.size() < static_cast<std::size_t>(files))
      throw Error(ErrorKind::failed, "files are missing");
  }
  fmt::print("{} files, {} MB: opened in {:.1f} ms (median)\n", files, bytes_in(path) / 1'000'000,
             1e3 * median(seconds));
}

int run(int argc, char** argv) {
  if (argc < 2 || argc > 3) throw Error(ErrorKind::request, "bench_checkpoint FOLDER [MODEL]: see the source");
  const fs::path folder = fs::path(argv[1]) / "bench_checkpoint";
  const ModelConfig model = load_model(argc > 2 ? argv[2] : "gpt2");
  fs::remove_all(folder);
  fs::create_directories(folder);
  measure_saves(folder, model, 9);
  fs::remove_all(folder / "run");
  measure_background(folder, model, 3, 8);
  fs::remove_all(folder / "run");
  measure_opening(folder, 100);
  fs::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace cuboid

int main(int argc, char** argv) {
  try {
    return cuboid::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_checkpoint: %s\n", error.what());
    return 2;
  }
}
