// Model configurations in Hugging Face's config.json form: the presets that come with the program, files and folders.
// A key that changes the mathematics is either understood or refused by name. Dropout rates in a config are ignored: a
// run's dropout is --dropout. Whether dimensions fit a grid is not decided here.
#pragma once

#include <string>
#include <vector>

#include "cuboid/value/model_config.h"

namespace cuboid {

/// @param json_text    the text of a config.json, model_type "gpt2" or "llama"
/// @param source_name  for messages; becomes ModelConfig::name
/// @throws Error{request} with all reasons, each naming the source, the key, its value and what is allowed.
ModelConfig read_hf_config(const std::string& json_text, const std::string& source_name);

/// The config.json text of a model; read_hf_config gives the same configuration back. @pre family is "gpt2" or "llama"
std::string write_hf_config(const ModelConfig& config);

/// @param preset_or_path  a preset's name, a config.json, or a folder that holds one
/// @throws Error{request}: neither (names the nearest preset and lists all), or a faulty file.
ModelConfig load_model(const std::string& preset_or_path);

/// Names of the presets, small models first within each family.
std::vector<std::string> preset_names();

}  // namespace cuboid
