// The calls of NVTX that this project makes, recorded thread by thread: see emulated_cuda.h.
#pragma once

#include <cstdint>

using nvtxDomainHandle_t = struct nvtxDomainRegistration_st*;
inline constexpr std::uint16_t NVTX_VERSION = 3;
inline constexpr int NVTX_MESSAGE_TYPE_ASCII = 1;
struct nvtxEventAttributes_t {
  std::uint16_t version;
  std::uint16_t size;
  std::int32_t messageType;
  union {
    const char* ascii;
  } message;
};
inline constexpr auto NVTX_EVENT_ATTRIB_STRUCT_SIZE = static_cast<std::uint16_t>(sizeof(nvtxEventAttributes_t));

nvtxDomainHandle_t nvtxDomainCreateA(const char* name);
int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes);
int nvtxDomainRangePop(nvtxDomainHandle_t domain);
