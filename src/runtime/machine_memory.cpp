#include "cuboid/runtime/machine_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>

namespace cuboid {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kNone = -1;

// A file of one number; kNone without the file or where it says "max".
std::int64_t number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? value : kNone;
}

// The number after a word at the beginning of a line.
std::int64_t number_after(const fs::path& path, std::string_view word) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    std::int64_t value = 0;
    if (words >> first >> value && first == word) return value;
  }
  return kNone;
}

/// Names of a cgroup version's files.
struct Files {
  const char* limit;
  const char* used;
  const char* dropped_first;  // in memory.stat: file pages that nobody has used lately
};
constexpr Files kVersion2 = {"memory.max", "memory.current", "inactive_file"};
constexpr Files kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

// Version 1 writes "no limit" as the largest multiple of a page.
constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;

void look_at(const fs::path& folder, const Files& files, MachineMemory& memory) {
  const std::int64_t limit = number_in(folder / files.limit);
  const std::int64_t used = number_in(folder / files.used);
  if (limit == kNone || used == kNone || limit >= kUnlimited) return;
  const std::int64_t cache = std::max<std::int64_t>(0, number_after(folder / "memory.stat", files.dropped_first));
  memory.cgroup = memory.cgroup == 0 ? limit : std::min(memory.cgroup, limit);
  memory.available = std::min(memory.available, std::max<std::int64_t>(0, limit - used + cache));
}

// The cgroup itself and all above it. In a container the path may be the host's: the mount's root is looked at in any
// case.
void look_up_from(const fs::path& mount, std::string path, const Files& files, MachineMemory& memory) {
  while (!path.empty() && path != "/") {
    look_at(mount / path.substr(1), files, memory);
    path.resize(path.rfind('/'));
  }
  look_at(mount, files, memory);
}

}  // namespace

MachineMemory machine_memory(const std::string& root) {
  const fs::path base = root.empty() ? fs::path("/") : fs::path(root);
  const std::string info = base / "proc/meminfo";
  MachineMemory memory;
  memory.present = 1024 * std::max<std::int64_t>(0, number_after(info, "MemTotal:"));
  const std::int64_t available = number_after(info, "MemAvailable:");
  memory.available = available == kNone ? memory.present : 1024 * available;
  const fs::path mount = base / "sys/fs/cgroup";
  std::ifstream groups(base / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path" or "5:memory:/path"
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) look_up_from(mount, path, kVersion2, memory);
    if (controllers == "memory") look_up_from(mount / "memory", path, kVersion1, memory);
  }
  return memory;
}

}  // namespace cuboid
