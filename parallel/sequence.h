// How activations pass between what is split over the tensor axis and what is not. Private to parallel/.
#pragma once

#include "cuboid/parallel/tensor_parallel.h"

namespace cuboid {

/// (T/tp,B,·) of every rank → (T,B,·).
Tensor gather_sequence(const Device& device, const TensorParallel& tp, const Tensor& shard);

/// The same numbers in a type; the tensor itself if it has it.
Tensor rounded(const Device& device, const Tensor& x, DType dtype);

/// Partial sums (T,B,C) become what the region between split layers holds: the whole sum, or with sequence parallelism
/// this rank's part of it (T/tp,B,C); of type `dtype`. `partial` may be overwritten.
Tensor reduce_partial(const Device& device, const TensorParallel& tp, Tensor partial, DType dtype);

}  // namespace cuboid
