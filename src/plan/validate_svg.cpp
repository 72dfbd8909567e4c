#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "cuboid/core/svg.h"
#include "cuboid/plan/validate.h"

namespace cuboid {
namespace {

constexpr double kSide = 560;  // of the square plot
constexpr double kLeft = 78;
constexpr double kTop = 46;
constexpr double kLegend = 470;  // width of the list of sources

// Colour-blind safe and apart in lightness (after Okabe and Ito); shapes tell sources of one colour apart.
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#444444"};

// A source's title as far as it fits the legend.
std::string short_title(const std::string& title) {
  constexpr std::size_t kShown = 52;
  if (title.size() <= kShown) return title;
  std::size_t cut = kShown - 1;
  while (cut > 0 && (static_cast<unsigned char>(title[cut]) & 0xC0) == 0x80) --cut;  // not within a character
  return title.substr(0, cut) + "…";
}

class Plot {
 public:
  explicit Plot(const Validation& validation) : validation_(validation) {
    for (const ValidatedRun& run : validation.runs) {
      if (!shown(run)) continue;
      least_ = std::min({least_, *run.run.step_seconds, run.step_seconds});
      most_ = std::max({most_, *run.run.step_seconds, run.step_seconds});
      number_.emplace(run.run.source, number_.size());
    }
    if (number_.empty()) least_ = 1, most_ = 10;
    least_ = std::log10(least_) - 0.1;
    most_ = std::log10(most_) + 0.1;
  }

  std::string draw() {
    const double width = kLeft + kSide + 30 + kLegend;
    const double height = kTop + kSide + 60;
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" "
        "fill=\"white\"/>\n",
        width, height);
    add("<text x=\"{:.0f}\" y=\"24\" font-size=\"15\" font-weight=\"bold\">Step time: {} published runs, mean "
        "error {:.1f} %</text>\n",
        kLeft, validation_.step.runs, 100 * validation_.step.mean);
    axes();
    lines();
    for (const ValidatedRun& run : validation_.runs) {
      if (shown(run)) mark(run);
    }
    legend();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  static bool shown(const ValidatedRun& run) { return run.why_not.empty() && run.run.step_seconds.has_value(); }

  template <typename... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    out_ += fmt::format(format, std::forward<Values>(values)...);
  }

  double x(double log) const { return kLeft + kSide * (log - least_) / (most_ - least_); }
  double y(double log) const { return kTop + kSide - kSide * (log - least_) / (most_ - least_); }

  void axes() {
    add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" stroke=\"#888\"/>\n", kLeft,
        kTop, kSide, kSide);
    for (int power = static_cast<int>(std::ceil(least_)); power <= most_; ++power) {
      add("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}M{3:.1f} {4:.1f}H{5:.1f}\" stroke=\"#ddd\"/>\n", x(power), kTop,
          kTop + kSide, kLeft, y(power), kLeft + kSide);
      const std::string label = fmt::format("{:g} s", std::pow(10.0, power));
      add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x(power), kTop + kSide + 18, label);
      add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 8, y(power) + 4, label);
    }
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">measured</text>\n", kLeft + kSide / 2,
        kTop + kSide + 42);
    add("<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">predicted</text>\n",
        kTop + kSide / 2);
  }

  // Equality, and 20 % to either side.
  void lines() {
    for (const double factor : {1.0, 1.2, 1 / 1.2}) {
      const double up = std::max(0.0, std::log10(factor));
      const double down = std::max(0.0, -std::log10(factor));
      add("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"#666\"{}/>\n", x(least_ + down), y(least_ + up),
          x(most_ - up), y(most_ - down), factor == 1 ? "" : " stroke-dasharray=\"3 4\"");
    }
  }

  void mark(const ValidatedRun& run) {
    symbol(number_.at(run.run.source), x(std::log10(*run.run.step_seconds)), y(std::log10(run.step_seconds)),
           fmt::format("{}: measured {:.3g} s, predicted {:.3g} s, {:+.1f} %", run.run.id, *run.run.step_seconds,
                       run.step_seconds, 100 * run.error()));
  }

  void symbol(std::size_t number, double at_x, double at_y, const std::string& title) {
    const char* color = kColors[number % std::size(kColors)];
    const std::string inside = title.empty() ? "" : "<title>" + xml_escaped(title) + "</title>";
    if (number < std::size(kColors)) {
      add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\" fill-opacity=\"0.7\">{}</circle>\n", at_x, at_y,
          color, inside);
    } else {
      add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"7\" height=\"7\" fill=\"{}\" fill-opacity=\"0.7\">{}</rect>\n",
          at_x - 3.5, at_y - 3.5, color, inside);
    }
  }

  void legend() {
    for (const auto& [source, number] : number_) {
      const double row = kTop + 14 + 20 * static_cast<double>(number);
      const ErrorSummary& summary = validation_.by_source.at(source);
      symbol(number, kLeft + kSide + 30, row - 4, "");
      add("<text x=\"{:.1f}\" y=\"{:.1f}\">{} ({} runs, {:.1f} %)</text>\n", kLeft + kSide + 42, row,
          xml_escaped(short_title(source)), summary.runs, 100 * summary.mean);
    }
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#555\">dashed: 20 % to either side</text>\n", kLeft + kSide + 30,
        kTop + 34 + 20 * static_cast<double>(number_.size()));
  }

  const Validation& validation_;
  std::map<std::string, std::size_t> number_;
  double least_ = 1e300;
  double most_ = 0;
  std::string out_;
};

}  // namespace

std::string draw_validation_svg(const Validation& validation) {
  return Plot(validation).draw();
}

}  // namespace cuboid
