// A process's end of the job: it sends and receives for all rank threads, hands what arrives to the groups they share,
// keeps an eye on the other processes, and agrees with them on how a run ended. One mutex guards all of it.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "cuboid/comm/processes.h"
#include "cuboid/comm/recorder.h"

#include "../world.h"
#include "transport.h"

namespace cuboid::detail {

class SpanGroup;

/// Why a run failed: the first cause.
struct Failure {
  static constexpr int kLogic = 3;  ///< a std::logic_error; smaller numbers are values of ErrorKind
  int rank = 0;
  int kind = 0;
  std::string text;
  [[noreturn]] void raise() const;
  int exit_status() const;  ///< of a process that ends without raising it
};

class Exchange final : public Processes {
 public:
  explicit Exchange(std::unique_ptr<Transport> transport);
  ~Exchange() override;

  // Processes
  int process() const override { return transport_->process(); }
  int processes() const override { return static_cast<int>(hosts().size()); }
  const std::vector<std::string>& hosts() const override { return transport_->hosts(); }
  void run(int ranks, int ranks_per_process, const std::function<void(RankContext&)>& body,
           const RankOptions& options) override;
  bool speaks() const override;
  void refuse(const std::string& why) override;
  void leave(int status) override;

  // For groups; those marked (locked) need mutex() held.
  std::mutex& mutex() { return mutex_; }
  void send(int process, Header header, const std::byte* payload = nullptr, std::shared_ptr<Buffer> keep = nullptr);
  void enroll(const std::shared_ptr<SpanGroup>& group);  ///< (locked)
  std::uint64_t fresh_id() { return (std::uint64_t(process()) + 1) << 40 | ++ids_; }
  std::shared_ptr<Buffer> buffer(std::size_t bytes) const;

  /// Makes progress unless another thread is at it. False if nothing moved.
  bool poll();

  /// Waits until ready(word's value), making progress meanwhile. @param check  as for World::await
  template <typename Ready, typename Check>
  void await(const World& world, WaitWord& word, Ready ready, Check check) {
    const auto start = Clock::now();
    int idle = 0;
    for (unsigned turn = 1;; ++turn, ++idle) {
      const std::uint32_t seen = word.load();
      if (ready(seen)) return;
      world.throw_if_aborted();
      if (poll()) idle = 0;
      // Also while other ranks' messages keep moving: they do not shorten this wait.
      if (idle >= spins_ || turn % kTurnsBetweenChecks == 0) {
        check(std::chrono::duration<double>(Clock::now() - start).count());
      }
      if (idle < spins_) continue;
      word.sleep(seen, std::chrono::microseconds(std::min(kShortestSleep * (1 + (idle - spins_) / 4), kLongestSleep)));
    }
  }

 private:
  static constexpr unsigned kTurnsBetweenChecks = 256;
  static constexpr int kShortestSleep = 20;  // microseconds
  static constexpr int kLongestSleep = 200;

  struct Run {
    std::uint32_t number = 0;
    int ranks = 0;
    int ranks_per_process = 1;
    std::shared_ptr<World> world;
    std::map<std::uint64_t, std::shared_ptr<SpanGroup>> groups;
    std::map<std::uint64_t, std::vector<Parcel>> unclaimed;  // for groups that are not made here yet
    std::vector<std::shared_ptr<Recorder>> recorders;
    bool stopped = false;  // abort seen or failure reported: own_state was taken
    std::string own_state;
    // On process 0
    std::vector<bool> done;
    std::vector<std::string> states;  // by process
    bool failed = false;
    Failure cause;
    Clock::time_point failed_at;
    // Known at the end
    std::atomic<bool> over = false;
    bool well = true;
    Failure outcome;
    int participants() const { return (ranks + ranks_per_process - 1) / ranks_per_process; }
  };

  void begin_run(int ranks, int ranks_per_process, const RankOptions& options);
  void run_rank(int rank, const std::function<void(RankContext&)>& body, const RankOptions& options, SpanGroup* world);
  void report_exception(int rank, const std::exception_ptr& cause);
  void end_run(const RankOptions& options);

  // (locked)
  void send_text(int process, Header header, const std::string& text);
  bool poll_locked();
  void dispatch(Parcel parcel);
  void dispatch_of_run(const Parcel& parcel);
  void report(const Failure& failure);
  void note_failure(const Failure& failure);
  void stop_run();
  void conclude_if_due();
  void watch_others(double since_last);
  std::string describe_process(int process) const;

  void work_in_background();
  void terminate();

  std::unique_ptr<Transport> transport_;
  std::mutex mutex_;
  std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
  std::vector<Parcel> arrived_;
  std::vector<Parcel> early_;  // of runs that have not begun here
  std::unique_ptr<Run> run_;
  std::uint32_t runs_ = 0;
  std::uint64_t ids_ = 0;
  int spins_;
  int processes_of_host_ = 1;
  std::vector<Clock::time_point> heard_;  // by process
  std::vector<bool> lost_;
  bool farewell_ = false;
  std::atomic<bool> ending_ = false;
  std::thread background_;
};

}  // namespace cuboid::detail
