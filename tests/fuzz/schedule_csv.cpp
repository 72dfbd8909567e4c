// Pipeline schedules.
#include "cuboid/value/schedule_csv.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  return fuzz::refused_or_read([&] { parse_schedule_csv(fuzz::text_of(data, size), "schedule.csv"); });
}
