#include "launch/elastic.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <future>

#include <unistd.h>

#include "cuboid/train/check.h"
#include "cuboid/train/memory.h"

#include "launch/placement.h"

namespace cuboid::launch {
namespace {

bool is_this_host(const std::string& name) {
  std::array<char, 256> own{};
  gethostname(own.data(), own.size() - 1);
  return name == "localhost" || name == own.data();
}

// "ssh -x : rsh": the first of the alternatives, as a shell's words.
std::string remote_shell() {
  const char* given = std::getenv("OMPI_MCA_plm_rsh_agent");
  if (given == nullptr || *given == '\0') return "ssh -o BatchMode=yes -o ConnectTimeout=10";
  const std::string agents = given;
  return agents.substr(0, agents.find(" : "));
}

bool answers(const std::string& name) {
  if (is_this_host(name)) return true;
  const std::string line = "timeout 10 " + remote_shell() + " " + quoted(name) + " true </dev/null >/dev/null 2>&1";
  std::FILE* pipe = popen(line.c_str(), "r");
  return pipe != nullptr && pclose(pipe) == 0;
}

bool fits_in_memory(const RunConfig& run, const ModelConfig& model) {
  if (run.memory_limit == 0) return true;  // each host knows its own
  const auto ranks = kept_memory(run, model, plan_pipeline(run, model));
  return std::all_of(ranks.begin(), ranks.end(), [&](const auto& use) { return use.total <= run.memory_limit; });
}

}  // namespace

std::vector<Host> answering(const std::vector<Host>& hosts) {
  std::vector<std::future<bool>> asked;
  for (const Host& host : hosts) asked.push_back(std::async(std::launch::async, answers, host.name));
  std::vector<Host> alive;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (asked[i].get()) alive.push_back(hosts[i]);
  }
  return alive;
}

std::optional<Grid> largest_grid(const RunConfig& run, const ModelConfig& model, int ranks_per_process, int slots) {
  const AxisValues asked = run.grid.degrees();
  std::vector<Grid> grids;
  const auto walk = [&](AxisValues degrees) {
    for (int cp = asked[Axis::cp]; cp >= 1; --cp) {
      if (asked[Axis::cp] % cp != 0) continue;
      for (int dp = asked[Axis::dp]; dp >= 1; --dp) {
        degrees[Axis::cp] = cp;
        degrees[Axis::dp] = dp;
        const Grid grid(degrees, run.grid.order());
        if (grid.world() % ranks_per_process == 0 && grid.world() / ranks_per_process <= slots) grids.push_back(grid);
      }
    }
  };
  for (int tp = asked[Axis::tp]; tp >= 1; --tp) {
    if (asked[Axis::tp] % tp != 0) continue;
    for (int pp = asked[Axis::pp]; pp >= 1; --pp) {
      AxisValues degrees = asked;
      degrees[Axis::tp] = tp;
      degrees[Axis::pp] = pp;
      walk(degrees);
    }
  }
  // Stable: among equals the order above holds.
  std::stable_sort(grids.begin(), grids.end(), [](const Grid& a, const Grid& b) { return a.world() > b.world(); });
  for (const Grid& grid : grids) {
    RunConfig candidate = run;
    candidate.grid = grid;
    Problems problems;
    check_run(model, candidate, problems);
    if (problems.empty() && fits_in_memory(candidate, model)) return grid;
  }
  return std::nullopt;
}

std::vector<std::string> on_grid(const std::vector<std::string>& arguments, const Grid& grid) {
  std::vector<std::string> made;
  const auto names_axis = [](const std::string& word) {
    return std::any_of(kAxes.begin(), kAxes.end(), [&](Axis axis) {
      const std::string flag = std::string("--") + name_of(axis);
      return word == flag || word.starts_with(flag + "=");
    });
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!names_axis(arguments[i])) {
      made.push_back(arguments[i]);
    } else if (arguments[i].find('=') == std::string::npos) {
      ++i;  // its value
    }
  }
  for (const Axis axis : kAxes) {
    made.insert(made.end(), {std::string("--") + name_of(axis), std::to_string(grid.degree(axis))});
  }
  return made;
}

}  // namespace cuboid::launch
