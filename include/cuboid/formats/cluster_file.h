// Clusters as TOML: the presets that come with the program, and users' own files. A file is [device], [[levels]] from
// the inside out, and [stack]; `base = "PRESET"` takes all that is not written from a preset. Every key is known or
// refused.
#pragma once

#include <string>
#include <vector>

#include "cuboid/value/cluster.h"

namespace cuboid {

/// @param text    TOML
/// @param source  for messages
/// @throws Error{request} with all reasons: syntax (with the line), unknown keys (with the nearest), values of the
/// wrong
///         type, and what Cluster::check finds
Cluster parse_cluster_file(const std::string& text, const std::string& source);

/// The whole cluster, every key with its meaning and unit as a comment; parse_cluster_file gives it back exactly.
std::string write_cluster_file(const Cluster& cluster);

/// @throws Error{request}: neither a preset (names the nearest, lists all) nor a readable file; or a faulty one
Cluster load_cluster(const std::string& preset_or_path);

/// Names of the presets.
std::vector<std::string> cluster_names();

}  // namespace cuboid
