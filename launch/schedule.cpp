// cuboid schedule: a pipeline schedule generated, read, proved, timed, drawn and written.
#include <algorithm>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/log.h"
#include "cuboid/core/text.h"
#include "cuboid/parallel/pipeline/auto_schedule.h"
#include "cuboid/parallel/pipeline/draw.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/passes.h"
#include "cuboid/parallel/pipeline/simulate.h"
#include "cuboid/parallel/pipeline/verify.h"
#include "cuboid/value/schedule_csv.h"

#include "launch/commands.h"
#include "launch/flags.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUsage = "cuboid schedule [--schedule S] [--pp P] [--micro-batches M] [flags]";
constexpr const char* kSummary =
    "Generates a pipeline schedule (or reads one), proves that it runs, times it, and draws or writes it.\n"
    "A cell such as 2B7 is stage 2's backward of micro-batch 7; F forward, B backward, I and W its two parts.";
// A file in place of a name.
constexpr std::string_view kFilePrefix = "file:";

enum class Format { text, csv, svg, json };

struct Request {
  std::string schedule = "1f1b";
  std::string file;
  int ranks = 4;
  int micro_batches = 8;
  int virtual_stages = 0;
  StageCosts costs;
  double transfer = 0;
  int max_activations = 0;
  Format format = Format::text;
  bool transfers = false;
};

void parse_costs(const std::string& text, Request& request) {
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const auto equals = item.find('=');
    const std::string key = item.substr(0, equals);
    double* target = key == "f"     ? &request.costs.forward
                     : key == "b"   ? &request.costs.backward
                     : key == "i"   ? &request.costs.input_gradient
                     : key == "w"   ? &request.costs.weight_gradient
                     : key == "p2p" ? &request.transfer
                                    : nullptr;
    if (target == nullptr || equals == std::string::npos) {
      throw Error(ErrorKind::request, "'" + item + "' is not f=TIME, b=TIME, i=TIME, w=TIME or p2p=TIME");
    }
    *target = Flags::parse_real(item.substr(equals + 1));
    if (*target < 0) throw Error(ErrorKind::request, "'" + item + "': a time is not negative");
  }
}

void add_flags(Flags& flags, Request& request) {
  flags.section("Schedule");
  flags.add("schedule", "S", request.schedule,
            "a name below, auto (searched for these costs), or file:PATH.csv. Names: " +
                fmt::format("{}", fmt::join(schedule_names(), ", ")),
            [&request](const Flags::Values& v) {
              const bool is_file = v.front().starts_with(kFilePrefix);
              (is_file ? request.file : request.schedule) = v.front().substr(is_file ? kFilePrefix.size() : 0);
            });
  flags.text("in", "FILE.csv", request.file, "read the schedule from the CSV of torch.distributed.pipelining");
  flags.whole("pp", request.ranks, "pipeline ranks", 1, 4096);
  flags.whole("micro-batches", request.micro_batches, "micro-batches of a step", 1, 1 << 20);
  flags.whole("virtual-stages", request.virtual_stages, "stages of a rank; 0: the schedule's own number", 0, 4096);
  flags.whole("max-activations", request.max_activations,
              "most micro-batches of one stage that a rank may hold; 0: any number", 0);
  flags.add("costs", "f=1,b=2,...", "f=1,b=2,i=1,w=1,p2p=0",
            "times of F, B, I and W of a stage and of a transfer, in any one unit",
            [&request](const Flags::Values& v) { parse_costs(v.front(), request); });
  flags.section("Output");
  flags.choice<Format>("format", request.format,
                       {{"text", Format::text}, {"csv", Format::csv}, {"svg", Format::svg}, {"json", Format::json}},
                       "how to print it");
  flags.toggle("comms", request.transfers, "with the transfers between ranks (SEND_F, RECV_F, SEND_B, RECV_B)");
}

PipelineCosts costs_of(const Request& request) {
  PipelineCosts costs;
  costs.stages = {request.costs};
  costs.transfer = request.transfer;
  return costs;
}

// The schedule; what should be known about how it was made goes to notes.
Schedule obtain(const Request& request, std::vector<std::string>& notes) {
  if (!request.file.empty()) {
    CsvSchedule read = read_schedule_csv(request.file);
    notes = read.notes;
    return read.schedule;
  }
  if (request.schedule != "auto") {
    return make_schedule({request.schedule, request.ranks, request.micro_batches, request.virtual_stages});
  }
  AutoRequest wanted;
  wanted.ranks = request.ranks;
  wanted.micro_batches = request.micro_batches;
  wanted.virtual_stages = std::max(1, request.virtual_stages);
  wanted.costs = costs_of(request);
  if (request.max_activations > 0) wanted.max_activations = request.max_activations;
  const AutoSchedule found = find_schedule(wanted);
  notes.push_back(fmt::format("auto: makespan {}, lower bound {}, from {}; the best named schedule is {}",
                              found.makespan, found.lower_bound, found.origin,
                              found.best_named.empty()
                                  ? "none (none fits)"
                                  : fmt::format("{} with {}", found.best_named, found.best_named_makespan)));
  return found.schedule;
}

// Proves the schedule; notes are told, faults thrown.
void prove(const Schedule& schedule, const Request& request) {
  VerifyOptions options;
  if (request.max_activations > 0) options.max_activations = request.max_activations;
  require_valid(schedule, options);
  for (const Finding& finding : verify(schedule, options)) log::info(finding.text);
}

Json json_of(const Schedule& schedule, const Simulation& timed) {
  Json rows = Json::array();
  std::istringstream csv(to_csv(schedule));
  for (std::string row; std::getline(csv, row);) {
    Json cells = Json::array();
    std::istringstream words(row);
    for (std::string cell; std::getline(words, cell, ',');) cells.push_back(cell);
    rows.push_back(cells);
  }
  return {{"schedule", schedule.name},
          {"stages", schedule.stages},
          {"ranks", schedule.ranks()},
          {"micro_batches", schedule.micro_batches},
          {"makespan", timed.makespan},
          {"bubble_fraction", timed.bubble_fraction},
          {"idle", timed.idle},
          {"peak_activations", timed.peak_activations},
          {"actions", rows}};
}

}  // namespace

int schedule_command(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  Request request;
  add_flags(flags, request);
  Problems problems;
  flags.parse(arguments, problems);
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  flags.apply(problems);
  for (const char* name : {"pp", "micro-batches", "virtual-stages"}) {
    const auto given = flags.value_of(name);
    if (given && !request.file.empty()) {
      problems.add(fmt::format("--{} {}: the file {} says it", name, *given, request.file));
    }
  }
  problems.throw_if_any();

  std::vector<std::string> notes;
  Schedule schedule = obtain(request, notes);
  for (const auto& note : notes) log::info(note);
  prove(schedule, request);
  const bool has_transfers = std::any_of(schedule.rows.begin(), schedule.rows.end(), [](const auto& row) {
    return std::any_of(row.begin(), row.end(), [](const Action& a) { return transfers(a.kind); });
  });
  if (request.transfers && !has_transfers) schedule = add_transfers(schedule);
  if (request.format == Format::csv) {
    fmt::print("{}", to_csv(schedule));
    return 0;
  }
  const Simulation timed = simulate(schedule, costs_of(request));
  if (request.format == Format::json) {
    fmt::print("{}\n", json_of(schedule, timed).dump(2));
    return 0;
  }
  Drawing drawing;
  drawing.title =
      fmt::format("{} · {} ranks · {} micro-batches", schedule.name, schedule.ranks(), schedule.micro_batches);
  const StageCosts& c = request.costs;
  drawing.subtitle = fmt::format("F {}, B {}, I {}, W {}, transfer {}", c.forward, c.backward, c.input_gradient,
                                 c.weight_gradient, request.transfer);
  drawing.spans = timed.spans;
  fmt::print("{}", request.format == Format::svg ? draw_svg(drawing) : draw_text(drawing));
  return 0;
}

}  // namespace cuboid::launch
