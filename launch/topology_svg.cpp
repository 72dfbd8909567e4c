// A topology as a drawing: a frame a node, its devices above its network cards, the fabric below. The fastest paths
// between devices are arcs (a bar where all are equal), a line leads from each device to the cards it uses.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "cuboid/core/svg.h"
#include "cuboid/core/units.h"

#include "launch/topology_report.h"

namespace cuboid::launch {
namespace {

constexpr double kDevice = 74;   // width of a device's box
constexpr double kGap = 14;      // between boxes
constexpr double kMargin = 18;   // inside a node's frame
constexpr double kArcs = 112;    // room for arcs above the devices
constexpr double kBox = 44;      // height of a device
constexpr double kCard = 26;     // height of a card
constexpr double kToCards = 46;  // between devices and cards
constexpr int kAcross = 2;       // frames beside each other
constexpr std::size_t kMostNodes = 16;
// Colour-blind safe; one for each group of the first split axis.
constexpr std::array<const char*, 8> kColors = {"#3b6fb6", "#e09f2d", "#2f855a", "#9b6aa8",
                                                "#40a0a0", "#b5534c", "#8a8a3a", "#5b7fa8"};

class Drawing {
 public:
  Drawing(const Topology& topology, const std::optional<PlacedGrid>& placed)
      : topology_(topology), placed_(placed), at_(places(topology)), rank_of_device_(at_.size(), -1) {
    if (!placed_) return;
    const auto& devices = placed_->ranks.device_of_rank;
    for (std::size_t r = 0; r < devices.size(); ++r)
      rank_of_device_[static_cast<std::size_t>(devices[r])] = static_cast<int>(r);
  }

  std::string draw() {
    const std::size_t shown = std::min(topology_.nodes.size(), kMostNodes);
    int first = 0;
    double x = 0;
    double y = 46;
    double bottom = y;
    for (std::size_t n = 0; n < shown; ++n) {
      const auto [width, height] = draw_node(n, first, 10 + x, y);
      first += static_cast<int>(kind(n).devices.size());
      width_ = std::max(width_, 10 + x + width + 10);
      bottom = std::max(bottom, y + height);
      x += width + 24;
      if ((n + 1) % kAcross == 0) {
        x = 0;
        y = bottom + 18;
      }
    }
    bottom += 26;
    for (const FabricLevel& level : topology_.fabric) {
      if (topology_.nodes.size() < 2) break;
      add(R"(<rect x="10" y="{:.0f}" width="{:.0f}" height="22" rx="4" fill="#e4e6ea"/>)", bottom, width_ - 20);
      text(width_ / 2, bottom + 15, "middle",
           fmt::format("{}{}{}", level.name, level.rail ? ", a switch a rail" : "",
                       level.nodes > 0 ? fmt::format(", {} nodes each", level.nodes) : ""));
      bottom += 28;
    }
    if (shown < topology_.nodes.size()) {
      text(10, bottom + 12, "start", fmt::format("and {} nodes more", topology_.nodes.size() - shown));
      bottom += 20;
    }
    const double width = std::max(width_, 420.0);
    std::string title = topology_.name;
    if (placed_)
      title += fmt::format(": {} ranks, communication of a step {}", placed_->grid.world(),
                           human_seconds(placed_->ranks.cost.seconds));
    return fmt::format(
               R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" font-family="sans-serif" font-size="11">
<rect width="100%" height="100%" fill="white"/>
<text x="10" y="26" font-size="15">{2}</text>
)",
               width, bottom + 10, xml_escaped(title)) +
           body_ + "</svg>\n";
  }

 private:
  const NodeKind& kind(std::size_t node) const {
    return topology_.kinds[static_cast<std::size_t>(topology_.nodes[node].kind)];
  }
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    body_ += fmt::format(format, std::forward<Args>(args)...) + "\n";
  }
  void text(double x, double y, const char* anchor, const std::string& words, const char* color = "#222") {
    add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}">{}</text>)", x, y, anchor, color, xml_escaped(words));
  }

  std::pair<double, double> draw_node(std::size_t node, int first, double x, double y) {
    const NodeKind& k = kind(node);
    const double columns = static_cast<double>(std::max(k.devices.size(), (k.nics.size() + 1) / 2));
    const double width = 2 * kMargin + columns * (kDevice + kGap) - kGap;
    const double cards = k.nics.empty() ? 0 : kToCards + kCard;
    const double height = 26 + kArcs + kBox + cards + kMargin;
    add(R"(<rect x="{:.0f}" y="{:.0f}" width="{:.0f}" height="{:.0f}" rx="6" fill="#f7f8fa" stroke="#9aa0a8"/>)", x, y,
        width, height);
    text(x + 10, y + 17, "start", topology_.nodes[node].name);
    const double top = y + 26 + kArcs;
    const auto center = [&](int d) { return x + kMargin + d * (kDevice + kGap) + kDevice / 2; };
    draw_paths(k, center, top);
    draw_cards(k, center, x, width, top);
    for (std::size_t d = 0; d < k.devices.size(); ++d)
      draw_device(k.devices[d], first + static_cast<int>(d), center(static_cast<int>(d)), top);
    return {width, height};
  }

  // Arcs of the fastest paths that are not all there is; thicker ones carry more.
  template <typename Center>
  void draw_paths(const NodeKind& k, const Center& center, double top) {
    const auto count = static_cast<int>(k.devices.size());
    double fastest = 0;
    double slowest = INFINITY;
    for (const Path& path : k.paths) {
      if (path.kind == PathKind::same) continue;
      fastest = std::max(fastest, path.bandwidth);
      slowest = std::min(slowest, path.bandwidth);
    }
    if (count < 2) return;
    const auto name = [](const Path& path) {
      return fmt::format("{}{} {:.3g} GB/s", name_of(path.kind), path.links > 0 ? fmt::format(" x{}", path.links) : "",
                         path.bandwidth * 1e-9);
    };
    if (fastest == slowest) {
      add(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="20" rx="4" fill="#cfe0d6"/>)", center(0) - kDevice / 2,
          top - 56, center(count - 1) - center(0) + kDevice);
      text((center(0) + center(count - 1)) / 2, top - 42, "middle", "all pairs: " + name(k.path(0, 1)));
      for (int d = 0; d < count; ++d)
        add(R"(<path d="M{0:.1f} {1:.1f} V{2:.1f}" stroke="#2f855a" stroke-width="2"/>)", center(d), top - 36, top);
      return;
    }
    for (int a = 0; a < count; ++a) {
      for (int b = a + 1; b < count; ++b) {
        const Path& path = k.path(a, b);
        if (path.bandwidth == slowest) continue;
        const double lift = std::min(kArcs - 30, 18.0 + 16.0 * (b - a));
        add(R"(<path d="M{0:.1f} {1:.1f} C{0:.1f} {2:.1f} {3:.1f} {2:.1f} {3:.1f} {1:.1f}" fill="none" stroke="{4}" stroke-width="{5:.1f}"><title>{6}</title></path>)",
            center(a), top, top - 1.33 * lift, center(b), path.kind == PathKind::nvlink ? "#2f855a" : "#7a828c",
            1 + 3 * path.bandwidth / fastest, name(path));
      }
    }
    const auto slow = std::find_if(k.paths.begin(), k.paths.end(),
                                   [&](const Path& p) { return p.kind != PathKind::same && p.bandwidth == slowest; });
    text(center(count - 1) + kDevice / 2, top - kArcs + 6, "end",
         "arcs: faster paths; pairs without one: " + name(*slow), "#666");
  }

  template <typename Center>
  void draw_cards(const NodeKind& k, const Center& center, double x, double width, double top) {
    if (k.nics.empty()) return;
    const double each = (width - 2 * kMargin) / static_cast<double>(k.nics.size());
    const double y = top + kBox + kToCards;
    for (std::size_t d = 0; d < k.devices.size(); ++d) {
      for (int n : k.nics_of(static_cast<int>(d))) {
        const double to = x + kMargin + (n + 0.5) * each;
        add(R"(<path d="M{:.1f} {:.1f} L{:.1f} {:.1f}" stroke="#7a828c" stroke-width="1.5"/>)",
            center(static_cast<int>(d)), top + kBox, to, y);
      }
    }
    for (std::size_t n = 0; n < k.nics.size(); ++n) {
      const TopologyNic& nic = k.nics[n];
      const double left = x + kMargin + static_cast<double>(n) * each;
      add(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.0f}" rx="3" fill="#e8dcc0" stroke="#b09a5a"><title>{} {:.4g} GB/s</title></rect>)",
          left + 2, y, each - 4, kCard, xml_escaped(nic.name), nic.bandwidth * 1e-9);
      text(left + each / 2, y + 11, "middle", nic.name);
      text(left + each / 2, y + 22, "middle", fmt::format("{:.3g} GB/s", nic.bandwidth * 1e-9), "#666");
    }
  }

  void draw_device(const TopologyDevice& device, int index, double center, double top) {
    const int rank = rank_of_device_[static_cast<std::size_t>(index)];
    std::string color = "#ffffff";
    std::string words;
    if (rank >= 0) {
      const Grid& grid = placed_->grid;
      const Coordinate at = grid.coordinate(rank);
      Axis first = Axis::tp;
      for (Axis axis : kAxes) {
        if (grid.degree(axis) < 2) continue;
        if (words.empty()) first = axis;
        words += fmt::format("{}{}{}", words.empty() ? "" : " ", name_of(axis), at[axis]);
      }
      color = kColors[static_cast<std::size_t>(grid.group_index(first, rank)) % kColors.size()];
    }
    const bool filled = rank >= 0;
    add(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.0f}" height="{:.0f}" rx="4" fill="{}" stroke="#555"/>)",
        center - kDevice / 2, top, kDevice, kBox, color);
    const char* ink = filled ? "#fff" : "#222";
    text(center, top + 14, "middle", device.name, ink);
    const std::string second = filled        ? fmt::format("rank {}", rank)
                               : device.numa ? fmt::format("numa {}", *device.numa)
                                             : "";
    text(center, top + 27, "middle", second, ink);
    text(center, top + 39, "middle", words, ink);
  }

  const Topology& topology_;
  const std::optional<PlacedGrid>& placed_;
  std::vector<DevicePlace> at_;
  std::vector<int> rank_of_device_;
  std::string body_;
  double width_ = 0;
};

}  // namespace

std::string topology_svg(const Topology& topology, const std::optional<PlacedGrid>& placed) {
  return Drawing(topology, placed).draw();
}

}  // namespace cuboid::launch
