#include "cuboid/runtime/memory.h"

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include <fmt/format.h>

#include "cuboid/core/units.h"
#include "cuboid/runtime/memory_table.h"

#include "capacity.h"

namespace cuboid {
namespace {

// A line of the gradient norm (kernels::add_squares), and what CUDA's allocator gives.
constexpr std::size_t kAlignment = 256;

// Free blocks by capacity, shared by all ranks of the process: a buffer handed from rank to rank ends anywhere.
class HostMemory final : public MemorySource {
 public:
  void* allocate(std::size_t bytes) override {
    const std::size_t capacity = capacity_for(bytes);
    {
      const std::scoped_lock lock(mutex_);
      auto& blocks = free_[capacity];
      if (!blocks.empty()) {
        void* block = blocks.back();
        blocks.pop_back();
        return block;
      }
    }
    return ::operator new (capacity, std::align_val_t{kAlignment});
  }
  void release(void* block, std::size_t bytes) override {
    const std::scoped_lock lock(mutex_);
    free_[capacity_for(bytes)].push_back(block);
  }
  void copy(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void zero(void* data, std::size_t bytes) override { std::memset(data, 0, bytes); }
  ~HostMemory() override {
    for (auto& [capacity, blocks] : free_) {
      for (void* block : blocks) ::operator delete (block, std::align_val_t{kAlignment});
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> free_;
};

class MetaMemory final : public MemorySource {
 public:
  void* allocate(std::size_t) override { return nullptr; }
  void release(void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override { CUBOID_CHECK(false, "there is nothing to copy"); }
  void zero(void*, std::size_t) override { CUBOID_CHECK(false, "there is nothing to clear"); }
};

void raise(std::atomic<std::int64_t>& peak, std::int64_t value) {
  std::int64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

std::shared_ptr<MemorySource> host_memory() {
  static const auto instance = std::make_shared<HostMemory>();
  return instance;
}

std::shared_ptr<MemorySource> meta_memory() {
  static const auto instance = std::make_shared<MetaMemory>();
  return instance;
}

const char* name_of(Category category) {
  constexpr std::array<const char*, kCategoryCount> kNames = {"parameters",  "gradients",     "optimizer",
                                                              "activations", "communication", "workspace"};
  return kNames[static_cast<std::size_t>(category)];
}

bool MemoryLimit::take(std::int64_t bytes) {
  if (taken_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= bytes_) return true;
  give(bytes);
  return false;
}

void MemoryAccount::set_limit(std::shared_ptr<MemoryLimit> limit) {
  CUBOID_CHECK(!limit_, "the account has a limit");
  if (!limit->take(live_total_)) {
    throw MemoryExceeded(fmt::format("{}: is already passed\n{}", limit->source(), memory_table({{"held", live()}})));
  }
  limit_ = std::move(limit);
}

void MemoryAccount::add(Category category, std::int64_t bytes) {
  if (limit_ && !limit_->take(bytes)) {
    throw MemoryExceeded(fmt::format("{}: {} more for {} do not fit\n{}", limit_->source(),
                                     human_bytes(static_cast<std::uint64_t>(bytes)), name_of(category),
                                     memory_table({{"held", live()}, {"peak", peaks()}})));
  }
  const auto i = static_cast<std::size_t>(category);
  raise(peak_[i], live_[i].fetch_add(bytes, std::memory_order_relaxed) + bytes);
  raise(peak_total_, live_total_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}

void MemoryAccount::subtract(Category category, std::int64_t bytes) {
  live_[static_cast<std::size_t>(category)].fetch_sub(bytes, std::memory_order_relaxed);
  live_total_.fetch_sub(bytes, std::memory_order_relaxed);
  if (limit_) limit_->give(bytes);
}

MemoryUse MemoryAccount::live() const {
  MemoryUse use{.total = live_total_};
  for (std::size_t i = 0; i < kCategoryCount; ++i) use.bytes[i] = live_[i];
  return use;
}
MemoryUse MemoryAccount::peaks() const {
  MemoryUse use{.total = peak_total_};
  for (std::size_t i = 0; i < kCategoryCount; ++i) use.bytes[i] = peak_[i];
  return use;
}

void MemoryAccount::reset_peaks() {
  for (std::size_t i = 0; i < kCategoryCount; ++i) peak_[i] = live_[i].load();
  peak_total_ = live_total_.load();
}

std::int64_t MemoryAccount::live(Category category) const {
  return live_[static_cast<std::size_t>(category)];
}
std::int64_t MemoryAccount::peak(Category category) const {
  return peak_[static_cast<std::size_t>(category)];
}

Buffer::Buffer(std::shared_ptr<MemorySource> memory, std::shared_ptr<MemoryAccount> account, Category category,
               std::size_t bytes)
    : memory_(std::move(memory)), account_(std::move(account)), category_(category), bytes_(bytes), data_(nullptr) {
  account_->add(category_, static_cast<std::int64_t>(bytes_));
  try {
    data_ = memory_->allocate(bytes_);
  } catch (...) {
    account_->subtract(category_, static_cast<std::int64_t>(bytes_));
    throw;
  }
}

Buffer::~Buffer() {
  account_->subtract(category_, static_cast<std::int64_t>(bytes_));
  memory_->release(data_, bytes_);
}

void Buffer::rehome(std::shared_ptr<MemorySource> memory, std::shared_ptr<MemoryAccount> account, Category category) {
  const auto bytes = static_cast<std::int64_t>(bytes_);
  account->add(category, bytes);
  account_->subtract(category_, bytes);
  memory_ = std::move(memory);
  account_ = std::move(account);
  category_ = category;
}

}  // namespace cuboid
