#include "cuboid/plan/trace.h"

#include "block_probe.h"

namespace cuboid {
namespace {

/// Writes what a probe on the meta device does.
class Tracer {
 public:
  Tracer(const LayerKinds& kinds, const TraceOptions& options)
      : device_(Device::meta([this](const TracedKernel& kernel) {
          if (events_) events_->push_back(kernel);
        })),
        tensor_(communicator(Axis::tp, options.tp_rank, options.tp)),
        experts_(communicator(Axis::ep, 0, options.ep)),
        context_(communicator(Axis::cp, options.cp - 1, options.cp)),
        data_(communicator(Axis::dp, 0, 1)),
        probe_(device_, *tensor_, *experts_, *context_, *data_, kinds, options,
               [this](auto* events) { events_ = events; }) {}

  TracedBlock block(std::size_t number) { return probe_.run(number); }

 private:
  std::unique_ptr<Communicator> communicator(Axis axis, int rank, int size) {
    return make_meta_communicator(
        device_, rank, size, name_of(axis), [this, axis, size](Collective operation, double bytes, DType dtype) {
          if (!events_) return;
          events_->push_back(TracedCommunication{axis, operation, size, bytes, dtype, device_.phase()});
        });
  }

  std::vector<TracedEvent>* events_ = nullptr;  // null: nothing is recorded
  Device device_;
  std::unique_ptr<Communicator> tensor_;
  std::unique_ptr<Communicator> experts_;
  std::unique_ptr<Communicator> context_;
  std::unique_ptr<Communicator> data_;
  BlockProbe probe_;
};

}  // namespace

ModelTrace trace_model(const ModelConfig& model, const TraceOptions& options) {
  const LayerKinds kinds = kinds_of_layers(model);
  Tracer tracer(kinds, options);
  ModelTrace trace;
  trace.options = options;
  trace.embedding = tracer.block(0);
  for (const auto& layers : kinds.layers) {
    TracedBlock block = tracer.block(trace.layers.size() + 1);
    block.layers = layers;
    block.repeat = static_cast<int>(layers.size());
    trace.layers.push_back(std::move(block));
  }
  trace.head = tracer.block(kinds.layers.size() + 1);
  trace.total_parameters = trace.embedding.parameters.total + trace.head.parameters.total;
  for (const TracedBlock& layer : trace.layers) trace.total_parameters += layer.repeat * layer.parameters.total;
  return trace;
}

}  // namespace cuboid
