// The communicator of rank threads in one process, and, with one member, that of a single rank.
#include "group.h"
#include "group_communicator.h"

namespace cuboid {
namespace detail {
namespace {

class ThreadsCommunicator final : public GroupCommunicator<Group> {
 public:
  ThreadsCommunicator(std::shared_ptr<World> world, std::shared_ptr<Group> group, int rank, const Device& device,
                      const std::string& name)
      : GroupCommunicator(std::move(group), rank, device, name), world_(std::move(world)) {}

  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    CUBOID_CHECK(color >= -1, fmt::format("color {}", color));
    const auto operation = group()->start(rank(), {.kind = CallKind::split}, {}, {}, {color, key, name, nullptr, 0});
    group()->finish(rank(), *operation);
    const SplitMember& mine = operation->split[static_cast<std::size_t>(rank())];
    if (mine.group == nullptr) return nullptr;
    return make_threads_communicator(world_, mine.group, mine.rank, device(), name);
  }

 private:
  std::shared_ptr<World> world_;
};

}  // namespace

std::unique_ptr<Communicator> make_threads_communicator(std::shared_ptr<World> world, std::shared_ptr<Group> group,
                                                        int rank, const Device& device, const std::string& name) {
  return std::make_unique<ThreadsCommunicator>(std::move(world), std::move(group), rank, device, name);
}

}  // namespace detail

std::unique_ptr<Communicator> make_self_communicator(const Device& device, const std::string& name) {
  // Nobody else can be late or fail: the deadline is never looked at.
  auto world = std::make_shared<detail::World>(1, 0.0, 1);
  auto group = std::make_shared<detail::Group>(world, std::vector<int>{0}, name);
  return detail::make_threads_communicator(std::move(world), std::move(group), 0, device, name);
}

}  // namespace cuboid
