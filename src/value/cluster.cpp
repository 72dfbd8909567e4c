#include "cuboid/value/cluster.h"

#include <cmath>

#include <fmt/format.h>

#include "cuboid/core/text.h"

namespace cuboid {
namespace {

// Adds the reasons of one table of a cluster.
class Checker {
 public:
  Checker(std::string where, Problems& problems) : where_(std::move(where)), problems_(problems) {}
  void positive(const char* key, double value) { need(std::isfinite(value) && value > 0, key, value, "above 0"); }
  void not_negative(const char* key, double value) {
    need(std::isfinite(value) && value >= 0, key, value, "0 or above");
  }
  void fraction(const char* key, double value) { need(value > 0 && value <= 1, key, value, "above 0 and at most 1"); }
  void share(const char* key, double value) { need(value >= 0 && value <= 1, key, value, "from 0 to 1"); }
  void need(bool good, const char* key, double value, const std::string& allowed) {
    problems_.add_if(!good, fmt::format("{}: {} = {}: must be {}", where_, key, exact(value), allowed));
  }

 private:
  std::string where_;
  Problems& problems_;
};

void check_device(const DeviceSpec& device, const std::string& source, Problems& problems) {
  Checker check(source + ": device", problems);
  problems.add_if(device.name.empty(), source + ": device: name is missing");
  check.positive("memory-bytes", static_cast<double>(device.memory_bytes));
  check.positive("bfloat16-flops", device.bfloat16_flops);
  check.positive("float32-flops", device.float32_flops);
  check.positive("memory-bandwidth", device.memory_bandwidth);
  check.positive("processors", device.processors);
  check.not_negative("shared-cores", device.shared_cores);
}

void check_level(const ClusterLevel& level, int inner, const std::string& where, Problems& problems) {
  Checker check(where, problems);
  problems.add_if(level.name.empty(), where + ": name is missing");
  check.need(level.size > inner && level.size % inner == 0, "size", level.size,
             fmt::format("a larger multiple of {}, the devices of one member", inner));
  check.positive("links", level.links);
  check.positive("link-bandwidth", level.link_bandwidth);
  check.fraction("efficiency", level.efficiency);
  check.positive("in-network-factor", level.in_network_factor);
  check.not_negative("latency", level.latency);
  check.not_negative("half-bandwidth-bytes", level.half_bandwidth_bytes);
}

void check_stack(const SoftwareStack& stack, const std::string& source, Problems& problems) {
  Checker check(source + ": stack", problems);
  check.fraction("matmul-efficiency", stack.matmul_efficiency);
  check.positive("matmul-tile-rows", stack.matmul_tile_rows);
  check.positive("matmul-tile-columns", stack.matmul_tile_columns);
  check.not_negative("matmul-fill", stack.matmul_fill);
  check.fraction("attention-efficiency", stack.attention_efficiency);
  check.fraction("attention-backward-efficiency", stack.attention_backward_efficiency);
  check.fraction("causal-work", stack.causal_work);
  check.not_negative("score-traffic", stack.score_traffic);
  check.need(stack.misaligned_slowdown >= 1, "misaligned-slowdown", stack.misaligned_slowdown, "1 or above");
  check.fraction("memory-efficiency", stack.memory_efficiency);
  check.positive("row-traffic", stack.row_traffic);
  check.not_negative("launch-seconds", stack.launch_seconds);
  check.not_negative("host-seconds", stack.host_seconds);
  check.share("contention", stack.contention);
  check.share("tp-overlap", stack.tp_overlap);
  check.share("dp-overlap", stack.dp_overlap);
  check.share("cp-overlap", stack.cp_overlap);
  check.share("pp-overlap", stack.pp_overlap);
  check.not_negative("bucket-bytes", stack.bucket_bytes);
  check.positive("gradient-bytes-sent", stack.gradient_bytes_sent);
  check.positive("parameter-bytes-sent", stack.parameter_bytes_sent);
  check.not_negative("optimizer-traffic", stack.optimizer_traffic);
  check.not_negative("step-seconds", stack.step_seconds);
  check.not_negative("micro-batch-seconds", stack.micro_batch_seconds);
  check.not_negative("jitter", stack.jitter);
  check.positive("parameter-bytes", stack.parameter_bytes);
  check.not_negative("gradient-bytes", stack.gradient_bytes);
  check.not_negative("optimizer-bytes", stack.optimizer_bytes);
  check.not_negative("logits-bytes", stack.logits_bytes);
  check.positive("activation-factor", stack.activation_factor);
  check.not_negative("reserved-bytes", stack.reserved_bytes);
}

}  // namespace

void Cluster::check(const std::string& source, Problems& problems) const {
  check_device(device, source, problems);
  problems.add_if(levels.empty(), source + ": levels: at least one is needed");
  int inner = 1;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const std::string where = fmt::format("{}: level {} ({})", source, i + 1, levels[i].name);
    check_level(levels[i], inner, where, problems);
    if (levels[i].size > 0) inner = levels[i].size;
  }
  check_stack(stack, source, problems);
}

}  // namespace cuboid
