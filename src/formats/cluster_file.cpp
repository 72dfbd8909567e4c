#include "cuboid/formats/cluster_file.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "cuboid/core/text.h"
#include "cuboid/formats/mapped_file.h"

#include "presets.h"
#include "toml_reader.h"

namespace cuboid {
namespace {

// Every key once: the writer and the reader visit these lists, so neither can know a key that the other does not.
template <typename Visitor>
void visit_device(DeviceSpec& device, Visitor& visit) {
  visit("name", "of the device", device.name);
  visit("memory-bytes", "bytes a rank can use", device.memory_bytes);
  visit("bfloat16-flops", "peak dense FLOP/s of matrix products, 16 bits", device.bfloat16_flops);
  visit("float32-flops", "the same, float32", device.float32_flops);
  visit("memory-bandwidth", "bytes/s", device.memory_bandwidth);
  visit("processors", "multiprocessors (cores)", device.processors);
  visit("shared-cores", "that the devices of a first level share; 0: each computes by itself", device.shared_cores);
}

template <typename Visitor>
void visit_level(ClusterLevel& level, Visitor& visit) {
  visit("name", "of this level of network", level.name);
  visit("size", "devices of one group", level.size);
  visit("links", "links of each member, shared by its devices", level.links);
  visit("link-bandwidth", "bytes/s of a link and direction, as rated", level.link_bandwidth);
  visit("efficiency", "of the rated bandwidth, in a large ring collective", level.efficiency);
  visit("in-network-factor", "all-reduce bandwidth with reduction in the switch, of a ring's", level.in_network_factor);
  visit("latency", "seconds a message", level.latency);
  visit("half-bandwidth-bytes", "a message of this size reaches half the bandwidth", level.half_bandwidth_bytes);
}

template <typename Visitor>
void visit_stack(SoftwareStack& stack, Visitor& visit) {
  visit("name", "of the software", stack.name);
  visit("matmul-efficiency", "of peak, a large product in whole waves", stack.matmul_efficiency);
  visit("matmul-tile-rows", "of the output, by one multiprocessor", stack.matmul_tile_rows);
  visit("matmul-tile-columns", "of the output, by one multiprocessor", stack.matmul_tile_columns);
  visit("matmul-fill", "added to the inner dimension K: beginning and end of a tile", stack.matmul_fill);
  visit("flash-attention", "one kernel that keeps no scores", stack.flash_attention);
  visit("attention-efficiency", "of peak, forward", stack.attention_efficiency);
  visit("attention-backward-efficiency", "of peak, backward", stack.attention_backward_efficiency);
  visit("causal-work", "share of the square of scores that is computed", stack.causal_work);
  visit("score-traffic", "without flash: times scores are read or written, forward", stack.score_traffic);
  visit("selective-attention", "selective recompute means attention's core", stack.selective_attention);
  visit("misaligned-slowdown", "of products with a dimension no multiple of 8", stack.misaligned_slowdown);
  visit("memory-efficiency", "of the memory bandwidth, row and element kernels", stack.memory_efficiency);
  visit("row-traffic", "bytes of these kernels, of those of fused ones", stack.row_traffic);
  visit("launch-seconds", "between two kernels on the device", stack.launch_seconds);
  visit("host-seconds", "in which the host issues a kernel", stack.host_seconds);
  visit("contention", "slow-down of computing by overlapped communication, share of its time", stack.contention);
  visit("tp-overlap", "share of tensor-parallel communication hidden", stack.tp_overlap);
  visit("dp-overlap", "share of data-parallel communication that can hide", stack.dp_overlap);
  visit("cp-overlap", "share of context-parallel exchange hidden", stack.cp_overlap);
  visit("pp-overlap", "share of pipeline transfers hidden", stack.pp_overlap);
  visit("scatter-gather", "a stage boundary is sent in tp parts", stack.scatter_gather);
  visit("bucket-bytes", "of gradients and parameters in a message; 0: all", stack.bucket_bytes);
  visit("gradient-bytes-sent", "bytes a gradient element, in reductions", stack.gradient_bytes_sent);
  visit("parameter-bytes-sent", "bytes a parameter, in gathers", stack.parameter_bytes_sent);
  visit("optimizer-traffic", "bytes moved a parameter by the optimizer's step", stack.optimizer_traffic);
  visit("step-seconds", "fixed time of a step", stack.step_seconds);
  visit("micro-batch-seconds", "fixed time of a micro-batch on a stage", stack.micro_batch_seconds);
  visit("step-barrier", "all ranks meet at the end of a step", stack.step_barrier);
  visit("jitter", "relative slow-down per doubling of the nodes", stack.jitter);
  visit("parameter-bytes", "memory a parameter, of the copy computed with", stack.parameter_bytes);
  visit("gradient-bytes", "memory a parameter", stack.gradient_bytes);
  visit("optimizer-bytes", "memory a parameter: master copy and moments", stack.optimizer_bytes);
  visit("logits-bytes", "memory a logit at the loss, all at once; 0: in chunks", stack.logits_bytes);
  visit("activation-factor", "activations kept, of those traced", stack.activation_factor);
  visit("reserved-bytes", "context, communication buffers, fragmentation", stack.reserved_bytes);
}

class Writer {
 public:
  void table(const std::string& heading) { text_ += "\n" + heading + "\n"; }
  template <typename Value>
  void operator()(const char* key, const char* meaning, const Value& value) {
    text_ += fmt::format("{:<44}# {}\n", fmt::format("{} = {}", key, write(value)), meaning);
  }
  std::string text_;

 private:
  static std::string write(const std::string& value) { return toml_string(value); }
  static std::string write(bool value) { return value ? "true" : "false"; }
  static std::string write(double value) { return exact(value); }
  template <std::integral Whole>
  static std::string write(Whole value) {
    return std::to_string(value);
  }
};

using Faults = TomlFaults;
using Reader = TomlReader;

void read_levels(const toml::node& node, std::vector<ClusterLevel>& levels, Faults& faults) {
  const toml::array* array = node.as_array();
  if (array == nullptr || !array->is_array_of_tables()) {
    faults.emplace(node.source().begin.line, "levels: must be tables: [[levels]]");
    return;
  }
  levels.clear();
  for (const toml::node& item : *array) {
    Reader reader(*item.as_table(), fmt::format("level {}: ", levels.size() + 1), faults);
    visit_level(levels.emplace_back(), reader);
    reader.refuse_unknown();
  }
}

// A table of the file, if it is there and is one.
const toml::table* section(const toml::table& file, const char* key, Faults& faults) {
  const toml::node* node = file.get(key);
  if (node == nullptr) return nullptr;
  if (!node->is_table()) faults.emplace(node->source().begin.line, fmt::format("{}: must be a table: [{}]", key, key));
  return node->as_table();
}

void read_tables(const toml::table& file, Cluster& cluster, Faults& faults) {
  if (const toml::table* device = section(file, "device", faults)) {
    Reader reader(*device, "device: ", faults);
    visit_device(cluster.device, reader);
    reader.refuse_unknown();
  }
  if (const toml::node* node = file.get("levels")) read_levels(*node, cluster.levels, faults);
  if (const toml::table* stack = section(file, "stack", faults)) {
    Reader reader(*stack, "stack: ", faults);
    visit_stack(cluster.stack, reader);
    reader.refuse_unknown();
  }
  const std::vector<std::string> keys = {"name", "base", "device", "levels", "stack"};
  for (const auto& [key, node] : file) {
    const std::string name(key.str());
    if (std::find(keys.begin(), keys.end(), name) != keys.end()) continue;
    faults.emplace(key.source().begin.line,
                   fmt::format("unknown key {}; the nearest is {}", name, nearest(name, keys)));
  }
}

const EmbeddedConfig* preset(const std::string& name) {
  for (const EmbeddedConfig& config : embedded_clusters()) {
    if (name == config.name) return &config;
  }
  return nullptr;
}

// What a file starts from.
Cluster base_of(const toml::table& file, Faults& faults) {
  const toml::node* node = file.get("base");
  if (node == nullptr) return {};
  const auto name = node->value_exact<std::string>();
  const EmbeddedConfig* base = name ? preset(*name) : nullptr;
  if (base != nullptr) return parse_cluster_file(base->text, base->name);
  faults.emplace(node->source().begin.line,
                 fmt::format("base = {}: must be a preset: {}", toml_excerpt(*node), join(cluster_names())));
  return {};
}

}  // namespace

Cluster parse_cluster_file(const std::string& text, const std::string& source) {
  const toml::table file = parse_toml(text, source);
  Faults faults;
  Cluster cluster = base_of(file, faults);
  if (const toml::node* name = file.get("name")) {
    if (const auto text_of = name->value_exact<std::string>()) {
      cluster.name = *text_of;
    } else {
      faults.emplace(name->source().begin.line, fmt::format("name = {}: must be a string", toml_excerpt(*name)));
    }
  }
  read_tables(file, cluster, faults);
  Problems problems;
  for (const auto& [line, reason] : faults) problems.add(fmt::format("{}: line {}: {}", source, line, reason));
  cluster.check(source, problems);
  problems.throw_if_any();
  return cluster;
}

std::string write_cluster_file(const Cluster& cluster) {
  Cluster copy = cluster;  // the lists serve the reader too, so they take references
  Writer writer;
  writer.text_ = "# A cluster for `cuboid plan` and `cuboid simulate`: --cluster FILE.\n";
  writer("name", "of the cluster", copy.name);
  writer.table("[device]");
  visit_device(copy.device, writer);
  for (ClusterLevel& level : copy.levels) {
    writer.table("[[levels]]");
    visit_level(level, writer);
  }
  writer.table("[stack]");
  visit_stack(copy.stack, writer);
  return std::move(writer.text_);
}

Cluster load_cluster(const std::string& preset_or_path) {
  if (const EmbeddedConfig* found = preset(preset_or_path)) return parse_cluster_file(found->text, found->name);
  std::error_code ignored;
  if (!std::filesystem::exists(preset_or_path, ignored)) {
    const auto names = cluster_names();
    throw Error(ErrorKind::request,
                fmt::format("--cluster {}: neither a preset nor a file; the nearest preset is {}; presets: {}",
                            preset_or_path, nearest(preset_or_path, names), join(names)));
  }
  const auto file = MappedFile::open(preset_or_path);
  const auto bytes = file->bytes();
  return parse_cluster_file(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), preset_or_path);
}

std::vector<std::string> cluster_names() {
  std::vector<std::string> names;
  for (const EmbeddedConfig& config : embedded_clusters()) names.emplace_back(config.name);
  return names;
}

}  // namespace cuboid
