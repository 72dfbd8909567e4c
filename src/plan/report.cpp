#include "cuboid/plan/report.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "report_page.h"

namespace cuboid {
namespace {

using Json = nlohmann::ordered_json;

// [kind, stage, micro-batch, begin, end] of each computing action, in the order of time.
Json gantt_json(const Simulation& simulation) {
  Json rows = Json::array();
  for (const auto& spans : simulation.spans) {
    Json row = Json::array();
    for (const Span& span : spans) {
      if (!computes(span.action.kind)) continue;
      const char* kind = span.action.kind == ActionKind::forward          ? "F"
                         : span.action.kind == ActionKind::backward       ? "B"
                         : span.action.kind == ActionKind::input_gradient ? "I"
                                                                          : "W";
      row.push_back({kind, span.action.stage, span.action.micro_batch, static_cast<float>(span.begin),
                     static_cast<float>(span.end)});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json memory_json(const StepPrediction& prediction) {
  Json lines = Json::array();
  for (const RankPrediction& rank : prediction.ranks) {
    Json line = Json::array();
    for (const MemoryPoint& point : rank.timeline)
      line.push_back({static_cast<float>(point.time), std::llround(point.bytes)});
    lines.push_back(std::move(line));
  }
  return lines;
}

// "</script>" inside a string would end the page's data.
std::string inside_script(std::string text) {
  for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3) text.replace(at, 2, "<\\/");
  return text;
}

}  // namespace

std::string report_page(Predictor& predictor, const Report& report) {
  CUBOID_CHECK(!report.candidates.empty(), "a report without candidates");
  const RunConfig& run = report.candidates.front().run;
  const StepPrediction prediction = predictor.predict(run, {.spans = true, .memory_limit = report.memory_limit});
  const RankTraffic traffic = rank_traffic(predictor, run, prediction);
  Json data;
  data["title"] = report.title;
  data["subtitle"] = report.subtitle;
  data["explanation"] = report.explanation;
  data["facts"] = Json::array();
  for (const auto& [value, what] : report.facts) data["facts"].push_back({value, what});
  data["candidates"] = Json::parse(report.candidates_json);
  data["makespan"] = prediction.simulation.makespan;
  data["stages"] = prediction.stage_layers.size();
  data["gantt"] = gantt_json(prediction.simulation);
  data["memory"] = memory_json(prediction);
  data["memory_limit"] = report.memory_limit;
  data["traffic"] = {{"ranks_per_cell", traffic.ranks_per_cell}, {"bytes", traffic.bytes}};
  std::string page = plan::kReportPage;
  const std::size_t at = page.find(plan::kReportData);
  CUBOID_CHECK(at != std::string::npos, "the page has no place for its data");
  return page.replace(at, std::string(plan::kReportData).size(), inside_script(data.dump()));
}

}  // namespace cuboid
