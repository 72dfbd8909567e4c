// Model configurations in Hugging Face's config.json form: the presets that come with the program, files and folders.
// A key that changes the mathematics is either understood or refused by name. Dropout rates in a config are ignored: a
// run's dropout is --dropout. Whether dimensions fit a grid is not decided here.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cuboid/value/model_config.h"

namespace cuboid {

/// How the configurations of a family are recognised and read.
struct ConfigFamily {
  std::string type;                  ///< model_type
  std::vector<std::string> classes;  ///< what `architectures` may name; the first is written
  bool tied = false;                 ///< when tie_word_embeddings is absent
  /// Families that are not built in are read by Llama's keys. Not rotary: there are none of rotary embeddings.
  bool rotary = true;
  std::string activation = "silu";           ///< hidden_act; others are refused
  std::map<std::string, double> extra = {};  ///< further numbers (ModelConfig::extra), by key, with their defaults
};
/// Makes configurations of a family known. Before anything is read: not thread safe.
/// @throws std::logic_error if its type is known already
void register_config_family(ConfigFamily family);

/// @param json_text    the text of a config.json of a known family
/// @param source_name  for messages; becomes ModelConfig::name
/// @throws Error{request} with all reasons, each naming the source, the key, its value and what is allowed.
ModelConfig read_hf_config(const std::string& json_text, const std::string& source_name);

/// The config.json text of a model; read_hf_config gives the same configuration back. @pre its family is known
std::string write_hf_config(const ModelConfig& config);

/// @param preset_or_path  a preset's name, a config.json, or a folder that holds one
/// @throws Error{request}: neither (names the nearest preset and lists all), or a faulty file.
ModelConfig load_model(const std::string& preset_or_path);

/// Names of the presets, small models first within each family.
std::vector<std::string> preset_names();

}  // namespace cuboid
