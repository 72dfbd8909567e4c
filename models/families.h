// The built-in families, for the registry. Private to models/.
#pragma once

#include <memory>

#include "cuboid/models/model.h"

namespace cuboid {

std::unique_ptr<Model> make_gpt2();
std::unique_ptr<Model> make_llama();
std::unique_ptr<Model> make_mistral();
std::unique_ptr<Model> make_qwen2();
std::unique_ptr<Model> make_qwen3();
std::unique_ptr<Model> make_gemma();
std::unique_ptr<Model> make_mixtral();

}  // namespace cuboid
