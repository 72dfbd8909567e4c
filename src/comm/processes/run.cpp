// Rank threads of one process of a job, and how their failures become everybody's.
#include <exception>
#include <new>
#include <system_error>

#include <fmt/format.h>
#include <omp.h>
#include <pthread.h>

#include "../cuda/nccl.h"
#include "exchange.h"
#include "span_group.h"

namespace cuboid::detail {
namespace {

Failure failure_from(int rank, const std::string& name, const std::exception_ptr& cause) {
  const auto failure = [&](int kind, const std::string& what) {
    return Failure{rank, kind, fmt::format("{}: {}", name, what)};
  };
  constexpr int kFailed = static_cast<int>(ErrorKind::failed);
  try {
    std::rethrow_exception(cause);
  } catch (const Error& error) {
    return failure(static_cast<int>(error.kind()), error.what());
  } catch (const std::logic_error& error) {
    return failure(Failure::kLogic, error.what());
  } catch (const std::bad_alloc&) {
    return failure(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return failure(kFailed, error.what());
  } catch (...) {
    return failure(kFailed, "an exception that is not a std::exception");
  }
}

}  // namespace

void Exchange::report_exception(int rank, const std::exception_ptr& cause) {
  const bool hosts_differ = processes_of_host_ < processes();
  const std::string name = hosts_differ
                               ? fmt::format("rank {} on host {}", rank, hosts()[static_cast<std::size_t>(process())])
                               : fmt::format("rank {}", rank);
  const std::scoped_lock lock(mutex_);
  report(failure_from(rank, name, cause));
}

void Exchange::run_rank(int rank, const std::function<void(RankContext&)>& body, const RankOptions& options,
                        SpanGroup* group) {
  pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
  omp_set_num_threads(options.threads_per_rank);
  const auto recorder = run_->recorders[static_cast<std::size_t>(rank - process() * run_->ranks_per_process)];
  set_recorder_of_this_thread(recorder.get());
  try {
    RankContext context;
    context.rank = rank;
    context.size = run_->ranks;
    const auto local = static_cast<std::size_t>(rank - process() * run_->ranks_per_process);
    if (!options.gpus.empty()) context.device = Device::cuda(options.gpus.at(local));
    auto spanning = make_span_communicator(*group, rank, context.device, "world");
    const auto world =
        traced(options.gpus.empty() ? std::move(spanning)
                                    : make_nccl_communicator(std::move(spanning), context.device, options.deadline),
               recorder);
    context.world = world.get();
    body(context);
  } catch (const Aborted&) {
    run_->world->abort();
  } catch (...) {
    report_exception(rank, std::current_exception());
  }
  const std::scoped_lock lock(mutex_);
  // After a failure the abort must come first: an end is no news, and would pass for a cause.
  if (run_->stopped) return;
  run_->world->mark_ended(rank);
  for (int p = 0; p < run_->participants(); ++p) {
    if (p != process()) send(p, {.kind = ParcelKind::rank_ended, .from = rank});
  }
}

void Exchange::run(int ranks, int ranks_per_process, const std::function<void(RankContext&)>& body,
                   const RankOptions& options) {
  CUBOID_CHECK(ranks >= 1 && ranks_per_process >= 1 && ranks <= processes() * ranks_per_process,
               fmt::format("{} ranks, {} a process, for {} processes", ranks, ranks_per_process, processes()));
  SpanGroup* world = nullptr;
  int here = 0;
  {
    const std::scoped_lock lock(mutex_);
    begin_run(ranks, ranks_per_process, options);
    here = static_cast<int>(run_->recorders.size());
    if (here > 0) world = run_->groups.at(0).get();
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < here; ++i) {
    const int rank = process() * ranks_per_process + i;
    try {
      threads.emplace_back([&, rank] { run_rank(rank, body, options, world); });
    } catch (const std::system_error& error) {
      report_exception(rank, std::make_exception_ptr(
                                 Error(ErrorKind::failed, fmt::format("cannot start a thread: {}", error.what()))));
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  end_run(options);
}

}  // namespace cuboid::detail
