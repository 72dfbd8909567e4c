// Attention over sequences that are cut over ranks: each holds two chunks of every sequence (context_part), computes
// their queries, and gathers the keys and values of the others, as Llama 3 was trained (arXiv 2407.21783, section
// 3.3.2). Everything else of a transformer is a matter of single tokens and needs nothing. Keys and values are gathered
// again for backward rather than kept, so that what a layer keeps shrinks with the number of ranks.
#pragma once

#include "cuboid/parallel/tensor_parallel.h"

namespace cuboid {

/// The context-parallel group as layers see it.
struct ContextParallel {
  Communicator* comm = nullptr;         ///< null: this rank holds whole sequences
  DType reduce_dtype = DType::float32;  ///< in which gradients of bfloat16 keys and values travel and are added

  int rank() const { return comm ? comm->rank() : 0; }
  int size() const { return comm ? comm->size() : 1; }
  /// This rank's part of a sequence of that length, a multiple of 2·size() unless that is 1: length/size() rows.
  SequencePart part(std::int64_t length) const { return context_part(length, rank(), size()); }
};

/// Causal attention (ops::attention) of this rank's queries: qkv (T/cp,B,(H+2K)·D) → (T/cp,B,H·D). rope: tables
/// (T/cp,D/2) of this rank's positions, or undefined ones.
Var context_parallel_attention(Tape& tape, const ContextParallel& cp, const Var& qkv, const ops::AttentionShape& shape,
                               const ops::RopeTables& rope, const kernels::Dropout& mask);

}  // namespace cuboid
