#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <emulated_cuda.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

// Of the machine. A function, since tests set it before main() begins.
std::atomic<int>& devices() {
  static std::atomic<int> count = [] {
    const char* const wanted = std::getenv("EMULATED_CUDA_DEVICES");
    return wanted == nullptr ? 1 : std::atoi(wanted);
  }();
  return count;
}

std::atomic<int> delay_microseconds = 0;
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int waits = 0;
thread_local int forget_after = 0;
thread_local int forget_count = 0;

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void must(bool condition, const char* what) {
  if (condition) return;
  std::perror(what);
  std::abort();
}

// One range of addresses for all devices, as with unified addressing. Pages exist when they are first written.
class DeviceMemory {
 public:
  DeviceMemory() {
    const int file = memfd_create("emulated device memory", 0);
    must(file >= 0 && ftruncate(file, static_cast<off_t>(kBytes)) == 0, "emulated device memory");
    const auto map = [&](int protection) {
      void* const at = mmap(nullptr, kBytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
      must(at != MAP_FAILED, "mapping emulated device memory");
      return static_cast<std::byte*>(at);
    };
    program_ = map(PROT_NONE);
    workers_ = map(PROT_READ | PROT_WRITE);
    close(file);
  }

  void* allocate(std::size_t bytes) {
    const std::size_t size = (std::max<std::size_t>(bytes, 1) + kUnit - 1) / kUnit * kUnit;
    const std::scoped_lock lock(mutex_);
    std::size_t at = next_;
    if (auto& free = free_[size]; !free.empty()) {
      at = free.back();
      free.pop_back();
    } else if (next_ + size > kBytes) {
      return nullptr;
    } else {
      next_ += size;
    }
    live_[at] = size;
    total_ += size;
    std::memset(workers_ + at, 0xff, size);
    return program_ + at;
  }

  bool release(void* pointer) {
    const std::scoped_lock lock(mutex_);
    const auto found = live_.find(static_cast<std::size_t>(static_cast<std::byte*>(pointer) - program_));
    if (found == live_.end()) return false;
    total_ -= found->second;
    free_[found->second].push_back(found->first);
    live_.erase(found);
    return true;
  }

  bool holds(const void* pointer) const {
    const auto* const p = static_cast<const std::byte*>(pointer);
    return p >= program_ && p < program_ + kBytes;
  }
  void* for_workers(const void* pointer) const {
    return workers_ + (static_cast<const std::byte*>(pointer) - program_);
  }
  std::size_t total() const {
    const std::scoped_lock lock(mutex_);
    return total_;
  }

  static constexpr std::size_t kBytes = std::size_t{16} << 30;

 private:
  static constexpr std::size_t kUnit = 512;
  std::byte* program_ = nullptr;
  std::byte* workers_ = nullptr;
  mutable std::mutex mutex_;
  std::size_t next_ = 0;
  std::size_t total_ = 0;
  std::map<std::size_t, std::size_t> live_;               // offset → size
  std::map<std::size_t, std::vector<std::size_t>> free_;  // size → offsets
};

DeviceMemory& memory() {
  static DeviceMemory* const instance = new DeviceMemory;  // outlives every stream
  return *instance;
}

// Host memory that copies read and write when their turn comes; from other host memory they do so at once.
class PinnedMemory {
 public:
  void* allocate(std::size_t bytes) {
    void* const made = std::malloc(bytes);
    const std::scoped_lock lock(mutex_);
    blocks_[static_cast<std::byte*>(made)] = bytes;
    return made;
  }
  void release(void* pointer) {
    const std::scoped_lock lock(mutex_);
    blocks_.erase(static_cast<std::byte*>(pointer));
    std::free(pointer);
  }
  bool holds(const void* pointer) {
    const std::scoped_lock lock(mutex_);
    auto* const p = static_cast<std::byte*>(const_cast<void*>(pointer));
    auto next = blocks_.upper_bound(p);
    if (next == blocks_.begin()) return false;
    --next;
    return p < next->first + next->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> blocks_;
};

PinnedMemory& pinned_memory() {
  static PinnedMemory* const instance = new PinnedMemory;
  return *instance;
}

using TimePoint = std::chrono::steady_clock::time_point;

// Whether the devices pass for parts of a GPU.
bool are_parts() {
  return std::getenv("EMULATED_CUDA_MIG") != nullptr;
}

// As nvidia-smi prints it.
std::string uuid_of(int device) {
  char text[48];
  std::snprintf(text, sizeof(text), "%s-00000000-0000-0000-0000-%012x", are_parts() ? "MIG" : "GPU",
                static_cast<unsigned>(device + 1));
  return text;
}

// The devices that CUDA_VISIBLE_DEVICES names, in its order.
std::vector<int> visible_devices() {
  std::vector<int> visible;
  const char* const wanted = std::getenv("CUDA_VISIBLE_DEVICES");
  if (wanted == nullptr) {
    for (int d = 0; d < devices(); ++d) visible.push_back(d);
    return visible;
  }
  std::istringstream words(wanted);
  for (std::string word; std::getline(words, word, ',');) {
    int found = -1;
    for (int d = 0; d < devices(); ++d) {
      if (word == std::to_string(d) || (word.size() > 4 && uuid_of(d).starts_with(word))) found = d;
    }
    if (found < 0) break;
    visible.push_back(found);
  }
  return visible;
}

bool is_visible(int device) {
  return device >= 0 && device < static_cast<int>(visible_devices().size());
}

// What is waited for asleep: a waiting stream must not take the core from those that work.
class Flag {
 public:
  void raise() {
    {
      const std::scoped_lock lock(mutex_);
      raised_ = true;
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return raised_; });
  }
  bool raised() {
    const std::scoped_lock lock(mutex_);
    return raised_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;
};

using Record = std::shared_ptr<Flag>;

}  // namespace

struct CUevent_st {
  std::mutex mutex;
  Record last;                                                      // of the last cudaEventRecord; null: none yet
  std::shared_ptr<TimePoint> when = std::make_shared<TimePoint>();  // a stream came to it
  Record get() {
    const std::scoped_lock lock(mutex);
    return last;
  }
};

struct CUstream_st {
  CUstream_st() : random(next_seed++), worker([this] { work(); }) {}
  ~CUstream_st() {
    push(nullptr);
    worker.join();
  }

  void push(std::function<void()> task) {
    {
      const std::scoped_lock lock(mutex);
      tasks.push_back(std::move(task));
    }
    changed.notify_all();
  }

  void synchronize() {
    const auto done = std::make_shared<Flag>();
    push([done] { done->raise(); });
    done->wait();
  }

 private:
  void work() {
    while (true) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !tasks.empty(); });
      const std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      if (!task) return;
      if (const int most = delay_microseconds; most > 0 && random() % 8 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(most)));
      }
      task();
    }
  }

  inline static std::atomic<unsigned> next_seed = 1;
  std::minstd_rand random;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  std::thread worker;
};

namespace emulated_cuda {

void set_devices(int count) {
  devices() = count;
}
void set_delay(int microseconds) {
  delay_microseconds = microseconds;
}
void forget_waits(int skip, int count) {
  waits = 0;
  forget_after = skip;
  forget_count = count;
}
int waits_made() {
  return waits;
}
void enqueue(cudaStream_t stream, std::function<void()> work) {
  stream->push(std::move(work));
}
void* for_workers(const void* pointer) {
  return memory().holds(pointer) ? memory().for_workers(pointer) : const_cast<void*>(pointer);
}
std::size_t allocated_bytes() {
  return memory().total();
}

}  // namespace emulated_cuda

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
  }
  return "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory"
         : error == cudaErrorNoDevice       ? "no CUDA-capable device is detected"
         : error == cudaErrorInvalidDevice  ? "invalid device ordinal"
                                            : "an error of the emulated device";
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(visible_devices().size());
  return report(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_visible(device)) return report(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, are_parts() ? "Emulated GPU MIG 1g.5gb" : "Emulated GPU");
  const int physical = visible_devices()[static_cast<std::size_t>(device)];
  properties->uuid.bytes[15] = static_cast<char>(physical + 1);
  properties->totalGlobalMem = DeviceMemory::kBytes;
  properties->multiProcessorCount = 1;
  properties->major = 9;
  properties->pciBusID = device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (!is_visible(device)) return report(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = DeviceMemory::kBytes;
  *free = *total - memory().total();
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  *pointer = memory().allocate(bytes);
  return report(*pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFree(void* pointer) {
  return report(pointer == nullptr || memory().release(pointer) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  *pointer = pinned_memory().allocate(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  pinned_memory().release(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const bool from_device = memory().holds(from);
  const bool to_device = memory().holds(to);
  const bool as_told = kind == cudaMemcpyDefault ||
                       (from_device ? to_device ? kind == cudaMemcpyDeviceToDevice : kind == cudaMemcpyDeviceToHost
                        : to_device ? kind == cudaMemcpyHostToDevice
                                    : kind == cudaMemcpyHostToHost);
  if (!as_told) return report(cudaErrorInvalidValue);
  void* const target = emulated_cuda::for_workers(to);
  if (!from_device && !pinned_memory().holds(from)) {
    const auto* const bytes_now = static_cast<const std::byte*>(from);
    const auto staged = std::make_shared<std::vector<std::byte>>(bytes_now, bytes_now + bytes);
    stream->push([=] { std::memcpy(target, staged->data(), bytes); });
    return cudaSuccess;
  }
  const void* const source = emulated_cuda::for_workers(from);
  stream->push([=] { std::memcpy(target, source, bytes); });
  if (!to_device && !pinned_memory().holds(to)) stream->synchronize();
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
  if (!memory().holds(pointer)) return report(cudaErrorInvalidValue);
  void* const target = emulated_cuda::for_workers(pointer);
  stream->push([=] { std::memset(target, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream->synchronize();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const int number = waits++;
  if (number >= forget_after && number < forget_after + forget_count) return cudaSuccess;
  if (const Record record = event->get()) stream->push([record] { record->wait(); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto record = std::make_shared<Flag>();
  {
    const std::scoped_lock lock(event->mutex);
    event->last = record;
  }
  stream->push([record, when = event->when] {
    *when = std::chrono::steady_clock::now();
    record->raise();
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Record record = event->get();
  return record && !record->raised() ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const Record record = event->get()) record->wait();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (!begin->get() || !end->get()) return report(cudaErrorInvalidResourceHandle);
  if (cudaEventQuery(begin) != cudaSuccess || cudaEventQuery(end) != cudaSuccess) return report(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(*end->when - *begin->when).count();
  return cudaSuccess;
}
