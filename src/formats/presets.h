// The presets' files, embedded at build time: models from launch/models, clusters from launch/clusters. Private to
// formats.
#pragma once

#include <span>

namespace cuboid {

struct EmbeddedConfig {
  const char* name;
  const char* text;
};

/// Models' config.json texts, in the order of preset_names().
std::span<const EmbeddedConfig> embedded_configs();

/// Clusters' TOML texts, in the order of cluster_names().
std::span<const EmbeddedConfig> embedded_clusters();

}  // namespace cuboid
