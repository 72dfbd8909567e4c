#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "cuboid/core/svg.h"
#include "cuboid/parallel/pipeline/draw.h"

#include "timeline.h"

namespace cuboid {
namespace {

using pipeline::Lane;
using pipeline::Level;
using pipeline::make_timeline;
using pipeline::Timeline;

struct Rgb {
  int r, g, b;
};

// Colour-blind safe: blue, green, teal and amber also differ in lightness.
struct Style {
  ActionKind kind;
  Rgb color;
  const char* name;
};
constexpr std::array<Style, 8> kStyles = {{
    {ActionKind::forward, {59, 111, 182}, "F  forward"},
    {ActionKind::backward, {47, 133, 90}, "B  backward"},
    {ActionKind::input_gradient, {64, 160, 160}, "I  input gradient"},
    {ActionKind::weight_gradient, {224, 159, 45}, "W  weight gradient"},
    {ActionKind::reduce_gradient, {155, 106, 168}, "reduce gradients"},
    {ActionKind::unshard, {130, 120, 160}, "gather parameters"},
    {ActionKind::reshard, {170, 165, 185}, "free parameters"},
    {ActionKind::step, {148, 103, 80}, "optimizer step"},
}};

constexpr double kLeft = 64;        // rank names
constexpr double kRight = 120;      // figures of each rank
constexpr double kLane = 26;        // height of a lane of the chart
constexpr double kArrowLane = 44;   // the same with room for hand-overs between lanes
constexpr double kBox = 22;         // height of a box in it
constexpr double kMemoryLane = 26;  // height of a lane of the memory curves
constexpr double kTop = 92;
constexpr double kDigit = 5.4;  // width of a digit at the size of the numbers
constexpr double kMinWidth = 860;
constexpr double kMaxWidth = 16000;

const Style& style_of(ActionKind kind) {
  return *std::find_if(kStyles.begin(), kStyles.end() - 1, [&](const Style& style) { return style.kind == kind; });
}

// Later virtual stages are lighter.
Rgb shade(Rgb color, int chunk, int chunks) {
  const double mix = chunks < 2 ? 0 : 0.5 * chunk / (chunks - 1);
  const auto towards_white = [mix](int c) { return static_cast<int>(std::lround(c + (255 - c) * mix)); };
  return {towards_white(color.r), towards_white(color.g), towards_white(color.b)};
}

std::string hex(Rgb c) {
  return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b);
}

// The largest of 1, 2, 5 times a power of ten that gives at least five steps.
double tick_step(double range) {
  if (range <= 0) return 1;
  const double power = std::pow(10, std::floor(std::log10(range / 5)));
  for (double factor : {5.0, 2.0}) {
    if (range / (factor * power) >= 5) return factor * power;
  }
  return power;
}

class Chart {
 public:
  explicit Chart(const Drawing& drawing) : drawing_(drawing), timeline_(make_timeline(drawing)) {
    int largest = 0;
    for (const Lane& lane : timeline_.lanes) {
      for (const Span& span : lane.spans) {
        kinds_.insert(span.action.kind);
        largest = std::max(largest, span.action.micro_batch);
      }
    }
    // The shortest action has room for the largest number.
    const double digits = static_cast<double>(std::to_string(largest).size());
    const double wanted =
        timeline_.shortest > 0 ? timeline_.makespan / timeline_.shortest * (digits * kDigit + 3) : kMinWidth;
    plot_ = std::clamp(wanted, kMinWidth, kMaxWidth);
    scale_ = timeline_.makespan > 0 ? plot_ / timeline_.makespan : 0;
    ranks_ = static_cast<double>(timeline_.lanes.size());
    pitch_ = drawing_.arrows ? kArrowLane : kLane;
    axis_ = kTop + ranks_ * pitch_ - (pitch_ - kLane) + 8;
    memory_top_ = axis_ + 56;
    height_ = memory_top_ + ranks_ * kMemoryLane + 20;
  }

  std::string draw() {
    header();
    legend();
    for (std::size_t rank = 0; rank < timeline_.lanes.size(); ++rank) lane(rank);
    if (drawing_.arrows) hand_overs();
    time_axis();
    memory();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  double x(double time) const { return kLeft + time * scale_; }

  void header() {
    const double width = kLeft + plot_ + kRight;
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" "
        "font-family=\"Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\" font-size=\"12\">\n",
        width, height_);
    out_ +=
        "<style>.n{font-size:9px;text-anchor:middle;pointer-events:none}.g{fill:#5c6470}.s{fill:#8a919c;font-size:11px}"
        "</style>\n"
        "<defs><pattern id=\"idle\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#f3f4f6\"/><rect width=\"1.4\" "
        "height=\"6\" fill=\"#dfe2e7\"/></pattern></defs>\n";
    add("<rect width=\"{:.0f}\" height=\"{:.0f}\" fill=\"#ffffff\"/>\n", width, height_);
    add("<text x=\"{}\" y=\"28\" font-size=\"17\" font-weight=\"600\" fill=\"#1f2530\">{}</text>\n", kLeft,
        xml_escaped(drawing_.title));
    std::string figures = fmt::format("makespan {}   ·   bubble {:.1f} %   ·   peak {:.4g} micro-batches of a stage",
                                      time(timeline_.makespan), 100 * timeline_.bubble_fraction, timeline_.peak);
    if (!drawing_.subtitle.empty()) figures = drawing_.subtitle + "   ·   " + figures;
    add("<text x=\"{}\" y=\"47\" class=\"g\">{}</text>\n", kLeft, xml_escaped(figures));
  }

  std::string time(double value) const {
    return fmt::format("{:.6g}{}", value, drawing_.unit.empty() ? "" : " " + drawing_.unit);
  }

  void legend() {
    double at = kLeft;
    const auto entry = [&](const std::string& fill, const std::string& name) {
      add("<rect x=\"{:.1f}\" y=\"60\" width=\"14\" height=\"14\" rx=\"2.5\" fill=\"{}\"/>"
          "<text x=\"{:.1f}\" y=\"71\" class=\"g\">{}</text>\n",
          at, fill, at + 20, name);
      at += 20 + 6.6 * static_cast<double>(name.size()) + 18;
    };
    for (const Style& style : kStyles) {
      if (kinds_.count(style.kind) > 0) entry(hex(style.color), style.name);
    }
    entry("url(#idle)", "bubble");
    if (timeline_.virtual_stages > 1) {
      const Style& style = style_of(ActionKind::forward);
      for (int chunk = 0; chunk < timeline_.virtual_stages; ++chunk) {
        add("<rect x=\"{:.1f}\" y=\"60\" width=\"14\" height=\"14\" rx=\"2.5\" fill=\"{}\"/>\n", at,
            hex(shade(style.color, chunk, timeline_.virtual_stages)));
        at += 16;
      }
      add("<text x=\"{:.1f}\" y=\"71\" class=\"g\">virtual stages, first to last</text>\n", at + 4);
    }
  }

  void lane(std::size_t rank) {
    const Lane& lane = timeline_.lanes[rank];
    const double top = kTop + static_cast<double>(rank) * pitch_;
    add("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" class=\"g\">rank {}</text>\n", kLeft - 10, top + 15.5, rank);
    add("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" rx=\"2\" fill=\"url(#idle)\"/>\n", kLeft, top,
        plot_, kBox);
    std::map<int, int> chunks;  // stage → which of the rank's stages
    for (const Span& span : lane.spans) {
      if (span.action.stage >= 0) chunks.emplace(span.action.stage, 0);
    }
    int next = 0;
    for (auto& [stage, chunk] : chunks) chunk = next++;
    for (std::size_t i = 0; i < lane.spans.size(); ++i) {
      const Span& span = lane.spans[i];
      const int half = span.action.overlapped ? 1 : i > 0 && lane.spans[i - 1].action.overlapped ? 2 : 0;
      const int chunk = span.action.stage >= 0 ? chunks[span.action.stage] : 0;
      box(span, shade(style_of(span.action.kind).color, chunk, static_cast<int>(chunks.size())), top, half);
    }
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"s\">idle {:.1f} %</text>\n", kLeft + plot_ + 10, top + 15.5,
        timeline_.makespan > 0 ? 100 * lane.idle / timeline_.makespan : 0);
  }

  // half: 0 the whole lane, 1 and 2 the upper and lower half, for the two of an overlapped pair.
  void box(const Span& span, Rgb color, double top, int half) {
    const double height = half == 0 ? kBox : kBox / 2 - 0.5;
    const double y = half == 2 ? top + kBox / 2 + 0.5 : top;
    const double width = std::max(0.3, (span.end - span.begin) * scale_ - 0.8);
    add("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" rx=\"1.6\" fill=\"{}\"><title>{}  {:.6g} "
        "to "
        "{}</title></rect>",
        x(span.begin), y, width, height, hex(color), to_string(span.action), span.begin, time(span.end));
    const std::string number = span.action.micro_batch < 0 ? "" : std::to_string(span.action.micro_batch);
    if (!number.empty() && width >= static_cast<double>(number.size()) * kDigit) {
      const double lightness = 0.299 * color.r + 0.587 * color.g + 0.114 * color.b;
      add("<text x=\"{:.2f}\" y=\"{:.1f}\" class=\"n\" fill=\"{}\">{}</text>", x(span.begin) + width / 2,
          y + height / 2 + 3.2, lightness > 150 ? "#1f2530" : "#ffffff", number);
    }
    out_ += '\n';
  }

  struct Made {
    std::size_t rank;
    double end;
  };

  // A line from each F, B or I to the action of the next stage that uses it, where that is on another rank.
  void hand_overs() {
    std::map<std::pair<int, int>, Made> outputs;    // by stage and micro-batch
    std::map<std::pair<int, int>, Made> gradients;  // of the stage's input
    for (std::size_t rank = 0; rank < timeline_.lanes.size(); ++rank) {
      for (const Span& span : timeline_.lanes[rank].spans) {
        const std::pair<int, int> key{span.action.stage, span.action.micro_batch};
        if (span.action.kind == ActionKind::forward) outputs[key] = {rank, span.end};
        if (makes_input_gradient(span.action.kind)) gradients[key] = {rank, span.end};
      }
    }
    out_ += "<g stroke=\"#1f2530\" stroke-width=\"0.8\" stroke-opacity=\"0.45\">\n";
    for (std::size_t rank = 0; rank < timeline_.lanes.size(); ++rank) {
      for (const Span& span : timeline_.lanes[rank].spans) {
        const Action& a = span.action;
        const bool forward = a.kind == ActionKind::forward;
        if (!forward && !makes_input_gradient(a.kind)) continue;
        const auto& made = forward ? outputs : gradients;
        const auto from = made.find({a.stage + (forward ? -1 : 1), a.micro_batch});
        if (from == made.end() || from->second.rank == rank) continue;
        const bool down = from->second.rank < rank;
        const auto y = [this](std::size_t of, bool lower) {
          return kTop + static_cast<double>(of) * pitch_ + (lower ? kBox : 0);
        };
        add("<line x1=\"{:.2f}\" y1=\"{:.1f}\" x2=\"{:.2f}\" y2=\"{:.1f}\"/>\n", x(from->second.end) - 1,
            y(from->second.rank, down), x(span.begin) + 1, y(rank, !down));
      }
    }
    out_ += "</g>\n";
  }

  void time_axis() {
    add("<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" stroke=\"#c3c8d0\"/>\n", kLeft, axis_,
        kLeft + plot_);
    // As many labels as fit every 70 to 175 pixels.
    const double step = tick_step(timeline_.makespan * 350 / plot_);
    for (int i = 0; i * step <= timeline_.makespan * (1 + 1e-9); ++i) {
      add("<line x1=\"{0:.2f}\" y1=\"{1:.1f}\" x2=\"{0:.2f}\" y2=\"{2:.1f}\" stroke=\"#c3c8d0\"/>"
          "<text x=\"{0:.2f}\" y=\"{3:.1f}\" text-anchor=\"middle\" class=\"s\">{4:.6g}</text>\n",
          x(i * step), axis_, axis_ + 4, axis_ + 17, i * step);
    }
    if (drawing_.unit.empty()) return;
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"s\">{}</text>\n", kLeft + plot_ + 10, axis_ + 17,
        xml_escaped(drawing_.unit));
  }

  // A step curve a rank, all of one scale.
  void memory() {
    add("<text x=\"{}\" y=\"{:.1f}\" fill=\"#1f2530\" font-weight=\"600\">Activations held</text>"
        "<text x=\"{}\" y=\"{:.1f}\" class=\"s\">micro-batches of one stage, from F to B (or W); all ranks to one "
        "scale</text>\n",
        kLeft, memory_top_ - 12, kLeft + 116, memory_top_ - 12);
    const double full = timeline_.peak > 0 ? (kMemoryLane - 5) / timeline_.peak : 0;
    for (std::size_t rank = 0; rank < timeline_.lanes.size(); ++rank) {
      const Lane& lane = timeline_.lanes[rank];
      const double base = memory_top_ + static_cast<double>(rank + 1) * kMemoryLane - 2;
      std::string path = fmt::format("M{:.1f} {:.1f}", kLeft, base);
      for (std::size_t i = 0; i < lane.levels.size(); ++i) {
        const bool last_of_moment = i + 1 == lane.levels.size() || lane.levels[i + 1].time != lane.levels[i].time;
        if (!last_of_moment) continue;
        path += fmt::format("H{:.2f}V{:.2f}", x(lane.levels[i].time), base - lane.levels[i].activations * full);
      }
      add("<path d=\"{}H{:.1f}V{:.1f}Z\" fill=\"#c9d8ec\" stroke=\"#3b6fb6\" stroke-width=\"0.9\"/>\n", path,
          kLeft + plot_, base);
      add("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" class=\"g\">rank {}</text>"
          "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"s\">peak {:.4g}</text>\n",
          kLeft - 10, base - 6, rank, kLeft + plot_ + 10, base - 6, lane.peak);
    }
  }

  const Drawing& drawing_;
  Timeline timeline_;
  std::set<ActionKind> kinds_;
  double plot_ = 0;   // width of the time range
  double scale_ = 0;  // pixels a unit of time
  double ranks_ = 0;
  double pitch_ = 0;  // of the chart's lanes
  double axis_ = 0;
  double memory_top_ = 0;
  double height_ = 0;
  std::string out_;
};

}  // namespace

std::string draw_svg(const Drawing& drawing) {
  return Chart(drawing).draw();
}

}  // namespace cuboid
