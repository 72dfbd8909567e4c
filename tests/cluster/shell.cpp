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

}  // namespace cuboid::test
