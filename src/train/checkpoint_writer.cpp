#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "cuboid/formats/durable.h"
#include "cuboid/train/checkpointing.h"

namespace cuboid {
namespace {

namespace fs = std::filesystem;

/// Every rank's text on every rank, in rank order.
std::vector<std::string> gather_texts(RankContext& context, const std::string& text) {
  constexpr std::int64_t kWord = sizeof(std::int64_t);
  const auto size = static_cast<std::int64_t>(text.size());
  const Device host = context.device.host();
  const Tensor longest = host.zeros({1}, DType::int64, Category::workspace);
  *longest.data<std::int64_t>() = size;
  all_reduce_in_place(*context.world, longest, ReduceOp::max);
  const std::int64_t words = 1 + (*longest.data<std::int64_t>() + kWord - 1) / kWord;  // size, then the text
  const Tensor mine = host.zeros({words}, DType::int64, Category::workspace);
  const Tensor all = host.zeros({words * context.size}, DType::int64, Category::workspace);
  *mine.data<std::int64_t>() = size;
  std::memcpy(mine.data<std::int64_t>() + 1, text.data(), text.size());
  context.world->all_gather(mine, all).wait();
  std::vector<std::string> texts;
  for (int rank = 0; rank < context.size; ++rank) {
    const std::int64_t* words_of_rank = all.data<std::int64_t>() + rank * words;
    texts.emplace_back(reinterpret_cast<const char*>(words_of_rank + 1), static_cast<std::size_t>(*words_of_rank));
  }
  return texts;
}

}  // namespace

/// A copy of this rank's part, and the thread that makes and writes it.
struct CheckpointWriter::Background {
  std::unique_ptr<float[]> numbers;  // not a vector: filling it with zeros first would cost as much as copying
  std::int64_t room = 0;             // of numbers, in elements
  OwnSlices own;                     // pointing into numbers, once copied
  CheckpointIndex part;
  std::exception_ptr fault;
  std::atomic<bool> copied = false;  // or never to be: see fault
  std::atomic<bool> done = false;
  std::thread thread;

  ~Background() {
    if (thread.joinable()) thread.join();
  }
  /// Copies what the slices point to, keeping the memory of an earlier copy.
  void copy() {
    std::int64_t total = 0;
    for (const SliceToWrite& slice : own.slices) total += slice.slice.elements();
    if (total > room) {
      numbers.reset();
      numbers = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(total));
      room = total;
    }
    float* to = numbers.get();
    for (SliceToWrite& slice : own.slices) {
      std::copy(slice.data, slice.data + slice.slice.elements(), to);
      slice.data = std::exchange(to, to + slice.slice.elements());
    }
  }
};

CheckpointWriter::CheckpointWriter(RankContext& context, const RunConfig& run, const ModelConfig& model,
                                   const ParameterStore& store, const Optimizer& optimizer, std::string folder,
                                   std::function<void(const Position&, const std::string&)> on_visible)
    : context_(context),
      run_(run),
      model_(model),
      store_(store),
      optimizer_(optimizer),
      folder_(std::move(folder)),
      on_visible_(std::move(on_visible)) {}

CheckpointWriter::~CheckpointWriter() = default;

std::string CheckpointWriter::temporary_folder() const {
  return (fs::path(folder_) / checkpoint_name(in_flight_->step)).string() + ".tmp";
}

void CheckpointWriter::begin(const Position& position) {
  in_flight_ = position;
  optimizer_steps_ = optimizer_.steps();
  if (context_.rank == 0) {
    std::error_code fault;
    fs::create_directories(folder_, fault);
    if (!fault) {
      remove_partial_checkpoints(folder_);
      fs::create_directory(temporary_folder(), fault);
    }
    if (fault) {
      throw Error(ErrorKind::failed, fmt::format("{}: cannot be created: {}", temporary_folder(), fault.message()));
    }
  }
  context_.world->barrier();
}

void CheckpointWriter::save(const Position& position) {
  finish();
  begin(position);
  OwnSlices own = slices_to_write(store_, optimizer_);
  if (!run_.async_save) return commit(write(own.slices));
  if (!background_) background_ = std::make_unique<Background>();
  Background& job = *background_;
  job.own = std::move(own);
  job.copied = false;
  job.done = false;
  job.fault = nullptr;
  job.thread = std::thread([this, &job] {
    const auto announce_copy = [&job] {
      job.copied = true;
      job.copied.notify_all();
    };
    try {
      job.copy();
      announce_copy();
      job.part = write(job.own.slices);
    } catch (...) {
      job.fault = std::current_exception();
      announce_copy();
    }
    job.done = true;
  });
}

void CheckpointWriter::before_update() {
  if (!in_flight_ || !background_) return;
  background_->copied.wait(false);
  background_->own.numbers.clear();
}

bool CheckpointWriter::writing() const {
  return in_flight_ && background_ && !background_->done;
}

void CheckpointWriter::finish() {
  if (removal_.valid()) removal_.get();
  if (!in_flight_) return;
  background_->thread.join();
  if (background_->fault) std::rethrow_exception(background_->fault);
  commit(background_->part);
}

CheckpointIndex CheckpointWriter::write(const std::vector<SliceToWrite>& slices) const {
  // A rank that owns nothing (all its elements are other ranks' to write) leaves no file.
  if (slices.empty()) return {};
  return write_checkpoint_file(temporary_folder(), fmt::format("rank_{:05}.safetensors", context_.rank), slices);
}

void CheckpointWriter::commit(const CheckpointIndex& part) {
  // Once all have sent their part, all files are on the disk.
  const std::vector<std::string> parts = gather_texts(context_, write_checkpoint_index(part));
  const Position position = *in_flight_;
  if (context_.rank == 0) {
    CheckpointIndex index;
    index.step = position.step;
    index.samples = position.samples;
    index.loss = position.loss;
    index.seed = run_.seed;
    index.optimizer_steps = optimizer_steps_;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      merge_index(index, read_partial_index(parts[rank], fmt::format("rank {}'s part of the index", rank)));
    }
    Problems problems;
    check_coverage(index, temporary_folder(), problems);
    CUBOID_CHECK(problems.empty(), "slices of a checkpoint: " + problems.reasons().front());
    write_checkpoint_end(temporary_folder(), std::move(index), model_, &run_);
    const std::string path = (fs::path(folder_) / checkpoint_name(position.step)).string();
    replace_folder(temporary_folder(), path);
    switch_link((fs::path(folder_) / Checkpoint::kLatestName).string(), checkpoint_name(position.step));
    const std::string latest = checkpoint_name(position.step);
    if (run_.async_save) {
      // The system takes a while to give back an old checkpoint's bytes: training need not wait for that.
      removal_ = std::async(std::launch::async, [this, latest] { remove_old(latest); });
    } else {
      remove_old(latest);
    }
    if (on_visible_) on_visible_(position, path);
  }
  // Nobody leaves, or saves again, before it is visible.
  context_.world->barrier();
  in_flight_.reset();
}

void CheckpointWriter::tidy() {
  if (removal_.valid()) removal_.get();
  std::error_code none;
  const fs::path latest = fs::read_symlink(fs::path(folder_) / Checkpoint::kLatestName, none);
  if (context_.rank != 0 || none) return;
  remove_partial_checkpoints(folder_);
  remove_old(latest.string());
}

void CheckpointWriter::remove_old(const std::string& latest) const {
  if (run_.keep == 0) return;
  const auto all = list_checkpoints(folder_);
  auto excess = static_cast<std::int64_t>(all.size()) - run_.keep;
  for (const std::string& path : all) {
    if (excess-- <= 0) break;
    // After a return to an earlier step, older runs' later checkpoints are the newest by number.
    if (fs::path(path).filename() != latest) remove_folder(path);
  }
}

}  // namespace cuboid
