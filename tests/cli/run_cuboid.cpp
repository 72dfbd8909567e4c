#include "cli/run_cuboid.h"

#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cuboid::test {
namespace fs = std::filesystem;
namespace {

void redirect(const std::string& path, int descriptor) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0 || dup2(file, descriptor) < 0) _exit(126);
}

// A terminal of that width: its two ends.
struct Terminal {
  explicit Terminal(int columns) {
    const winsize size{24, static_cast<unsigned short>(columns), 0, 0};
    if (openpty(&keeper, &user, nullptr, nullptr, &size) != 0) throw std::runtime_error("no pseudo-terminal");
  }
  // All that is written until the last writer has closed its end.
  std::string read_all() const {
    close(user);
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(keeper, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
    close(keeper);
    return text;
  }
  int keeper = -1, user = -1;
};

}  // namespace

Outcome run_cuboid(const std::vector<std::string>& words, const Surroundings& surroundings) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("cuboid-" + std::to_string(getpid()));
  fs::create_directories(folder);
  const std::string out =
      surroundings.standard_output.empty() ? (folder / "out").string() : surroundings.standard_output;
  const std::string err = folder / "err";
  std::vector<char*> arguments = {const_cast<char*>("cuboid")};
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::optional<Terminal> terminal;
  if (surroundings.terminal_columns > 0) terminal.emplace(surroundings.terminal_columns);
  const pid_t child = fork();
  if (child == 0) {
    if (!surroundings.folder.empty() && chdir(surroundings.folder.c_str()) != 0) _exit(126);
    redirect("/dev/null", STDIN_FILENO);
    redirect(out, STDOUT_FILENO);
    if (terminal) {
      close(terminal->keeper);
      if (dup2(terminal->user, STDERR_FILENO) < 0) _exit(126);
      setenv("TERM", "xterm", 1);
      setenv("LC_ALL", "C.UTF-8", 1);
      unsetenv("NO_COLOR");
    } else {
      redirect(err, STDERR_FILENO);
    }
    execv(CUBOID_PROGRAM, arguments.data());
    _exit(127);
  }
  int status = 0;
  Outcome outcome;
  if (terminal) outcome.err = terminal->read_all();
  if (child < 0 || waitpid(child, &status, 0) != child) throw std::runtime_error("cannot run " CUBOID_PROGRAM);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (surroundings.standard_output.empty()) outcome.out = read_file(out);
  if (!terminal) outcome.err = read_file(err);
  fs::remove_all(folder);
  return outcome;
}

void expect_refused(const std::vector<std::string>& words, const std::vector<std::string>& reasons) {
  const Outcome outcome = run_cuboid(words);
  EXPECT_EQ(outcome.status, 2) << ::testing::PrintToString(words) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  for (const auto& reason : reasons) EXPECT_THAT(outcome.err, ::testing::HasSubstr("cuboid: error: " + reason));
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<nlohmann::json> read_json_lines(const fs::path& path) {
  std::istringstream text(read_file(path));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

fs::path fresh_folder(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("cuboid-" + std::to_string(getpid()) + "-" + name);
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

}  // namespace cuboid::test
