// A model family of our own.
#pragma once

#include <memory>

#include <cuboid/models/registry.h>

namespace example {

/// Layers whose attention and MLP read the same norm and add to the residual side by side (GPT-J; PaLM, arXiv
/// 2204.02311), and that know positions by attention's linear biases alone (ALiBi, arXiv 2108.12409).
std::unique_ptr<cuboid::Model> make_parallel_alibi();

/// Llama's keys without those of rotary embeddings, and "alibi_max_bias".
cuboid::ConfigFamily parallel_alibi_configuration();

}  // namespace example
