// Every command that README.md and docs/ show in a `sh` block and that starts with build/bin/cuboid is run.
#include <algorithm>
#include <sstream>

#include <gtest/gtest.h>

#include "cli/run_cuboid.h"

namespace cuboid::test {
namespace {

namespace fs = std::filesystem;

// The words after "build/bin/cuboid" of each such command.
std::vector<std::vector<std::string>> commands_of(const std::string& text) {
  std::vector<std::vector<std::string>> commands;
  std::istringstream lines(text);
  bool shell = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) shell = line == "```sh";
    if (!shell || !line.starts_with("build/bin/cuboid")) continue;
    while (line.ends_with('\\')) {
      std::string more;
      std::getline(lines, more);
      line = line.substr(0, line.size() - 1) + more;
    }
    std::istringstream words(line.substr(0, line.find(" #")));
    std::vector<std::string> command;
    for (std::string word; words >> word;) command.push_back(word);
    command.erase(command.begin());
    commands.push_back(command);
  }
  return commands;
}

TEST(Docs, CommandsWork) {
  const fs::path source = CUBOID_SOURCE_DIR;
  const fs::path folder = fresh_folder("docs");
  for (const char* name : {"README.md", "docs", "tests", "launch", "benchmarks"})
    fs::create_symlink(source / name, folder / name);
  std::vector<fs::path> pages = {source / "README.md"};
  for (const auto& entry : fs::directory_iterator(source / "docs")) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  }
  std::sort(pages.begin() + 1, pages.end());
  std::size_t run = 0;
  for (const auto& page : pages) {
    for (const auto& command : commands_of(read_file(page))) {
      const Outcome outcome = run_cuboid(command, {.folder = folder});
      EXPECT_EQ(outcome.status, 0) << page << ": " << ::testing::PrintToString(command) << "\n" << outcome.err;
      ++run;
    }
  }
  EXPECT_GE(run, 10U);
}

}  // namespace
}  // namespace cuboid::test
