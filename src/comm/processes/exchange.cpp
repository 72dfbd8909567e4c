#include "exchange.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "span_group.h"

namespace cuboid::detail {
namespace {

// Silence after which a process counts as lost. Its sign of life comes from a thread that does nothing else.
constexpr double kLostAfter = 5.0;
// How long process 0 waits after a failure for what the others were doing.
constexpr double kGrace = 3.0;
constexpr char kEndOfReport = '\f';

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string text_of(const Parcel& parcel) {
  return {reinterpret_cast<const char*>(parcel.data()), static_cast<std::size_t>(parcel.header.bytes)};
}

Failure failure_in(const Parcel& parcel) {
  return {parcel.header.from, parcel.header.tag, text_of(parcel)};
}

int spins_for(int processes_of_host) {
  return processes_of_host <= static_cast<int>(std::thread::hardware_concurrency()) ? 200 : 10;
}

}  // namespace

void Failure::raise() const {
  if (kind == kLogic) throw std::logic_error(text);
  throw Error(static_cast<ErrorKind>(kind), text);
}

int Failure::exit_status() const {
  return Error(kind == kLogic ? ErrorKind::failed : static_cast<ErrorKind>(kind), "").exit_status();
}

Exchange::Exchange(std::unique_ptr<Transport> transport)
    : transport_(std::move(transport)), heard_(hosts().size(), Clock::now()), lost_(hosts().size()) {
  const std::string& own = hosts()[static_cast<std::size_t>(process())];
  processes_of_host_ = static_cast<int>(std::count(hosts().begin(), hosts().end(), own));
  spins_ = spins_for(processes_of_host_);
  background_ = std::thread([this] { work_in_background(); });
}

Exchange::~Exchange() {
  ending_ = true;
  if (background_.joinable()) background_.join();
}

std::shared_ptr<Buffer> Exchange::buffer(std::size_t bytes) const {
  return std::make_shared<Buffer>(host_memory(), account_, Category::communication, bytes);
}

void Exchange::send(int process, Header header, const std::byte* payload, std::shared_ptr<Buffer> keep) {
  if (lost_[static_cast<std::size_t>(process)]) return;
  if (header.run == 0) header.run = run_ ? run_->number : runs_;
  transport_->send(process, header, payload, std::move(keep));
}

void Exchange::send_text(int process, Header header, const std::string& text) {
  header.bytes = static_cast<std::int64_t>(text.size());
  const auto payload = buffer(text.size());
  std::memcpy(payload->data(), text.data(), text.size());
  send(process, header, static_cast<const std::byte*>(payload->data()), payload);
}

void Exchange::enroll(const std::shared_ptr<SpanGroup>& group) {
  run_->groups[group->id()] = group;
  auto waiting = run_->unclaimed.extract(group->id());
  if (waiting.empty()) return;
  for (Parcel& parcel : waiting.mapped()) group->handle(parcel);
}

bool Exchange::poll() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && poll_locked();
}

bool Exchange::poll_locked() {
  arrived_.clear();
  const bool moved = transport_->poll(arrived_);
  for (Parcel& parcel : arrived_) dispatch(std::move(parcel));
  return moved;
}

void Exchange::dispatch(Parcel parcel) {
  heard_[static_cast<std::size_t>(parcel.process)] = Clock::now();
  const Header& header = parcel.header;
  if (header.kind == ParcelKind::heartbeat) return;
  if (header.kind == ParcelKind::farewell) {
    farewell_ = true;
    return;
  }
  const std::uint32_t now = run_ ? run_->number : runs_ + 1;
  if (header.run < now) return;  // left over from a run that failed
  if (header.run > now || !run_) {
    early_.push_back(std::move(parcel));
    return;
  }
  if (header.kind > ParcelKind::message) return dispatch_of_run(parcel);
  const auto group = run_->groups.find(header.group);
  if (group != run_->groups.end()) return group->second->handle(parcel);
  run_->unclaimed[header.group].push_back(std::move(parcel));
}

void Exchange::dispatch_of_run(const Parcel& parcel) {
  switch (parcel.header.kind) {
    case ParcelKind::rank_ended:
      return run_->world->mark_ended(parcel.header.from);
    case ParcelKind::failure:
      return note_failure(failure_in(parcel));
    case ParcelKind::abort: {
      stop_run();
      send_text(0, {.kind = ParcelKind::state}, run_->own_state);
      return;
    }
    case ParcelKind::state:
      run_->states[static_cast<std::size_t>(parcel.process)] = text_of(parcel);
      return;
    case ParcelKind::done:
      run_->done[static_cast<std::size_t>(parcel.process)] = true;
      return;
    case ParcelKind::outcome:
      run_->well = parcel.header.tag < 0;
      run_->outcome = failure_in(parcel);
      if (!run_->well) stop_run();
      run_->over = true;
      return;
    default:
      return;
  }
}

// Keeps what the ranks were doing, then wakes them up to stop.
void Exchange::stop_run() {
  if (run_->stopped) return;
  run_->stopped = true;
  run_->failed_at = Clock::now();
  for (const auto& recorder : run_->recorders) {
    run_->own_state += recorder->report() + kEndOfReport;
  }
  run_->world->abort();
}

// A rank of this process, or the process itself, has failed.
void Exchange::report(const Failure& failure) {
  if (process() == 0) return note_failure(failure);
  send_text(0, {.kind = ParcelKind::failure, .from = failure.rank, .tag = failure.kind}, failure.text);
  stop_run();
}

// On process 0: the first to come is the first cause; everybody stops.
void Exchange::note_failure(const Failure& failure) {
  if (run_->failed) return;
  run_->failed = true;
  run_->cause = failure;
  for (int p = 1; p < run_->participants(); ++p) send(p, {.kind = ParcelKind::abort});
  stop_run();
}

void Exchange::begin_run(int ranks, int ranks_per_process, const RankOptions& options) {
  auto run = std::make_unique<Run>();
  run->number = runs_ + 1;
  run->ranks = ranks;
  run->ranks_per_process = ranks_per_process;
  const int busy = std::min(processes_of_host_ * ranks_per_process, ranks);
  run->world = std::make_shared<World>(ranks, options.deadline, options.threads_per_rank, busy);
  run->done.resize(hosts().size());
  run->states.resize(hosts().size());
  std::vector<int> numbers;
  for (int r = 0; r < ranks; ++r) numbers.push_back(r);
  const int first = process() * ranks_per_process;
  for (int r = first; r < std::min(first + ranks_per_process, ranks); ++r) {
    run->recorders.push_back(std::make_shared<Recorder>(r));
  }
  run_ = std::move(run);
  if (!run_->recorders.empty()) {
    enroll(std::make_shared<SpanGroup>(*this, run_->world, std::move(numbers), ranks_per_process, 0, "world"));
  }
  std::fill(heard_.begin(), heard_.end(), Clock::now());
  for (Parcel& parcel : std::exchange(early_, {})) dispatch(std::move(parcel));
}

void Exchange::conclude_if_due() {
  if (run_->over || process() != 0) return;
  bool all_done = true;
  for (int p = 0; p < run_->participants(); ++p) {
    all_done = all_done && (run_->done[static_cast<std::size_t>(p)] || lost_[static_cast<std::size_t>(p)]);
  }
  const bool overdue = run_->failed && seconds_between(run_->failed_at, Clock::now()) > kGrace;
  if (!all_done && !overdue) return;
  run_->well = !run_->failed;
  run_->outcome = run_->cause;
  Header header{.kind = ParcelKind::outcome, .from = run_->cause.rank, .tag = run_->well ? -1 : run_->cause.kind};
  for (int p = 1; p < processes(); ++p) {
    send_text(p, header, run_->cause.text);
  }
  run_->over = true;
}

void Exchange::end_run(const RankOptions& options) {
  {
    const std::scoped_lock lock(mutex_);
    if (process() == 0) {
      run_->done[0] = true;
      run_->states[0] = run_->own_state;
    } else if (process() < run_->participants()) {
      send(0, {.kind = ParcelKind::done});
    }
  }
  while (!run_->over) {
    const bool moved = poll();
    {
      const std::scoped_lock lock(mutex_);
      conclude_if_due();
    }
    if (!moved && !run_->over) std::this_thread::sleep_for(std::chrono::microseconds(kLongestSleep));
  }
  std::unique_ptr<Run> run;
  {
    const std::scoped_lock lock(mutex_);
    run = std::exchange(run_, nullptr);
    ++runs_;
  }
  if (run->well) return;
  if (speaks() && options.on_failure) {
    run->states[static_cast<std::size_t>(process())] = run->own_state;
    std::vector<std::string> reports;
    for (const std::string& state : run->states) {
      for (std::size_t at = 0, end = 0; (end = state.find(kEndOfReport, at)) != std::string::npos; at = end + 1) {
        reports.push_back(state.substr(at, end - at));
      }
    }
    options.on_failure(reports);
  }
  run->outcome.raise();
}

std::string Exchange::describe_process(int p) const {
  std::string text = fmt::format("process {}", p);
  if (run_) {
    const int first = p * run_->ranks_per_process;
    const int last = std::min(first + run_->ranks_per_process, run_->ranks) - 1;
    text = first == last ? fmt::format("rank {}", first) : fmt::format("process {} (ranks {}-{})", p, first, last);
  }
  return text + " on host " + hosts()[static_cast<std::size_t>(p)];
}

void Exchange::watch_others(double since_last) {
  // Whoever could not watch knows nothing of the others' silence.
  if (!run_ || run_->over || since_last > 1.0) {
    std::fill(heard_.begin(), heard_.end(), Clock::now());
    return;
  }
  const int last = process() == 0 ? run_->participants() - 1 : 0;
  for (int p = process() == 0 ? 1 : 0; p <= last; ++p) {
    const double silent = seconds_between(heard_[static_cast<std::size_t>(p)], Clock::now());
    if (silent < kLostAfter || lost_[static_cast<std::size_t>(p)]) continue;
    lost_[static_cast<std::size_t>(p)] = true;
    const Failure failure{p * run_->ranks_per_process, static_cast<int>(ErrorKind::failed),
                          fmt::format("{} has given no sign of life for {:.1f} s: it was killed or stopped, or its "
                                      "host cannot be reached",
                                      describe_process(p), silent)};
    if (process() == 0) {
      note_failure(failure);
    } else {  // nobody is left to decide for all
      stop_run();
      run_->well = false;
      run_->outcome = failure;
      run_->over = true;
    }
  }
}

bool Exchange::speaks() const {
  return process() == 0 || (process() == 1 && lost_[0]);
}

void Exchange::refuse(const std::string& why) {
  const std::scoped_lock lock(mutex_);
  const bool first = process() == 0;
  const std::string text = first ? why : fmt::format("{}: {}", describe_process(process()), why);
  Header header{.kind = first ? ParcelKind::outcome : ParcelKind::failure, .run = runs_ + 1, .from = -1};
  header.tag = static_cast<int>(ErrorKind::request);
  for (int p = first ? 1 : 0; p < (first ? processes() : 1); ++p) {
    send_text(p, header, text);
  }
  if (!first) send(0, {.kind = ParcelKind::done, .run = runs_ + 1});
}

void Exchange::leave(int status) {
  // Others may wait for what is still on its way.
  const auto drain = [this](double seconds, auto over) {
    const auto start = Clock::now();
    while (seconds_between(start, Clock::now()) < seconds) {
      {
        const std::scoped_lock lock(mutex_);
        poll_locked();
        if (transport_->idle() && over()) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  if (status == 0) {
    ending_ = true;
    background_.join();
    drain(kLostAfter, [] { return true; });
    transport_->close();
    return;
  }
  if (process() == 0) {
    {
      const std::scoped_lock lock(mutex_);
      for (int p = 1; p < processes(); ++p) send(p, {.kind = ParcelKind::farewell, .run = runs_ + 1});
    }
    drain(1.0, [] { return true; });
  } else {
    drain(lost_[0] ? 1.0 : 2 * kGrace, [this] { return farewell_; });
  }
  _exit(status);
}

}  // namespace cuboid::detail
