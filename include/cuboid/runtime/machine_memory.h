// How much memory a process may still take on this machine.
#pragma once

#include <cstdint>
#include <string>

namespace cuboid {

struct MachineMemory {
  std::int64_t present = 0;    ///< bytes of physical memory
  std::int64_t available = 0;  ///< of them, what can be had now: free or reclaimable, within the cgroup's limit
  std::int64_t cgroup = 0;     ///< the smallest limit of this process's cgroup and those above it; 0: none
};

/// From /proc/meminfo (MemAvailable) and the cgroup's files, version 2 (memory.max, memory.current) or 1, at every
/// level of its hierarchy. A file cache that can be dropped counts as available.
/// @param root  folder that holds proc/ and sys/, for tests
MachineMemory machine_memory(const std::string& root = "");

}  // namespace cuboid
