// Host lists, counts of tasks, host files, rank files and Slurm's variables.
#include "launch/hosts.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  using namespace cuboid::launch;
  // As many as there may be would make most executions one long list.
  constexpr std::size_t kMost = 1000;
  const std::string text(fuzz::text_of(data, size));
  fuzz::refused_or_read([&] { expand_host_list(text, kMost); });
  fuzz::refused_or_read([&] { expand_counts(text, kMost); });
  const fuzz::MemoryFile file(data, size);
  fuzz::refused_or_read([&] { read_host_file(file.path()); });
  fuzz::refused_or_read([&] { read_rank_file(file.path()); });
  // Lines NAME=VALUE.
  return fuzz::refused_or_read([&] {
    const SlurmJob job = read_slurm(
        [&](const char* name) {
          const auto at = text.find(std::string(name) + "=");
          if (at == std::string::npos) return std::string();
          const auto begin = text.find('=', at) + 1;
          return text.substr(begin, text.find('\n', begin) - begin);
        },
        kMost);
    if (job.host_of_rank().size() != static_cast<std::size_t>(job.tasks)) std::abort();
  });
}
