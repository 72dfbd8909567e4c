// Parts that model definitions share: parameter rows and blocks of layers.
#pragma once

#include <string>

#include "cuboid/models/model.h"

namespace cuboid::parts {

/// A replicated vector, such as a norm's weight or a row-split layer's bias.
ParameterInfo vector_parameter(std::string name, std::int64_t size, int block, Initializer initializer);
/// A matrix (rows, columns) with normal initial values.
ParameterInfo matrix(std::string name, std::int64_t rows, std::int64_t columns, int block, double init_std);
/// Cuts a parameter over the tensor axis along `dim` into the pieces.
ParameterInfo split(ParameterInfo parameter, int dim, std::vector<Piece> pieces);

/// q, k, v pieces of a fused attention projection.
std::vector<Piece> qkv_pieces(const ModelConfig& config);
/// Weight (and bias) of attention: "qkv" cut by heads, "output" cut by its input heads; norms of q and k heads if the
/// config has them.
void add_attention(std::vector<ParameterInfo>& rows, const ModelConfig& config, int layer, double output_std);
/// gate and up pieces of a gated MLP.
std::vector<Piece> gate_up_pieces(const ModelConfig& config);
/// Rows of the vocabulary: as even as they go, never padded.
Piece vocabulary_piece(const ModelConfig& config);
std::string layer_name(int layer, std::string_view name);

/// x → output(attention(qkv(x))) with rotary tables if the config's family uses them (undefined: none).
Var self_attention(Forward& f, int layer, const Var& x, const ops::RopeTables& rope);

}  // namespace cuboid::parts
