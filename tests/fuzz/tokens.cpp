// Token files: llm.c headers, raw files and text.
#include "cuboid/formats/tokens.h"

#include <vector>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  const fuzz::MemoryFile file(data, size);
  for (const DataFormat format : {DataFormat::automatic, DataFormat::bin}) {
    fuzz::refused_or_read([&] {
      const TokenStream stream = TokenStream::open({file.path()}, format);
      stream.check_tokens(50257);
      std::vector<std::int32_t> ids(static_cast<std::size_t>(stream.size()));
      stream.read(0, ids);
      for (const std::int32_t id : ids) {
        if (id < 0 || id >= 50257) std::abort();
      }
    });
  }
  return 0;
}
