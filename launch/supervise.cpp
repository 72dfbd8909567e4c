#include "launch/supervise.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuboid/core/error.h"
#include "cuboid/core/log.h"

namespace cuboid::launch {
namespace {

constexpr std::array kPassedOn = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

std::atomic<pid_t> g_child = 0;
volatile std::sig_atomic_t g_told_to_end = 0;

void pass_on(int signal) {
  if (signal == SIGINT || signal == SIGTERM) g_told_to_end = 1;
  if (g_child > 0) kill(g_child, signal);
}

// "[1,3]<stderr>:text" is what mpirun --tag-output makes of process 3's "text".
void pass_line(const std::string& line) {
  const auto comma = line.find(',');
  const auto close = line.find("]<", comma);
  const auto colon = line.find(">:", close);
  if (!line.starts_with('[') || colon == std::string::npos) {
    if (!line.empty()) fmt::print(stderr, "{}\n", line);
    return;
  }
  const std::string process = line.substr(comma + 1, close - comma - 1);
  const bool output = line.compare(close + 2, 6, "stdout") == 0;
  std::string text = line.substr(colon + 2);
  // mpirun repeats the tag where a block that it has read begins, also within a line.
  const std::string tag = line.substr(0, colon + 2);
  for (std::size_t at; (at = text.find(tag)) != std::string::npos;) text.erase(at, tag.size());
  if (output && process == "0") {
    fmt::print("{}\n", text);
    std::fflush(stdout);
  } else {
    fmt::print(stderr, "process {}: {}\n", process, text);
  }
}

// What a pipe brings, cut into lines.
class LineReader {
 public:
  explicit LineReader(int descriptor) : descriptor_(descriptor) {}
  int descriptor() const { return descriptor_; }
  /// False at the end.
  bool read_some() {
    std::array<char, 65536> block;
    const ssize_t n = read(descriptor_, block.data(), block.size());
    if (n < 0 && errno == EINTR) return true;
    if (n <= 0) {
      if (!rest_.empty()) pass_line(rest_);
      close(descriptor_);
      descriptor_ = -1;
      return false;
    }
    rest_.append(block.data(), static_cast<std::size_t>(n));
    std::size_t begin = 0;
    for (std::size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      pass_line(rest_.substr(begin, end - begin));
    }
    rest_.erase(0, begin);
    return true;
  }

 private:
  int descriptor_;
  std::string rest_;
};

/// Holds the signals back that are passed on, until its end: one that comes before there is a child is not lost.
class HeldSignals {
 public:
  HeldSignals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : kPassedOn) sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, &before_);
  }
  ~HeldSignals() { release(); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  void release() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Starts the words with these pipes for its output. Nothing is started once this process has been told to end.
pid_t start(const std::vector<std::string>& words, int out, int err) {
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  HeldSignals held;
  if (g_told_to_end != 0) return 0;
  const pid_t child = fork();
  if (child == 0) {
    held.release();
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execvp(arguments[0], arguments.data());
    fmt::print(stderr, "{}: {}; install openmpi-bin\n", words[0], std::strerror(errno));
    _exit(2);
  }
  if (child < 0) throw Error(ErrorKind::failed, fmt::format("fork: {}", std::strerror(errno)));
  g_child = child;
  return child;
}

// Runs the words once; the wait status. None: told to end before it began.
std::optional<int> run_once(const std::vector<std::string>& words) {
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
    throw Error(ErrorKind::failed, fmt::format("pipe: {}", std::strerror(errno)));
  }
  const pid_t child = start(words, out[1], err[1]);
  close(out[1]);
  close(err[1]);
  std::array<LineReader, 2> readers = {LineReader(out[0]), LineReader(err[0])};
  while (readers[0].descriptor() >= 0 || readers[1].descriptor() >= 0) {
    std::array<pollfd, 2> waiting = {pollfd{readers[0].descriptor(), POLLIN, 0},
                                     pollfd{readers[1].descriptor(), POLLIN, 0}};
    if (poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) break;
    for (std::size_t i = 0; i < 2; ++i) {
      if (waiting[i].revents != 0) readers[i].read_some();
    }
  }
  if (child == 0) return std::nullopt;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  g_child = 0;
  return status;
}

int exit_status_of(int wait_status) {
  if (!WIFEXITED(wait_status)) return 3;
  const int status = WEXITSTATUS(wait_status);
  return status == 0 || status == 2 || status == 4 ? status : 3;
}

}  // namespace

int supervise(const std::vector<std::string>& words, const std::function<std::vector<std::string>()>& again,
              int max_restarts) {
  g_told_to_end = 0;
  struct sigaction action = {};
  action.sa_handler = pass_on;
  for (const int signal : kPassedOn) sigaction(signal, &action, nullptr);
  int status = exit_status_of(SIGTERM);
  for (int restarts = 0;; ++restarts) {
    const std::optional<int> ended = run_once(restarts == 0 ? words : again());
    if (!ended) {
      log::error("told to end: the run is not started again");
      return status;
    }
    status = exit_status_of(*ended);
    if (status == 0 || status == 2) return status;
    const std::string how =
        WIFEXITED(*ended) ? fmt::format("status {}", WEXITSTATUS(*ended)) : fmt::format("signal {}", WTERMSIG(*ended));
    if (g_told_to_end != 0 || restarts == max_restarts) {
      log::error(
          fmt::format("the run ended with {}{}", how,
                      restarts > 0 ? fmt::format(", after {} restart{}", restarts, restarts > 1 ? "s" : "") : ""));
      return status;
    }
    log::warning(fmt::format("the run ended with {}; restart {} of {}", how, restarts + 1, max_restarts));
  }
}

}  // namespace cuboid::launch
