#include "cuboid/comm/meta.h"

namespace cuboid {
namespace {

class MetaCommunicator final : public Communicator {
 public:
  MetaCommunicator(const Device& device, int rank, int size, const std::string& name, CollectiveObserver observer)
      : Communicator(rank, size, name), device_(device), observer_(std::move(observer)) {}

  Work all_reduce(const Tensor& in, const Tensor& out, ReduceOp) override {
    CUBOID_CHECK(in.dtype() == out.dtype() && in.elements() == out.elements(), sizes(in, out));
    return record(Collective::all_reduce, in);
  }
  Work reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp) override {
    CUBOID_CHECK(in.dtype() == out.dtype() && in.elements() == size() * out.elements(), sizes(in, out));
    return record(Collective::reduce_scatter, in);
  }
  Work all_gather(const Tensor& in, const Tensor& out) override {
    CUBOID_CHECK(in.dtype() == out.dtype() && size() * in.elements() == out.elements(), sizes(in, out));
    return record(Collective::all_gather, out);
  }
  Work all_to_all(const Tensor& in, const Tensor& out) override {
    CUBOID_CHECK(in.dtype() == out.dtype() && in.elements() == out.elements(), sizes(in, out));
    return record(Collective::all_to_all, in);
  }
  Work all_to_all_v(const Tensor& in, const std::vector<std::int64_t>&, const Tensor& out,
                    const std::vector<std::int64_t>&) override {
    CUBOID_CHECK(in.dtype() == out.dtype(), sizes(in, out));
    return record(Collective::all_to_all, in);
  }
  Work broadcast(const Tensor& tensor, int) override { return record(Collective::broadcast, tensor); }
  void barrier() override {}
  Work send(Tensor, int, int) override { return {}; }
  Incoming recv(Shape shape, DType dtype, int, int) override {
    return Incoming([device = device_, shape = std::move(shape), dtype] { return device.empty(shape, dtype); });
  }
  std::unique_ptr<Communicator> split(int, int, const std::string& wanted) override {
    throw std::logic_error("'" + name() + "' has no other members that could agree on '" + wanted + "'");
  }

 private:
  static std::string sizes(const Tensor& in, const Tensor& out) {
    return "in " + to_string(in.shape()) + ", out " + to_string(out.shape());
  }
  Work record(Collective collective, const Tensor& whole) const {
    if (size() > 1 && observer_) observer_(collective, static_cast<double>(whole.bytes()), whole.dtype());
    return {};
  }

  Device device_;
  CollectiveObserver observer_;
};

}  // namespace

const char* name_of(Collective collective) {
  constexpr const char* kNames[] = {"all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast"};
  return kNames[static_cast<std::size_t>(collective)];
}

std::unique_ptr<Communicator> make_meta_communicator(const Device& device, int rank, int size, const std::string& name,
                                                     CollectiveObserver observer) {
  CUBOID_CHECK(device.kind() == DeviceKind::meta, "a communicator without members cannot move data");
  return std::make_unique<MetaCommunicator>(device, rank, size, name, std::move(observer));
}

}  // namespace cuboid
