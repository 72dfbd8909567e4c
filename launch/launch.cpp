// cuboid launch: how a training run is started on several hosts, and with --run, doing so.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "cuboid/core/log.h"
#include "cuboid/core/text.h"
#include "cuboid/formats/hf_config.h"

#include "launch/commands.h"
#include "launch/elastic.h"
#include "launch/flags.h"
#include "launch/placement.h"
#include "launch/supervise.h"
#include "launch/train_flags.h"

namespace cuboid::launch {
namespace {

enum class Form { mpirun, sbatch, kubernetes };

struct Request {
  std::string hosts, host_file;
  int slots = 1;
  Form form = Form::mpirun;
  std::string image = "cuboid:latest";
  std::string rank_file = "cuboid.rankfile";
  int cores = 0;
  bool run = false;
  int max_restarts = 0;
};

void add_flags(Flags& flags, Request& request) {
  flags.section("Hosts (without: the Slurm allocation, or this host)");
  flags.text("hosts", "LIST", request.hosts, "hosts as Slurm writes them: gpu[01-04],login");
  flags.text("hostfile", "FILE", request.host_file, "Open MPI host file: 'node01 slots=4' a line");
  flags.whole("slots", request.slots, "processes that a host of --hosts may run", 1);
  flags.whole("cores-per-process", request.cores, "bind each process to so many cores; 0: no binding", 0);
  flags.section("Form");
  flags.choice<Form>("form", request.form,
                     {{"mpirun", Form::mpirun}, {"sbatch", Form::sbatch}, {"kubernetes", Form::kubernetes}},
                     "what to print");
  flags.text("rankfile", "FILE", request.rank_file, "where the mpirun form's rank file is written");
  flags.text("image", "NAME", request.image, "container image of the Kubernetes form");
  flags.section("Running");
  flags.toggle("run", request.run, "start the mpirun form and watch over it");
  flags.whole("max-restarts", request.max_restarts,
              "start again so many times after a failure, on the hosts that still answer", 0, 1000);
}

// Flags of another form are refused, not ignored.
void check_form(const Flags& flags, const Request& request, Problems& problems) {
  const auto given = [&](const char* name) { return flags.value_of(name).has_value(); };
  problems.add_if(request.run && request.form != Form::mpirun, "--run: only the mpirun form can be run");
  problems.add_if(given("max-restarts") && !request.run, "--max-restarts: only --run watches over a run");
  problems.add_if(given("rankfile") && (request.run || request.form != Form::mpirun),
                  "--rankfile: only the printed mpirun form names one");
  problems.add_if(given("image") && request.form != Form::kubernetes, "--image: only --form kubernetes has one");
  problems.add_if(given("slots") && request.hosts.empty(), "--slots: are those of --hosts");
}

std::vector<Host> hosts_of(const Request& request, int processes, Problems& problems) {
  try {
    if (!request.host_file.empty()) return read_host_file(request.host_file);
    std::vector<Host> hosts;
    if (!request.hosts.empty()) {
      for (auto& name : expand_host_list(request.hosts)) hosts.push_back({std::move(name), request.slots});
      return hosts;
    }
    const auto variable = [](const char* name) {
      const char* value = std::getenv(name);
      return std::string(value == nullptr ? "" : value);
    };
    if (!variable("SLURM_JOB_ID").empty()) return read_slurm(variable).hosts;
    return {{"localhost", processes}};
  } catch (const Error& error) {
    problems.add((request.hosts.empty() ? "" : "--hosts: ") + std::string(error.what()));
    return {};
  }
}

void write_rank_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw Error(ErrorKind::request, fmt::format("--rankfile {}: cannot be written", path));
}

std::string print_form(const LaunchForm& form, const Request& request) {
  if (request.form == Form::sbatch) return sbatch_script(form);
  if (request.form == Form::kubernetes) return mpi_job(form, request.image);
  write_rank_file(request.rank_file, rank_file(form));
  log::info("wrote " + request.rank_file);
  std::string line;
  for (const auto& word : mpirun_words(form, request.rank_file)) line += (line.empty() ? "" : " ") + quoted(word);
  return line + "\n";
}

std::vector<std::string> words_to_run(const LaunchForm& form, const std::string& rank_file_path) {
  write_rank_file(rank_file_path, rank_file(form));
  auto words = mpirun_words(form, rank_file_path);
  words.insert(words.begin() + 1, {"--oversubscribe", "--tag-output"});
  return words;
}

// "tp 2 x pp 1 x dp 3", and cp and ep where they are not 1.
std::string degrees_of(const Grid& grid) {
  std::string text;
  for (const Axis axis : {Axis::tp, Axis::pp, Axis::dp, Axis::cp, Axis::ep}) {
    if ((axis == Axis::cp || axis == Axis::ep) && grid.degree(axis) == 1) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(axis), grid.degree(axis));
  }
  return text;
}

/// Starts a run again: on the hosts that answer, on the largest grid for them, from where it was saved.
class Restart {
 public:
  /// @param can_resume  whether the run saves and may be told to go on
  Restart(LaunchForm form, const RunConfig& run, bool can_resume, std::string rank_file_path)
      : form_(std::move(form)),
        run_(run),
        grid_(run.grid),
        can_resume_(can_resume),
        rank_file_path_(std::move(rank_file_path)),
        hosts_(form_.placement.hosts) {}

  std::vector<std::string> operator()() {
    const std::vector<Host> alive = answering(hosts_);
    std::int64_t slots = 0;
    for (const Host& host : alive) slots += host.slots;
    for (const Host& host : hosts_) {
      if (std::find(alive.begin(), alive.end(), host) == alive.end()) {
        log::warning(fmt::format("host {} does not answer: the run goes on without its {}", host.name,
                                 counted(host.slots, "slot")));
      }
    }
    const auto grid = largest_grid(run_, load_model(run_.model), form_.ranks_per_process, slots);
    if (!grid) {
      throw Error(ErrorKind::failed,
                  fmt::format("the {} slots of the hosts that answer are too few for any grid of this "
                              "run, whose largest is {}",
                              slots, degrees_of(run_.grid)));
    }
    if (*grid != grid_) {
      log::warning(fmt::format("the grid is now {} (it was {}); the global batch stays {}", degrees_of(*grid),
                               degrees_of(grid_), run_.global_batch));
    }
    grid_ = *grid;
    LaunchForm form = form_;
    form.placement = place(grid_, form.ranks_per_process, alive);
    for (const auto& note : form.placement.notes) log::warning(note);
    if (grid_ != run_.grid) form.command = on_grid(form.command, grid_);
    if (can_resume_) form.command.insert(form.command.end(), {"--resume", "auto"});
    return words_to_run(form, rank_file_path_);
  }

 private:
  LaunchForm form_;
  RunConfig run_;
  Grid grid_;  // of the last start
  bool can_resume_;
  std::string rank_file_path_;
  std::vector<Host> hosts_;
};

int run_form(const LaunchForm& form, const Request& request, const RunConfig& run, bool can_resume) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("cuboid-{}.rankfile", getpid());
  struct Remove {
    const std::filesystem::path& path;
    ~Remove() {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    }
  } remove{path};
  Restart restart(form, run, can_resume, path.string());
  return supervise(words_to_run(form, path.string()), std::ref(restart), request.max_restarts);
}

}  // namespace

int launch_command(const Arguments& arguments) {
  Flags flags("cuboid launch [flags] train [flags of train]",
              "Starts a training run on several hosts: prints the mpirun command with its rank file, a batch script\n"
              "for Slurm, or a Kubernetes MPIJob, and with --run carries out the first.");
  Request request;
  add_flags(flags, request);
  const auto train = std::find(arguments.begin(), arguments.end(), "train");
  Problems problems;
  if (!flags.read({arguments.begin(), train}, problems)) return 0;
  problems.add_if(train == arguments.end(), "name what to launch: cuboid launch [flags] train [flags of train]");
  problems.add_if(!request.hosts.empty() && !request.host_file.empty(), "--hosts and --hostfile: give one of them");
  check_form(flags, request, problems);
  problems.throw_if_any();

  Flags train_flags("", "");
  RunDraft draft;
  bool json = false;
  add_run_flags(train_flags, draft);
  train_flags.toggle("json", json, "");
  const RunConfig run = read_run(train_flags, draft, {train + 1, arguments.end()}, problems);
  const auto hosts = hosts_of(request, run.grid.world(), problems);
  problems.throw_if_any();
  LaunchForm form;
  form.placement = place(run.grid, draft.ranks_per_process, hosts);
  form.command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  form.command.insert(form.command.end(), train, arguments.end());
  form.ranks_per_process = draft.ranks_per_process;
  form.cores_per_process = request.cores;
  for (const auto& note : form.placement.notes) log::warning(note);
  if (request.run) return run_form(form, request, run, !run.out.empty() && draft.resume.empty());
  fmt::print("{}", print_form(form, request));
  return 0;
}

}  // namespace cuboid::launch
