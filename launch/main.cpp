// cuboid COMMAND [flags]: finds the command, and turns what it throws into a message and an exit status.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iterator>
#include <new>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "cuboid/core/error.h"
#include "cuboid/core/log.h"
#include "cuboid/core/text.h"
#include "cuboid/launch/program.h"

#include "launch/commands.h"
#include "launch/job.h"

namespace cuboid::launch {
namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments&);
};

constexpr Command kCommands[] = {
    {"train", "train a transformer on a tensor x pipeline x data grid", train_command},
    {"plan", "find the fastest grids for a model on a cluster", plan_command},
    {"doctor", "report what this machine has for training and what is missing", doctor_command},
    {"launch", "start a training run on several hosts: mpirun, Slurm or Kubernetes", launch_command},
    {"checkpoint", "inspect, verify, compare and convert checkpoints", checkpoint_command},
    {"data", "build token files from text, or look into them", data_command},
    {"models", "list the model presets, or describe one", models_command},
    {"schedule", "generate, check, time and draw a pipeline schedule", schedule_command},
    {"simulate", "predict a run's step time and memory on a cluster", simulate_command},
    {"sample", "let a trained model go on from a text", sample_command},
    {"topo", "show a machine's wiring, and place a grid's ranks on it", topo_command},
    {"bench", "measure communication, matrix products, training steps and placements", bench_command},
};

std::string help() {
  std::string text = "Usage: cuboid COMMAND [flags]\n\nTrains transformers with 3D parallelism.\n\nCommands:\n";
  for (const Command& command : kCommands) text += fmt::format("  {:<10} {}\n", command.name, command.summary);
  return text +
         "\n`cuboid COMMAND --help` lists a command's flags; `cuboid --version` prints the version.\n"
         "Exit status: 0 done, 2 the request is wrong (nothing was started), 3 the run failed, 4 a deadline passed.\n";
}

int dispatch(const Arguments& words) {
  if (words.empty()) {
    fmt::print(stderr, "{}\n", help());
    throw Error(ErrorKind::request, "no command given");
  }
  const std::string& word = words.front();
  if (word == "--help" || word == "-h" || (word == "help" && words.size() == 1)) {
    fmt::print("{}", help());
    return 0;
  }
  if (word == "--version") {
    fmt::print("cuboid {}\n", CUBOID_VERSION);
    return 0;
  }
  if (word == "help") {
    if (words.size() > 2) throw Error(ErrorKind::request, fmt::format("help {}: name one command", words[1]));
    return dispatch({words[1], "--help"});
  }
  const auto command =
      std::find_if(std::begin(kCommands), std::end(kCommands), [&](const Command& c) { return word == c.name; });
  if (command != std::end(kCommands)) return command->run({words.begin() + 1, words.end()});
  std::vector<std::string> names;
  for (const Command& c : kCommands) names.push_back(c.name);
  throw Error(ErrorKind::request, fmt::format("'{}' is no command; did you mean {}? The commands are {}", word,
                                              nearest(word, names), join(names)));
}

}  // namespace
}  // namespace cuboid::launch

namespace {

// The request or the run has failed: this process says why, or leaves it to the one that speaks for all.
void tell(const std::string& why) {
  if (cuboid::Processes* job = cuboid::launch::job()) job->refuse(why);
  if (cuboid::launch::speaks()) cuboid::log::error(why);
}

// A standard stream that is closed would give its number to the next file opened, and messages would go into that.
void occupy_standard_streams() {
  for (int descriptor = 0; descriptor <= STDERR_FILENO; ++descriptor) {
    // Read-only: what cannot be written is still noticed.
    if (fcntl(descriptor, F_GETFD) == -1) static_cast<void>(open("/dev/null", O_RDONLY));
  }
}

}  // namespace

int cuboid::run_program(int argc, char** argv) {
  occupy_standard_streams();
  int status = 0;
  try {
    status = launch::dispatch({argv + 1, argv + argc});
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw Error(ErrorKind::failed, "standard output could not be written");
    }
  } catch (const Error& error) {
    tell(error.what());
    status = error.exit_status();
  } catch (const std::bad_alloc&) {
    tell("out of memory");
    status = 3;
  } catch (const std::exception& error) {
    tell(fmt::format("internal error: {}", error.what()));
    status = 3;
  }
  if (Processes* job = launch::job()) job->leave(status);
  return status;
}
