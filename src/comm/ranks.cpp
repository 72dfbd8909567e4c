#include "cuboid/comm/ranks.h"

#include <exception>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <omp.h>
#include <pthread.h>

#include "cuboid/comm/recorder.h"

#include "cuda/nccl.h"
#include "group.h"

namespace cuboid {
namespace {

// The exception that made the run fail: the first that is not a mere consequence of another.
class FirstCause {
 public:
  explicit FirstCause(const std::vector<std::shared_ptr<Recorder>>& recorders) : recorders_(recorders) {}

  void record(int rank, const std::exception_ptr& cause, bool consequence) {
    const std::scoped_lock lock(mutex_);
    if (reports_.empty()) {  // before anybody is woken up to stop
      for (const auto& recorder : recorders_) reports_.push_back(recorder->report());
    }
    if (cause_ != nullptr && (consequence || !consequence_)) return;
    rank_ = rank;
    cause_ = cause;
    consequence_ = consequence;
  }

  /// Throws it again with the rank's number; does nothing if there is none.
  void rethrow_if_any(const RankOptions& options) const {
    if (cause_ == nullptr) return;
    if (options.on_failure) options.on_failure(reports_);
    const auto named = [&](const char* what) { return fmt::format("rank {}: {}", rank_, what); };
    try {
      std::rethrow_exception(cause_);
    } catch (const Error& error) {
      throw Error(error.kind(), named(error.what()));
    } catch (const std::logic_error& error) {
      throw std::logic_error(named(error.what()));
    } catch (const std::bad_alloc&) {
      throw Error(ErrorKind::failed, named("out of memory"));
    } catch (const std::exception& error) {
      throw Error(ErrorKind::failed, named(error.what()));
    } catch (...) {
      throw Error(ErrorKind::failed, named("an exception that is not a std::exception"));
    }
  }

 private:
  const std::vector<std::shared_ptr<Recorder>>& recorders_;
  std::mutex mutex_;
  std::vector<std::string> reports_;  // by rank
  int rank_ = 0;
  std::exception_ptr cause_;
  bool consequence_ = false;
};

void run_rank(int rank, const std::function<void(RankContext&)>& body, const RankOptions& options,
              const std::shared_ptr<detail::World>& world, const std::shared_ptr<detail::Group>& group,
              const std::shared_ptr<Recorder>& recorder, FirstCause& cause) {
  pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
  omp_set_num_threads(options.threads_per_rank);  // of this thread's parallel regions only
  set_recorder_of_this_thread(recorder.get());
  try {
    RankContext context;
    context.rank = rank;
    context.size = world->size();
    if (!options.gpus.empty()) context.device = Device::cuda(options.gpus.at(static_cast<std::size_t>(rank)));
    auto threads = detail::make_threads_communicator(world, group, rank, context.device, "world");
    const bool alone = std::set<int>(options.gpus.begin(), options.gpus.end()).size() <= 1;  // or none
    const auto communicator =
        traced(alone ? std::move(threads)
                     : detail::make_nccl_communicator(std::move(threads), context.device, options.deadline),
               recorder);
    context.world = communicator.get();
    body(context);
  } catch (const Aborted&) {
    cause.record(rank, std::current_exception(), true);
    world->abort();
  } catch (...) {
    cause.record(rank, std::current_exception(), false);
    world->abort();
  }
  world->mark_ended(rank);
}

}  // namespace

void run_ranks(int ranks, const std::function<void(RankContext&)>& body, const RankOptions& options) {
  CUBOID_CHECK(ranks >= 1, fmt::format("{} ranks", ranks));
  CUBOID_CHECK(options.threads_per_rank >= 1, fmt::format("{} threads per rank", options.threads_per_rank));
  CUBOID_CHECK(options.gpus.empty() || options.gpus.size() == static_cast<std::size_t>(ranks),
               fmt::format("{} GPUs for {} ranks", options.gpus.size(), ranks));
  CUBOID_CHECK(options.deadline > 0, fmt::format("deadline of {} s", options.deadline));
  const auto world = std::make_shared<detail::World>(ranks, options.deadline, options.threads_per_rank);
  std::vector<int> numbers(static_cast<std::size_t>(ranks));
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto group = std::make_shared<detail::Group>(world, std::move(numbers), "world");
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (int rank = 0; rank < ranks; ++rank) recorders.push_back(std::make_shared<Recorder>(rank));
  FirstCause cause(recorders);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      threads.emplace_back(
          [&, rank] { run_rank(rank, body, options, world, group, recorders[static_cast<std::size_t>(rank)], cause); });
    } catch (const std::system_error& error) {
      cause.record(
          rank,
          std::make_exception_ptr(Error(ErrorKind::failed, fmt::format("cannot start a thread: {}", error.what()))),
          false);
      world->abort();
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  cause.rethrow_if_any(options);
}

}  // namespace cuboid
