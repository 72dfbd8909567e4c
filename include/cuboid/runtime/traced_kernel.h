// A kernel as the meta device sees it: what it would compute and move.
#pragma once

#include <cstdint>
#include <string>

#include "cuboid/core/dtype.h"

namespace cuboid {

/// Which part of a micro-batch's computation an event belongs to.
enum class TracedPhase : std::uint8_t {
  forward,
  input_gradient,
  weight_gradient,
  recompute,  ///< forward again inside backward
};
const char* name_of(TracedPhase phase);

/// A kernel's launch. Bytes are those of its operands, each read or written once: a lower bound of what crosses memory.
struct TracedKernel {
  enum class Kind : std::uint8_t {
    matmul,     ///< op(a) (m,k) · op(b) (k,n)
    attention,  ///< scores, softmax and context in one kernel; its gradient in another
    other,      ///< bound by memory
  };
  Kind kind = Kind::other;
  std::string name = {};  ///< function of kernels.h: "matmul", "rms_norm"
  TracedPhase phase = TracedPhase::forward;
  DType dtype = DType::float32;  ///< of the operands

  std::int64_t batch = 1;            ///< matmul: products of this shape in one call. attention: samples
  std::int64_t m = 0, n = 0, k = 0;  ///< matmul
  std::int64_t heads = 0;            ///< attention: query heads of this rank
  std::int64_t kv_heads = 0;         ///< attention
  std::int64_t queries = 0;          ///< attention: N, of a whole sequence or of a part of it
  std::int64_t seq_len = 0;          ///< attention: T, keys
  std::int64_t head_dim = 0;         ///< attention: D
  std::int64_t window = 0;           ///< attention: keys a query sees at most, itself included; 0: all before it
  bool gradient = false;             ///< attention: its backward

  /// 2·batch·m·n·k. Attention: the pairs (query, key) that causality and window leave, T(T+1)/2 for N = T without
  /// window, times 4·D a pair and head forward (scores, context) and 10·D backward (scores again, and four products).
  /// 0: other.
  double flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
};

}  // namespace cuboid
