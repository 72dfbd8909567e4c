#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuboid/parallel/pipeline/draw.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/passes.h"
#include "cuboid/parallel/pipeline/simulate.h"

namespace cuboid {
namespace {

using testing::HasSubstr;

Drawing drawing(const ScheduleRequest& request, const PipelineCosts& costs = {}) {
  Drawing out;
  out.title = request.name;
  out.spans = simulate(make_schedule(request), costs).spans;
  return out;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(DrawText, OneForwardOneBackward) {
  EXPECT_EQ(draw_text(drawing({"1f1b", 2, 3})),
            "1f1b\n"
            "rank   |                                                |      idle   peak\n"
            "rank 0 |0F0 0F1 ........0B0==== 0F2 0B1==== ....0B2==== |         3      2\n"
            "rank 1 |....1F0 1B0==== 1F1 1B1==== 1F2 1B2==== ........|         3      1\n"
            "makespan 12, bubble 25.0 %\n");
}

TEST(DrawText, OverlapAndUnit) {
  Drawing d = drawing({"dualpipe-v", 1, 2});
  d.subtitle = "second line";
  d.unit = "ms";
  const std::string text = draw_text(d);
  EXPECT_THAT(text, HasSubstr("dualpipe-v\nsecond line\n"));
  EXPECT_THAT(text, HasSubstr("1F1--+0B0== "));
  EXPECT_THAT(text, HasSubstr("makespan 12 ms, bubble 0.0 %"));
}

TEST(DrawText, ManyActionsStayBounded) {
  PipelineCosts costs;
  costs.stages = {{1e-6, 1, 1, 1}, {1, 2, 1, 1}};
  const std::string text = draw_text(drawing({"1f1b", 2, 40}, costs));
  EXPECT_LT(text.size(), 70000U);
}

TEST(DrawSvg, OneBoxAnActionAndOneCurveARank) {
  const std::string svg = draw_svg(drawing({"zb-h1", 3, 5}));
  EXPECT_THAT(svg, testing::StartsWith("<svg xmlns="));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_EQ(count(svg, "<title>"), 3 * 5 * 3);
  EXPECT_EQ(count(svg, "class=\"n\""), 3 * 5 * 3);  // every number fits
  EXPECT_EQ(count(svg, "<path d="), 3);
  EXPECT_EQ(count(svg, ">peak 3<"), 3);
  EXPECT_EQ(count(svg, ">rank 2<"), 2);
  for (const char* name : {"F  forward", "I  input gradient", "W  weight gradient", "bubble"}) {
    EXPECT_THAT(svg, HasSubstr(name));
  }
  EXPECT_THAT(svg, testing::Not(HasSubstr("B  backward")));
  EXPECT_THAT(svg, HasSubstr("makespan 17   ·   bubble 11.8 %   ·   peak 3 micro-batches of a stage"));
  EXPECT_EQ(count(svg, "<title>0F1  1 to 2<"), 1);
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
}

TEST(DrawSvg, TransfersAndWaitingAreIdleTime) {
  Drawing d;
  d.spans = {{{{ActionKind::forward, 0, 0}, 10, 12},
              {{ActionKind::recv_backward, 0, 0}, 12, 15},
              {{ActionKind::backward, 0, 0}, 15, 20},
              {{ActionKind::reduce_gradient, 0, -1}, 20, 23}}};
  const std::string svg = draw_svg(d);
  EXPECT_THAT(svg, HasSubstr("makespan 10   ·   bubble 30.0 %"));
  EXPECT_EQ(count(svg, "RECV"), 0);
  EXPECT_THAT(svg, HasSubstr("<title>0REDUCE_GRAD  10 to 13</title>"));
}

TEST(DrawSvg, OverlappedPairsShareTheLane) {
  const Drawing d = drawing({"dualpipe-v", 2, 5});
  int overlapped = 0;
  for (const auto& spans : d.spans) {
    for (const Span& span : spans) overlapped += span.action.overlapped;
  }
  EXPECT_GT(overlapped, 0);
  EXPECT_EQ(count(draw_svg(d), "height=\"10.5\""), 2 * overlapped);
}

// Forward and backward, each micro-batch, each pair of neighbouring stages on two ranks; the turn of a V is on one.
TEST(DrawSvg, ArrowsForEveryHandOverBetweenRanks) {
  const auto arrows = [](const ScheduleRequest& request) {
    Drawing d = drawing(request);
    const int without = count(draw_svg(d), "<line ");
    d.arrows = true;
    return count(draw_svg(d), "<line ") - without;
  };
  EXPECT_EQ(arrows({"1f1b", 3, 5}), 2 * 5 * 2);
  EXPECT_EQ(arrows({"zb-v", 3, 7}), 2 * 7 * 4);
}

TEST(DrawSvg, TextIsEscapedAndEmptyIsEmpty) {
  Drawing d;
  d.title = "a<b>&c";
  const std::string svg = draw_svg(d);
  EXPECT_THAT(svg, HasSubstr("a&lt;b&gt;&amp;c"));
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
  EXPECT_THAT(draw_text(d), HasSubstr("makespan 0, bubble 0.0 %"));
}

TEST(DrawSvg, LargeChartsStayBounded) {
  const std::string svg = draw_svg(drawing({"1f1b", 4, 2000}));
  const std::string width = "width=\"";
  EXPECT_LE(std::stoi(svg.substr(svg.find(width) + width.size())), 16500);
}

}  // namespace
}  // namespace cuboid
