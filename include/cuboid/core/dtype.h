// Element types of tensors and messages. bfloat16 is a storage type: arithmetic happens in float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "cuboid/core/host_device.h"

namespace cuboid {

enum class DType : std::uint8_t { float32, float64, bfloat16, int32, int64 };

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::bfloat16:
      return 2;
    case DType::float64:
    case DType::int64:
      return 8;
  }
  return 0;
}

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::bfloat16:
      return "bfloat16";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
  }
  return "?";
}

/// The type in which numbers of a type are computed with, summed and measured: float32 for bfloat16, else itself.
constexpr DType compute_type(DType dtype) {
  return dtype == DType::bfloat16 ? DType::float32 : dtype;
}

/// The upper half of an IEEE float32; conversion from float rounds to nearest even and keeps NaN a NaN.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  CUBOID_HD explicit BFloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffU) > 0x7f800000U) {
      bits = static_cast<std::uint16_t>((word >> 16) | 0x40U);
    } else {
      bits = static_cast<std::uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
    }
  }
  CUBOID_HD explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  friend bool operator==(BFloat16 a, BFloat16 b) { return static_cast<float>(a) == static_cast<float>(b); }
};

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::int64;
};
/// The DType of a C++ element type.
template <typename T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace cuboid
