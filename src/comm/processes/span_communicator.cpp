// The communicator over a group that spans processes.
#include "../group.h"
#include "../group_communicator.h"
#include "exchange.h"
#include "span_group.h"

namespace cuboid::detail {
namespace {

class SpanCommunicator final : public GroupCommunicator<SpanGroup> {
 public:
  using GroupCommunicator::GroupCommunicator;

  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    CUBOID_CHECK(color >= -1, fmt::format("color {}", color));
    SpanSplit choice;
    choice.color = color;
    choice.key = key;
    choice.name = name;
    const auto operation = group()->start(rank(), {.kind = CallKind::split}, {}, {}, choice);
    group()->finish(rank(), *operation);
    const SpanSplit& mine = operation->split[group()->local_index(rank())];
    if (mine.span) return make_span_communicator(*mine.span, mine.rank, device(), name);
    if (mine.local) return make_threads_communicator(group()->world(), mine.local, mine.rank, device(), name);
    return nullptr;
  }
};

}  // namespace

std::unique_ptr<Communicator> make_span_communicator(SpanGroup& group, int rank, const Device& device,
                                                     const std::string& name) {
  return std::make_unique<SpanCommunicator>(group.shared_from_this(), rank, device, name);
}

}  // namespace cuboid::detail
