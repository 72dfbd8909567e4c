// A cluster as the planner and the simulator see it: what one device computes and holds, the levels of network between
// devices, and how well the software on it uses both. A value; files and presets are in formats/cluster_file.h, times
// that follow from it in plan/cost.h. Which ranks sit where follows from the Grid: rank r is device r.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuboid/core/dtype.h"
#include "cuboid/core/error.h"

namespace cuboid {

/// What a device is rated for.
struct DeviceSpec {
  std::string name;               ///< "A100-SXM4-80GB"
  std::int64_t memory_bytes = 0;  ///< usable by a rank
  double bfloat16_flops = 0;      ///< peak dense FLOP/s of matrix products, bfloat16 or float16
  double float32_flops = 0;       ///< the same, float32 (TF32 where the device multiplies so)
  double memory_bandwidth = 0;    ///< bytes/s, read and written bytes counted
  int processors = 1;             ///< multiprocessors (cores): matrix tiles that are computed at once
  /// Cores that all devices of a group of the first level compute on: where more devices compute at a time, each gets
  /// an equal share (ranks as threads). 0: each device computes by itself.
  int shared_cores = 0;
  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
  /// Peak FLOP/s of matrix products. @pre float32 or bfloat16
  double flops(DType dtype) const { return dtype == DType::bfloat16 ? bfloat16_flops : float32_flops; }
};

/// One level of network: it joins members, which are devices at the first level and groups of the level below at the
/// others, into groups of `size` devices.
struct ClusterLevel {
  std::string name;                 ///< "nvlink", "fabric"
  int size = 0;                     ///< devices of one group; a multiple of the level below's
  int links = 1;                    ///< links of each member, which its devices share
  double link_bandwidth = 0;        ///< bytes/s of one link and direction, as rated
  double efficiency = 1;            ///< of the rated bandwidth, what a large ring collective reaches
  double in_network_factor = 1;     ///< all-reduce bandwidth with reduction in the switch (NVLS) ÷ that of a ring
  double latency = 0;               ///< seconds of one message from device to device
  double half_bandwidth_bytes = 0;  ///< a message of this size reaches half the bandwidth
  friend bool operator==(const ClusterLevel&, const ClusterLevel&) = default;
};

/// How a training framework uses the hardware. Each value belongs to a kind of device and a software stack and is
/// fitted over many runs; none belongs to a run.
struct SoftwareStack {
  std::string name;  ///< "Megatron-LM 2021"

  // Kernels
  double matmul_efficiency = 0.8;  ///< fraction of peak FLOP/s of a large matrix product in whole waves
  int matmul_tile_rows = 128;      ///< tile of the output that one multiprocessor computes
  int matmul_tile_columns = 256;   ///< its other side
  double matmul_fill = 64;         ///< a product over K takes as long as one over K + this: a tile's beginning and end
  bool flash_attention = true;     ///< attention is one kernel that keeps no scores; false: products and softmax
  double attention_efficiency = 0.5;           ///< fraction of peak of the attention kernel, forward
  double attention_backward_efficiency = 0.4;  ///< the same, backward
  double causal_work = 0.5;                    ///< share of the full square of scores that attention computes
  double score_traffic = 12;                   ///< without flash: times the scores are read or written, forward
  bool selective_attention = false;  ///< selective recompute means attention's core; false: what Recompute says
  double misaligned_slowdown = 1;    ///< of products with a dimension that is no multiple of 8 elements
  double memory_efficiency = 0.8;    ///< fraction of the memory bandwidth that row and element kernels reach
  double row_traffic = 1;            ///< bytes these kernels move ÷ those of the traced, fused kernels
  double launch_seconds = 5e-6;      ///< time between two kernels on the device
  double host_seconds = 0;           ///< time in which the host issues a kernel; issuing may be what takes longest
  double contention = 0;             ///< share of overlapped communication time by which computing is slowed

  // Communication
  double tp_overlap = 0;           ///< share of tensor-parallel communication hidden behind matrix products
  double dp_overlap = 0.9;         ///< share of gradient reduction and parameter gathers that may hide behind computing
  double cp_overlap = 0;           ///< share of context-parallel exchange of keys and values hidden behind attention
  double pp_overlap = 0;           ///< share of pipeline transfers hidden
  bool scatter_gather = false;     ///< a stage boundary is sent in tp parts and gathered, not whole by every tp rank
  double bucket_bytes = 0;         ///< gradients and parameters travel in messages of this size; 0: in one
  double gradient_bytes_sent = 4;  ///< bytes of a gradient element as it is reduced
  double parameter_bytes_sent = 2;  ///< bytes of a parameter element as it is gathered

  // Step
  double optimizer_traffic =
      34;                   ///< bytes moved per parameter of the shard by the optimizer's step and the gradient's norm
  double step_seconds = 0;  ///< fixed time of a step: data, logging, synchronisation
  double micro_batch_seconds = 0;  ///< fixed time of a micro-batch on a stage
  /// All ranks meet at the end of a step, for the gradient's norm; false: the optimizer's step is validated afterwards
  /// and steps overlap (Qi et al. 2024, section 4), so that a step takes a rank's own span.
  bool step_barrier = true;
  double jitter = 0;  ///< relative slow-down per doubling of the number of nodes: waiting for the slowest

  // Memory, bytes
  double parameter_bytes = 2;   ///< per parameter, of the copy computed with
  double gradient_bytes = 4;    ///< per parameter
  double optimizer_bytes = 12;  ///< per parameter: master copy and two moments
  /// Per logit of a micro-batch at the loss, all made at once; 0: as the trace has them, in chunks.
  double logits_bytes = 6;
  double activation_factor = 1;  ///< activations kept ÷ those of the trace
  double reserved_bytes = 0;     ///< context, communication buffers and fragmentation

  friend bool operator==(const SoftwareStack&, const SoftwareStack&) = default;
};

struct Cluster {
  std::string name;
  DeviceSpec device;
  std::vector<ClusterLevel> levels;  ///< from the inside out; the last one's size is the cluster's
  SoftwareStack stack;

  friend bool operator==(const Cluster&, const Cluster&) = default;

  /// Devices in all.
  int devices() const { return levels.empty() ? 1 : levels.back().size; }
  /// Adds every reason why the values make no cluster, each with the key, its value and what is allowed.
  /// @param source  the file's or preset's name, for the messages
  void check(const std::string& source, Problems& problems) const;
};

}  // namespace cuboid
