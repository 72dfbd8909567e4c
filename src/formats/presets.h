// The presets' config.json texts, embedded at build time from launch/models. Private to formats.
#pragma once

#include <span>

namespace cuboid {

struct EmbeddedConfig {
  const char* name;
  const char* json;
};

/// In the order of preset_names().
std::span<const EmbeddedConfig> embedded_configs();

}  // namespace cuboid
