// Temporary files and expected refusals, for tests of input formats.
#pragma once

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "cuboid/core/error.h"

namespace cuboid::test {

/// A folder of its own, removed with its contents at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "cuboid-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp: " + pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

  /// Writes a file beneath, with the folders it needs; returns its path.
  std::string write(const std::string& name, const std::string& content) const {
    const auto file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    // Some file systems flush a file that is cut and rewritten, but not one that is new.
    std::filesystem::remove(file);
    std::ofstream(file, std::ios::binary) << content;
    return file.string();
  }

 private:
  std::filesystem::path path_;
};

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The bytes of numbers, as they lie in memory.
template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string out(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

/// The message of the Error{request} that the action throws; "" (and a test failure) if it throws none.
template <typename Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

/// Each part must occur in the message. (A matcher of gmock would say the same, at ten times the compile time.)
inline void expect_mentions(const std::string& message, std::initializer_list<std::string_view> parts,
                            std::source_location where = std::source_location::current()) {
  for (const std::string_view part : parts) {
    if (message.find(part) != std::string::npos) continue;
    ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line())) << "no \"" << part << "\" in:\n" << message;
  }
}

inline std::string case_path(const std::string& name) {
  return std::string(CUBOID_TEST_DATA) + "/cases/" + name;
}
inline std::string oracle_path(const std::string& name) {
  return std::string(CUBOID_TEST_DATA) + "/oracle/" + name;
}

}  // namespace cuboid::test
