#include "launch/hosts.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"

namespace cuboid::launch {
namespace {

// Names longer than a host's may be.
constexpr std::size_t kMostDigits = 63;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::request, why);
}

// The number that the whole text is, if it is one.
std::optional<int> number_in(std::string_view text) {
  int value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text.front() == '-' || fault != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

// "001-003,7" as numbers with their padding.
std::vector<std::string> expand_bracket(const std::string& text, const std::string& whole, std::size_t most) {
  const auto fault = [&](const std::string& what) { refuse(fmt::format("host list '{}': {}", whole, what)); };
  if (text.empty()) fault("empty brackets");
  std::vector<std::string> all;
  for (const std::string_view item : split(text, ',')) {
    const auto dash = item.find('-');
    const std::string_view low = item.substr(0, dash);
    const std::string_view high = dash == std::string::npos ? low : item.substr(dash + 1);
    const auto first = number_in(low);
    const auto last = number_in(high);
    if (!first || !last) fault(fmt::format("'{}' is not a number or a range of numbers", item));
    if (*first > *last) fault(fmt::format("the range {} runs backwards", item));
    if (low.size() > kMostDigits) fault(fmt::format("'{}' has too many digits", low));
    if (static_cast<std::size_t>(*last - *first) >= most - std::min(most, all.size())) {
      fault(fmt::format("the range {} is too long", item));
    }
    for (int n = *first; n <= *last; ++n) all.push_back(fmt::format("{:0{}}", n, low.size()));
  }
  return all;
}

// One item of a host list, up to a comma outside brackets.
std::vector<std::string> expand_item(const std::string& item, const std::string& whole, std::size_t most) {
  const auto fault = [&](const std::string& what) { refuse(fmt::format("host list '{}': {}", whole, what)); };
  if (item.empty()) fault("an empty item (two commas, or one at an end)");
  std::vector<std::string> names = {""};
  std::size_t at = 0;
  while (at < item.size()) {
    const auto open = item.find('[', at);
    const std::string plain = item.substr(at, open == std::string::npos ? open : open - at);
    if (plain.find(']') != std::string::npos) fault("']' without '['");
    if (at > 0 && open == std::string::npos) fault(fmt::format("'{}' after the last bracket", plain));
    for (char c : plain) {
      if (std::isalnum(static_cast<unsigned char>(c)) == 0 && std::strchr("-._", c) == nullptr) {
        fault(fmt::format("'{}' cannot be in a host's name", c));
      }
    }
    for (auto& name : names) name += plain;
    if (open == std::string::npos) break;
    const auto close = item.find(']', open);
    if (close == std::string::npos) fault("'[' without ']'");
    const auto numbers = expand_bracket(item.substr(open + 1, close - open - 1), whole, most);
    std::vector<std::string> longer;
    if (names.size() * numbers.size() > most) fault("too many hosts");
    for (const auto& name : names) {
      for (const auto& number : numbers) longer.push_back(name + number);
    }
    names = std::move(longer);
    at = close + 1;
  }
  return names;
}

// Lines of a file without comments and blank ends, with their numbers.
std::vector<std::pair<int, std::string>> read_lines(const std::string& path) {
  std::ifstream file(path);
  if (!file) refuse(fmt::format("{}: {}", path, std::strerror(errno)));
  std::vector<std::pair<int, std::string>> lines;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line = line.substr(0, line.find('#'));
    const auto first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos) continue;
    lines.emplace_back(number, line.substr(first, line.find_last_not_of(" \t\r") - first + 1));
  }
  return lines;
}

}  // namespace

std::vector<std::string> expand_host_list(const std::string& text, std::size_t most) {
  std::vector<std::string> items(1);
  int depth = 0;
  for (char c : text) {
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (c == ',' && depth <= 0) {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  std::vector<std::string> all;
  std::set<std::string> seen;
  for (const auto& item : items) {
    for (auto& name : expand_item(item, text, most)) {
      if (!seen.insert(name).second) refuse(fmt::format("host list '{}': {} is named twice", text, name));
      if (all.size() == most) refuse(fmt::format("host list '{}': too many hosts", text));
      all.push_back(std::move(name));
    }
  }
  return all;
}

std::vector<int> expand_counts(const std::string& text, std::size_t most) {
  std::vector<int> counts;
  for (const std::string_view item : split(text, ',')) {
    const auto open = item.find("(x");
    const auto count = number_in(item.substr(0, open));
    std::optional<int> times = 1;
    if (open != std::string::npos) {
      times = item.back() == ')' ? number_in(item.substr(open + 2, item.size() - open - 3)) : std::nullopt;
    }
    if (!count || !times || *times < 1 || static_cast<std::size_t>(*count) > most ||
        static_cast<std::size_t>(*times) > most - std::min(most, counts.size())) {
      refuse(fmt::format("'{}': '{}' is not a count such as 2 or 2(x3)", text, item));
    }
    counts.insert(counts.end(), static_cast<std::size_t>(*times), *count);
  }
  return counts;
}

std::vector<Host> read_host_file(const std::string& path) {
  std::vector<Host> hosts;
  std::vector<bool> with_slots;
  Problems problems;
  for (const auto& [number, line] : read_lines(path)) {
    const auto fault = [&, n = number](const std::string& what) {
      problems.add(fmt::format("{}: line {}: {}", path, n, what));
    };
    std::istringstream words(line);
    Host host;
    words >> host.name;
    bool given = false;
    for (std::string word; words >> word;) {
      const auto equals = word.find('=');
      const std::string key = word.substr(0, equals);
      const auto value = equals == std::string::npos ? std::nullopt : number_in(word.substr(equals + 1));
      if (key != "slots" && key != "max_slots" && key != "max-slots") {
        fault(fmt::format("'{}' is unknown; use slots=N or max_slots=N", word));
      } else if (!value) {
        fault(fmt::format("'{}' is not a number of slots", word));
      } else if (key == "slots") {
        host.slots = *value;
        given = true;
      }
    }
    const auto known = std::find_if(hosts.begin(), hosts.end(), [&](const Host& h) { return h.name == host.name; });
    if (known == hosts.end()) {
      hosts.push_back(host);
      with_slots.push_back(given);
    } else if (given || with_slots[static_cast<std::size_t>(known - hosts.begin())]) {
      fault(fmt::format("{} is named before, too; with slots= that is ambiguous: name it once", host.name));
    } else {
      ++known->slots;
    }
  }
  if (hosts.empty() && problems.empty()) problems.add(path + ": names no host");
  problems.throw_if_any();
  return hosts;
}

namespace {

// "0:0-1", "1:2,3", "4": socket and cores.
std::optional<RankPlace> place_in(const std::string& slot) {
  RankPlace place;
  const auto colon = slot.find(':');
  if (colon != std::string::npos) {
    place.socket = number_in(slot.substr(0, colon));
    if (!place.socket) return {};
  }
  for (const std::string_view item :
       split(std::string_view(slot).substr(colon == std::string::npos ? 0 : colon + 1), ',')) {
    const auto dash = item.find('-');
    const auto first = number_in(item.substr(0, dash));
    const auto last = dash == std::string::npos ? first : number_in(item.substr(dash + 1));
    if (!first || !last || *first > *last || *last - *first > 1 << 16) return {};
    for (int core = *first; core <= *last; ++core) place.cores.push_back(core);
  }
  return place;
}

}  // namespace

std::vector<RankPlace> read_rank_file(const std::string& path) {
  std::map<int, RankPlace> places;
  Problems problems;
  for (const auto& [number, line] : read_lines(path)) {
    std::istringstream words(line);
    std::string keyword, rank_and_host, slot, more;
    words >> keyword >> rank_and_host >> slot >> more;
    const auto equals = rank_and_host.find('=');
    const auto rank = number_in(rank_and_host.substr(0, equals));
    auto place = slot.starts_with("slot=") ? place_in(slot.substr(5)) : std::nullopt;
    if (keyword != "rank" || !rank || equals == std::string::npos || equals + 1 == rank_and_host.size() || !place ||
        !more.empty()) {
      problems.add(fmt::format("{}: line {}: '{}' is not of the form 'rank 2=node02 slot=0:0-1'", path, number, line));
      continue;
    }
    place->host = rank_and_host.substr(equals + 1);
    const bool is_new = places.insert_or_assign(*rank, *place).second;
    problems.add_if(!is_new, fmt::format("{}: line {}: rank {} is placed twice", path, number, *rank));
  }
  std::vector<RankPlace> all;
  std::int64_t next = 0;
  for (auto& [rank, place] : places) {
    if (rank > next) {
      problems.add(rank == next + 1 ? fmt::format("{}: rank {} is not placed", path, next)
                                    : fmt::format("{}: ranks {} to {} are not placed", path, next, rank - 1));
    }
    next = std::int64_t{rank} + 1;
    all.push_back(std::move(place));
  }
  if (places.empty() && problems.empty()) problems.add(path + ": places no rank");
  problems.throw_if_any();
  return all;
}

std::vector<int> SlurmJob::host_of_rank() const {
  std::vector<int> hosts_of_ranks;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    hosts_of_ranks.insert(hosts_of_ranks.end(), static_cast<std::size_t>(hosts[h].slots), static_cast<int>(h));
  }
  return hosts_of_ranks;
}

namespace {

/// The variables of one allocation, read with a list of what is wrong.
class SlurmReader {
 public:
  SlurmReader(const std::function<std::string(const char*)>& get, Problems& problems)
      : get_(get), problems_(problems) {}

  std::string text(const char* name) const { return get_(name); }
  std::string shown(const char* name) const { return fmt::format("{}={}", name, get_(name)); }

  std::optional<int> number(const char* name) {
    const std::string value = get_(name);
    if (value.empty()) return {};
    const auto read = number_in(value);
    problems_.add_if(!read, shown(name) + ": not a number");
    return read;
  }
  // Two names for one thing, of which one at least must be there.
  std::string either(const char* name, const char* old_name) {
    const std::string value = get_(name);
    const std::string old_value = get_(old_name);
    if (value.empty() && old_value.empty()) problems_.add(fmt::format("{} is not set", name));
    if (!value.empty() && !old_value.empty() && value != old_value) {
      problems_.add(fmt::format("{} contradicts {}", shown(name), shown(old_name)));
    }
    return value.empty() ? old_value : value;
  }

 private:
  const std::function<std::string(const char*)>& get_;
  Problems& problems_;
};

}  // namespace

SlurmJob read_slurm(const std::function<std::string(const char*)>& get, std::size_t most_hosts) {
  Problems problems;
  SlurmReader slurm(get, problems);
  SlurmJob job;
  const std::string names = slurm.either("SLURM_JOB_NODELIST", "SLURM_NODELIST");
  const bool step = !get("SLURM_STEP_TASKS_PER_NODE").empty();
  const std::string per_node = step ? get("SLURM_STEP_TASKS_PER_NODE") : get("SLURM_TASKS_PER_NODE");
  problems.add_if(per_node.empty(), "SLURM_TASKS_PER_NODE is not set");
  const std::string tasks = slurm.either("SLURM_NTASKS", "SLURM_NPROCS");
  problems.throw_if_any();

  std::vector<int> counts;
  try {
    for (auto& name : expand_host_list(names, most_hosts)) job.hosts.push_back({std::move(name), 0});
  } catch (const Error& error) {
    problems.add("SLURM_JOB_NODELIST: " + std::string(error.what()));
  }
  try {
    counts = expand_counts(per_node, most_hosts);
  } catch (const Error& error) {
    problems.add("SLURM_TASKS_PER_NODE=" + std::string(error.what()));
  }
  problems.throw_if_any();

  const auto contradiction = [&](bool is, const std::string& one, const std::string& other) {
    problems.add_if(is, fmt::format("{} contradicts {}", one, other));
  };
  const std::string list = "SLURM_JOB_NODELIST=" + names;
  const std::string per = (step ? "SLURM_STEP_TASKS_PER_NODE=" : "SLURM_TASKS_PER_NODE=") + per_node;
  const auto hosts = static_cast<int>(job.hosts.size());
  for (const char* name : {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}) {
    const auto nodes = slurm.number(name);
    contradiction(nodes && *nodes != hosts, slurm.shown(name), fmt::format("{} ({} hosts)", list, hosts));
  }
  contradiction(counts.size() != job.hosts.size(), fmt::format("{} ({} hosts)", per, counts.size()),
                fmt::format("{} ({} hosts)", list, hosts));
  for (std::size_t h = 0; h < std::min(counts.size(), job.hosts.size()); ++h) job.hosts[h].slots = counts[h];
  const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  job.tasks = number_in(tasks).value_or(-1);
  contradiction(job.tasks != sum, "SLURM_NTASKS=" + tasks, fmt::format("{} (together {})", per, sum));

  job.rank = slurm.number("SLURM_PROCID");
  job.local_rank = slurm.number("SLURM_LOCALID");
  job.node = slurm.number("SLURM_NODEID");
  contradiction(job.rank && *job.rank >= job.tasks, slurm.shown("SLURM_PROCID"), "SLURM_NTASKS=" + tasks);
  contradiction(job.node && *job.node >= hosts, slurm.shown("SLURM_NODEID"), fmt::format("{} ({} hosts)", list, hosts));
  if (problems.empty() && job.node) {
    const Host& here = job.hosts[static_cast<std::size_t>(*job.node)];
    const std::string name = get("SLURMD_NODENAME");
    contradiction(!name.empty() && name != here.name, "SLURMD_NODENAME=" + name,
                  fmt::format("{} of {} ({})", slurm.shown("SLURM_NODEID"), list, here.name));
    contradiction(job.local_rank && *job.local_rank >= here.slots, slurm.shown("SLURM_LOCALID"),
                  fmt::format("{} ({} tasks on {})", per, here.slots, here.name));
  }
  problems.throw_if_any();
  return job;
}

}  // namespace cuboid::launch
