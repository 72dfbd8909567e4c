#include "cuboid/formats/folder.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "cuboid/core/error.h"

namespace cuboid {
namespace fs = std::filesystem;
namespace {

bool hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

}  // namespace

std::vector<std::string> files_beneath(const std::string& folder) {
  std::vector<std::string> files;
  try {
    for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
      if (hidden(entry->path())) {
        if (entry->is_directory()) entry.disable_recursion_pending();
      } else if (entry->is_regular_file()) {
        files.push_back(entry->path().string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorKind::request, fmt::format("{}: cannot be listed: {}", folder, error.code().message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace cuboid
