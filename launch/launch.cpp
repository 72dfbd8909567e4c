// cuboid launch: how a training run is started on several hosts, and with --run, doing so.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "cuboid/core/log.h"

#include "launch/commands.h"
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
  flags.whole("max-restarts", request.max_restarts, "start again so many times after a failure", 0, 1000);
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
  std::string line;
  for (const auto& word : mpirun_words(form, request.rank_file)) line += (line.empty() ? "" : " ") + quoted(word);
  return line + "\n";
}

int run_form(const LaunchForm& form, const Request& request, bool can_resume) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("cuboid-{}.rankfile", getpid());
  write_rank_file(path.string(), rank_file(form));
  auto words = mpirun_words(form, path.string());
  words.insert(words.begin() + 1, {"--oversubscribe", "--tag-output"});
  auto again = words;
  if (can_resume) again.insert(again.end(), {"--resume", "auto"});  // a restart goes on where the run was saved
  const int status = supervise(words, again, request.max_restarts);
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return status;
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
  flags.parse({arguments.begin(), train}, problems);
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  flags.apply(problems);
  problems.add_if(train == arguments.end(), "name what to launch: cuboid launch [flags] train [flags of train]");
  problems.add_if(!request.hosts.empty() && !request.host_file.empty(), "--hosts and --hostfile: give one of them");
  problems.add_if(request.run && request.form != Form::mpirun, "--run: only the mpirun form can be run");
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
  if (request.run) return run_form(form, request, !run.out.empty() && draft.resume.empty());
  fmt::print("{}", print_form(form, request));
  return 0;
}

}  // namespace cuboid::launch
