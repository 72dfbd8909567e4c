#include <filesystem>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/formats/mapped_file.h"

#include "presets.h"

namespace cuboid {

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const EmbeddedConfig& preset : embedded_configs()) names.emplace_back(preset.name);
  return names;
}

ModelConfig load_model(const std::string& preset_or_path) {
  namespace fs = std::filesystem;
  for (const EmbeddedConfig& preset : embedded_configs()) {
    if (preset_or_path == preset.name) return read_hf_config(preset.text, preset.name);
  }
  std::error_code ignored;
  fs::path path = preset_or_path;
  if (fs::is_directory(path, ignored)) {
    path /= "config.json";
    if (!fs::exists(path, ignored)) {
      throw Error(ErrorKind::request, fmt::format("--model {}: the folder holds no config.json", preset_or_path));
    }
  } else if (!fs::exists(path, ignored)) {
    const auto names = preset_names();
    throw Error(ErrorKind::request,
                fmt::format("--model {}: neither a preset nor a file or folder; the nearest preset is {}; presets: {}",
                            preset_or_path, nearest(preset_or_path, names), join(names)));
  }
  const auto file = MappedFile::open(path.string());
  const auto bytes = file->bytes();
  return read_hf_config(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), path.string());
}

}  // namespace cuboid
