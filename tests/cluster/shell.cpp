#include "cluster/shell.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cuboid::test {
namespace {

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

Ended shell(const std::string& line) {
  const std::string base = testing::TempDir() + "cuboid-shell-" + std::to_string(getpid());
  setenv("CUBOID", CUBOID_PROGRAM, 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  setenv("MPIRUN", "mpirun --oversubscribe --bind-to none", 1);
  const auto start = std::chrono::steady_clock::now();
  const int status = std::system(("( " + line + " ) >" + base + ".out 2>" + base + ".err </dev/null").c_str());
  Ended ended;
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ended.out = read(base + ".out");
  ended.err = read(base + ".err");
  std::filesystem::remove(base + ".out");
  std::filesystem::remove(base + ".err");
  return ended;
}

Ended shell_and_signal(const std::string& launcher, const std::string& training, const std::string& mark, int process,
                       const std::string& signal, int signals) {
  const std::string out = testing::TempDir() + "cuboid-signal-" + std::to_string(getpid());
  std::filesystem::remove_all(out);
  // The newest process of that number: a restart's follows an earlier one.
  const std::string find = "$(pgrep -f '" + mark +
                           "' | xargs -I{} sh -c 'grep -qz OMPI_COMM_WORLD_RANK=" + std::to_string(process) +
                           " /proc/{}/environ 2>/dev/null && echo {}' | tail -n 1)";
  const Ended ended =
      shell(launcher + training + " --out " + out + " & job=$!; for k in $(seq " + std::to_string(signals) +
            "); do for i in $(seq 300); do [ -s " + out + "/metrics.jsonl ] && break; sleep 0.1; done; p=" + find +
            "; start=$(date +%s%N); kill -" + signal + " $p; [ $k = " + std::to_string(signals) + " ] || { rm " + out +
            "/metrics.jsonl; while [ -e /proc/$p ]; do sleep 0.1; done; }; done; "
            "wait $job; status=$?; echo $((($(date +%s%N) - start) / 1000000)); exit $status");
  std::filesystem::remove_all(out);
  Ended since = ended;
  since.seconds = std::atof(ended.out.substr(ended.out.rfind('\n', ended.out.size() - 2) + 1).c_str()) / 1000;
  return since;
}

}  // namespace cuboid::test
