// cuboid schedule: a pipeline schedule generated, read, proved, timed, drawn and written.
#include <algorithm>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/log.h"
#include "cuboid/core/text.h"
#include "cuboid/parallel/pipeline/auto_schedule.h"
#include "cuboid/parallel/pipeline/draw.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/passes.h"
#include "cuboid/parallel/pipeline/select.h"
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
  CsvDialect dialect = CsvDialect::automatic;
  Format format = Format::text;
  bool json = false;
  bool transfers = false;
};

double time_of(const std::string& item, std::string_view text) {
  const double time = Flags::parse_real(std::string(text));
  if (time < 0) throw Error(ErrorKind::request, "'" + item + "': a time is not negative");
  return time;
}

// B is I and W: what is not given follows from what is.
void complete(std::optional<double> b, std::optional<double> i, std::optional<double> w, StageCosts& costs) {
  if (!b && !i && !w) return;
  if (b && !i && !w) i = w = *b / 2;
  if (b && !i) i = std::max(0.0, *b - *w);
  if (b && !w) w = std::max(0.0, *b - *i);
  costs.input_gradient = i.value_or(costs.input_gradient);
  costs.weight_gradient = w.value_or(costs.weight_gradient);
  costs.backward = b.value_or(costs.input_gradient + costs.weight_gradient);
}

void parse_costs(const std::string& text, Request& request) {
  std::optional<double> f, b, i, w, p2p;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const auto equals = item.find('=');
    const std::string key = item.substr(0, equals);
    std::optional<double>* target = key == "f"     ? &f
                                    : key == "b"   ? &b
                                    : key == "i"   ? &i
                                    : key == "w"   ? &w
                                    : key == "p2p" ? &p2p
                                                   : nullptr;
    if (target == nullptr || equals == std::string::npos) {
      throw Error(ErrorKind::request, "'" + item + "' is not f=TIME, b=TIME, i=TIME, w=TIME or p2p=TIME");
    }
    *target = time_of(item, std::string_view(item).substr(equals + 1));
  }
  request.costs.forward = f.value_or(request.costs.forward);
  request.transfer = p2p.value_or(request.transfer);
  complete(b, i, w, request.costs);
}

void add_flags(Flags& flags, Request& request) {
  flags.section("Schedule");
  flags.add("schedule", "S", request.schedule,
            "a name below, auto (searched for these costs), or file:PATH.csv. Names: " +
                fmt::format("{}", fmt::join(schedule_names(), ", ")),
            [&request](const Flags::Values& v) {
              const bool is_file = v.front().starts_with(kSchedulePathPrefix);
              (is_file ? request.file : request.schedule) = v.front().substr(is_file ? kSchedulePathPrefix.size() : 0);
            });
  flags.text("in", "FILE.csv", request.file, "read the schedule from the CSV of torch.distributed.pipelining");
  flags.choice<CsvDialect>(
      "dialect", request.dialect,
      {{"auto", CsvDialect::automatic}, {"current", CsvDialect::current}, {"2024", CsvDialect::of_2024}},
      "of the file: in 2024 B was the input gradient and BW the whole backward; auto goes by BW");
  flags.whole("pp", request.ranks, "pipeline ranks", 1, 4096);
  flags.whole("micro-batches", request.micro_batches, "micro-batches of a step", 1, 1 << 20);
  flags.whole("virtual-stages", request.virtual_stages, "stages of a rank; 0: the schedule's own number", 0, 4096);
  flags.whole("max-activations", request.max_activations,
              "most micro-batches of one stage that a rank may hold; 0: any number", 0);
  flags.add("costs", "f=1,b=2,...", "f=1,b=2,i=1,w=1,p2p=0",
            "times of F, B, I and W of a stage and of a transfer, in any one unit; B is I + W where one is not given",
            [&request](const Flags::Values& v) { parse_costs(v.front(), request); });
  flags.section("Output");
  flags.choice<Format>("format", request.format,
                       {{"text", Format::text}, {"csv", Format::csv}, {"svg", Format::svg}, {"json", Format::json}},
                       "how to print it");
  flags.toggle("json", request.json, "the same as --format json");
  flags.toggle("comms", request.transfers, "with the transfers between ranks (SEND_F, RECV_F, SEND_B, RECV_B)");
}

PipelineCosts costs_of(const Request& request) {
  PipelineCosts costs;
  costs.stages = {request.costs};
  costs.transfer = request.transfer;
  return costs;
}

// The schedule; what should be known about how it was made goes to notes.
Schedule obtain(const Request& request, std::vector<std::string>& notes, std::optional<AutoSchedule>& chosen) {
  if (!request.file.empty()) {
    CsvSchedule read = read_schedule_csv(request.file, request.dialect);
    notes = read.notes;
    return read.schedule;
  }
  if (request.schedule != kAutoSchedule) {
    return make_schedule({request.schedule, request.ranks, request.micro_batches, request.virtual_stages});
  }
  AutoRequest wanted;
  wanted.ranks = request.ranks;
  wanted.micro_batches = request.micro_batches;
  wanted.virtual_stages = std::max(1, request.virtual_stages);
  wanted.costs = costs_of(request);
  if (request.max_activations > 0) wanted.max_activations = request.max_activations;
  chosen = find_schedule(wanted);
  const AutoSchedule& found = *chosen;
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

// The cells of each row, as the CSV writes them.
std::vector<std::vector<std::string>> cells_of(const Schedule& schedule) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream csv(to_csv(schedule));
  for (std::string row; std::getline(csv, row);) {
    auto& cells = rows.emplace_back();
    std::istringstream words(row);
    for (std::string cell; std::getline(words, cell, ',');) cells.push_back(cell);
  }
  return rows;
}

Json json_of(const Schedule& schedule, const Simulation& timed, const std::optional<AutoSchedule>& chosen) {
  Json document = {{"schedule", schedule.name},    {"stages", schedule.stages},
                   {"ranks", schedule.ranks()},    {"micro_batches", schedule.micro_batches},
                   {"makespan", timed.makespan},   {"bubble_fraction", timed.bubble_fraction},
                   {"idle", timed.idle},           {"idle_in_span", timed.idle_in_span},
                   {"barrier", timed.barrier},     {"peak_activations", timed.peak_activations},
                   {"actions", cells_of(schedule)}};
  if (chosen) {
    const bool named = !chosen->best_named.empty();
    document["auto"] = {{"origin", chosen->origin},
                        {"lower_bound", chosen->lower_bound},
                        {"best_named", named ? Json(chosen->best_named) : Json(nullptr)},
                        {"best_named_makespan", named ? Json(chosen->best_named_makespan) : Json(nullptr)}};
  }
  return document;
}

std::string text_of(const Schedule& schedule, const Simulation& timed, const Drawing& drawing, bool with_transfers) {
  std::string text = draw_text(drawing, static_cast<int>(output_columns().value_or(0)));
  if (timed.barrier > 1e-9 * timed.makespan) {
    text += fmt::format("barrier {:.6g}: no rank works all the makespan, yet all wait for the global gradient norm\n",
                        timed.barrier);
  }
  if (!with_transfers) return text;
  const auto rows = cells_of(schedule);
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    text += fmt::format("rank {}: {}\n", rank, fmt::join(rows[rank], " "));
  }
  return text;
}

void check_request(const Flags& flags, const Request& request, Problems& problems) {
  check_json_or_format(flags, request.json, problems);
  if (request.file.empty()) {
    problems.add_if(request.dialect != CsvDialect::automatic, "--dialect: only a file has one; give --in FILE.csv");
    return;
  }
  for (const char* name : {"pp", "micro-batches", "virtual-stages"}) {
    if (const auto given = flags.value_of(name)) {
      problems.add(fmt::format("--{} {}: the file {} says it", name, *given, request.file));
    }
  }
  const auto named = flags.value_of("schedule");
  if (named && !named->starts_with(kSchedulePathPrefix)) {
    problems.add(fmt::format("--schedule {}: the schedule is that of the file {}", *named, request.file));
  }
}

}  // namespace

int schedule_command(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  Request request;
  add_flags(flags, request);
  Problems problems;
  if (!flags.read(arguments, problems)) return 0;
  if (request.json) request.format = Format::json;
  check_request(flags, request, problems);
  problems.throw_if_any();

  std::vector<std::string> notes;
  std::optional<AutoSchedule> chosen;
  Schedule schedule = obtain(request, notes, chosen);
  for (const auto& note : notes) log::info(note);
  prove(schedule, request);
  if (request.transfers && !has_transfers(schedule)) schedule = add_transfers(schedule);
  if (request.format == Format::csv) {
    fmt::print("{}", to_csv(schedule));
    return 0;
  }
  const Simulation timed = simulate(schedule, costs_of(request));
  if (request.format == Format::json) {
    fmt::print("{}\n", json_of(schedule, timed, chosen).dump(2));
    return 0;
  }
  Drawing drawing;
  drawing.title = fmt::format("{0}{3}{1}{3}{2}", schedule.name, counted(schedule.ranks(), "rank"),
                              counted(schedule.micro_batches, "micro-batch", "micro-batches"),
                              request.format == Format::svg ? " · " : ", ");  // text stays ASCII for every terminal
  const StageCosts& c = request.costs;
  drawing.subtitle = fmt::format("F {}, B {}, I {}, W {}, transfer {}", c.forward, c.backward, c.input_gradient,
                                 c.weight_gradient, request.transfer);
  drawing.spans = timed.spans;
  drawing.arrows = request.transfers;
  fmt::print("{}",
             request.format == Format::svg ? draw_svg(drawing) : text_of(schedule, timed, drawing, request.transfers));
  return 0;
}

}  // namespace cuboid::launch
