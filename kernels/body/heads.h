// One attention head of one row: copied or rotated (rotary position embedding, Su et al., arXiv 2104.09864, with the
// pairing of Hugging Face's Llama: element j turns with element j + D/2).
#pragma once

#include "kernels/body/lanes.h"
#include "kernels/body/storage.h"

namespace cuboid::kernels::body {

template <typename Lanes, typename T>
CUBOID_HD void copy_row(Lanes lanes, std::int64_t n, const T* x, T* y) {
  lanes.each(n, [=](std::int64_t i) { y[i] = x[i]; });
}

/// y (D) = x (D) turned by the angles whose cosines and sines (D/2) are given.
template <typename Lanes, typename T>
CUBOID_HD void rotate_row(Lanes lanes, std::int64_t half, const Real<T>* cos, const Real<T>* sin, const T* x, T* y) {
  lanes.each(half, [=](std::int64_t j) {
    const Real<T> a = real(x[j]);
    const Real<T> b = real(x[j + half]);
    y[j] = static_cast<T>(a * cos[j] - b * sin[j]);
    y[j + half] = static_cast<T>(b * cos[j] + a * sin[j]);
  });
}

/// The transpose of rotate_row, which is the turn back.
template <typename Lanes, typename T>
CUBOID_HD void rotate_back_row(Lanes lanes, std::int64_t half, const Real<T>* cos, const Real<T>* sin, const T* dy,
                               T* dx) {
  lanes.each(half, [=](std::int64_t j) {
    const Real<T> a = real(dy[j]);
    const Real<T> b = real(dy[j + half]);
    dx[j] = static_cast<T>(a * cos[j] + b * sin[j]);
    dx[j + half] = static_cast<T>(b * cos[j] - a * sin[j]);
  });
}

}  // namespace cuboid::kernels::body
