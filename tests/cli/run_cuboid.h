// Runs the built program as a user would, and reads what it leaves.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace cuboid::test {

struct Outcome {
  int status = -1;  ///< exit status; 128 + signal if it was killed
  std::string out;  ///< standard output
  std::string err;  ///< standard error
};

struct Surroundings {
  std::filesystem::path folder = {};  ///< to run in; empty: this one
  std::string standard_output = {};   ///< file to write to instead of catching it
  int terminal_columns = 0;           ///< over 0: standard error is a terminal so wide
};

/// Runs build/bin/cuboid with these words.
Outcome run_cuboid(const std::vector<std::string>& words, const Surroundings& surroundings = {});

/// The program refuses: status 2, nothing on standard output, and each of these reasons on standard error.
void expect_refused(const std::vector<std::string>& words, const std::vector<std::string>& reasons);

std::string read_file(const std::filesystem::path& path);
/// Every line of a file as JSON.
std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& path);
/// An empty folder of this name among the temporary files.
std::filesystem::path fresh_folder(const std::string& name);

}  // namespace cuboid::test
