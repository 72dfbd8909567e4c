// Elements in packs: as many as 16 bytes hold of the smallest type among a kernel's arguments are read and written at
// once. Which elements a function sees together changes nothing in what it computes of each. Internal to kernels/cuda.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuboid/core/host_device.h"

#include "kernels/body/heads.h"

namespace cuboid::kernels::cuda {

/// Bytes of the widest access of a GPU's thread.
inline constexpr int kAccess = 16;

template <typename T, int V>
struct alignas(V > 1 ? kAccess : alignof(T)) Pack {
  T x[V];
};

/// An array of rows, from row to row `stride` elements (0: all rows are the same one).
template <typename T, bool Read, bool Written>
struct Rows {
  using Type = T;
  static constexpr bool kRead = Read;
  static constexpr bool kWritten = Written;
  T* at;
  std::int64_t stride;

  /// Whether packs of every row begin where they can be accessed at once.
  bool aligned(std::int64_t rows) const {
    return reinterpret_cast<std::uintptr_t>(at) % kAccess == 0 &&
           (rows == 1 || stride * static_cast<std::int64_t>(sizeof(T)) % kAccess == 0);
  }
};

template <typename T>
Rows<const T, true, false> in(const T* at, std::int64_t stride = 0) {
  return {at, stride};
}
template <typename T>
Rows<T, false, true> out(T* at, std::int64_t stride = 0) {
  return {at, stride};
}
template <typename T>
Rows<T, true, true> in_out(T* at, std::int64_t stride = 0) {
  return {at, stride};
}

template <typename T>
struct Mutable {
  using Type = T;
};
template <typename T>
struct Mutable<const T> {
  using Type = T;
};

/// V elements of an argument in registers.
template <int V, typename Argument>
struct Held {
  using T = typename Mutable<typename Argument::Type>::Type;
  typename Argument::Type* place;
  Pack<T, V> pack;

  CUBOID_HD Held(const Argument& a, std::int64_t row, std::int64_t column) : place(a.at + row * a.stride + column) {
    if constexpr (Argument::kRead) pack = *reinterpret_cast<const Pack<T, V>*>(place);
  }
  CUBOID_HD void store() const {
    if constexpr (Argument::kWritten) *reinterpret_cast<Pack<T, V>*>(place) = pack;
  }
};

template <int V, typename F, typename... H>
CUBOID_HD void apply_to_packs(const F& f, H&&... held) {
  for (int j = 0; j < V; ++j) f(held.pack.x[j]...);
  (held.store(), ...);
}

/// Item i of the rows·(n / V + n % V) packs and single elements that make up rows of n.
template <int V, typename F, typename... Arguments>
CUBOID_HD void map_item(const F& f, std::int64_t i, std::int64_t rows, std::int64_t n, const Arguments&... a) {
  const std::int64_t packs = n / V;
  const std::int64_t items = packs + n % V;
  const std::int64_t row = rows == 1 ? 0 : i / items;
  const std::int64_t item = i - row * items;
  if (item < packs) {
    apply_to_packs<V>(f, Held<V, Arguments>(a, row, item * V)...);
  } else {
    apply_to_packs<1>(f, Held<1, Arguments>(a, row, packs * V + item - packs)...);
  }
}

// ---------------------------------------------------------------- whole rows

/// Most bytes of a row's arguments that are copied to memory next to the lanes: a block's 48 KiB of shared memory, but
/// for what its sums take.
inline constexpr std::int64_t kMostStaged = 47 << 10;

template <typename... Arguments>
CUBOID_HD constexpr std::int64_t staged_bytes(std::int64_t n) {
  return n * (0 + ... + static_cast<std::int64_t>(sizeof(typename Arguments::Type)));
}

/// An argument's row and its copy.
template <typename Argument>
struct StagedRow {
  using T = typename Mutable<typename Argument::Type>::Type;
  using Wide = Pack<T, kAccess / static_cast<int>(sizeof(T))>;
  typename Argument::Type* place;
  T* here;

  template <typename Lanes>
  CUBOID_HD void load(Lanes lanes, std::int64_t n) const {
    if constexpr (Argument::kRead) {
      body::copy_row(lanes, n * sizeof(T) / kAccess, reinterpret_cast<const Wide*>(place),
                     reinterpret_cast<Wide*>(here));
    }
  }
  template <typename Lanes>
  CUBOID_HD void store(Lanes lanes, std::int64_t n) const {
    if constexpr (Argument::kWritten) {
      body::copy_row(lanes, n * sizeof(T) / kAccess, reinterpret_cast<const Wide*>(here),
                     reinterpret_cast<Wide*>(place));
    }
  }
};

template <typename Lanes, typename Row, typename... Staged>
CUBOID_HD void run_on_copies(Lanes lanes, std::int64_t n, std::int64_t r, const Row& row, const Staged&... staged) {
  (staged.load(lanes, n), ...);
  row(lanes, r, staged.here...);
  lanes.sync();
  (staged.store(lanes, n), ...);
}

template <typename Argument>
CUBOID_HD StagedRow<Argument> staged_at(const Argument& a, std::int64_t r, std::byte* memory, std::int64_t offset) {
  return {a.at + r * a.stride, reinterpret_cast<typename StagedRow<Argument>::T*>(memory + offset)};
}

/// row(lanes, r, pointers…) on copies of row r of the arguments, which are moved 16 bytes at a time. `memory` holds
/// staged_bytes(n).
template <typename Lanes, typename Row, typename A, typename B>
CUBOID_HD void run_staged(Lanes lanes, std::int64_t n, std::int64_t r, std::byte* memory, const Row& row, const A& a,
                          const B& b) {
  run_on_copies(lanes, n, r, row, staged_at(a, r, memory, 0), staged_at(b, r, memory, staged_bytes<A>(n)));
}
template <typename Lanes, typename Row, typename A, typename B, typename C>
CUBOID_HD void run_staged(Lanes lanes, std::int64_t n, std::int64_t r, std::byte* memory, const Row& row, const A& a,
                          const B& b, const C& c) {
  run_on_copies(lanes, n, r, row, staged_at(a, r, memory, 0), staged_at(b, r, memory, staged_bytes<A>(n)),
                staged_at(c, r, memory, staged_bytes<A, B>(n)));
}

}  // namespace cuboid::kernels::cuda
