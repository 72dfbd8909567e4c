#include "cuboid/runtime/memory.h"

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <vector>

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

void MemoryAccount::add(Category category, std::int64_t bytes) {
  const auto i = static_cast<std::size_t>(category);
  raise(peak_[i], live_[i].fetch_add(bytes, std::memory_order_relaxed) + bytes);
  raise(peak_total_, live_total_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
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
    : memory_(std::move(memory)),
      account_(std::move(account)),
      category_(category),
      bytes_(bytes),
      data_(memory_->allocate(bytes_)) {
  account_->add(category_, static_cast<std::int64_t>(bytes_));
}

Buffer::~Buffer() {
  account_->add(category_, -static_cast<std::int64_t>(bytes_));
  memory_->release(data_, bytes_);
}

void Buffer::rehome(std::shared_ptr<MemorySource> memory, std::shared_ptr<MemoryAccount> account, Category category) {
  memory_ = std::move(memory);
  account_->add(category_, -static_cast<std::int64_t>(bytes_));
  account_ = std::move(account);
  category_ = category;
  account_->add(category_, static_cast<std::int64_t>(bytes_));
}

}  // namespace cuboid
