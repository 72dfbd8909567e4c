// Mixtral (Jiang et al. 2024, arXiv 2401.04088): the decoder whose MLP is a choice: a router sends each token to k of E
// of them, and adds what they give, weighted.
#include "decoder.h"
#include "families.h"

namespace cuboid {
namespace {

std::string expert_name(std::int64_t expert, std::string_view name) {
  return "experts." + std::to_string(expert) + "." + std::string(name);
}

class Mixtral final : public Decoder {
 public:
  std::string family() const override { return "mixtral"; }

  ModelConfig tiny() const override {
    ModelConfig c = Model::tiny();
    c.experts = 6;
    c.experts_per_token = 2;
    return c;
  }

 protected:
  void add_mlp(std::vector<ParameterInfo>& rows, const ModelConfig& c, int layer) const override {
    using namespace parts;
    const int block = layer + 1;
    rows.push_back(matrix(layer_name(layer, "router.weight"), c.experts, c.hidden, block, c.init_std));
    for (std::int64_t e = 0; e < c.experts; ++e) {
      const auto add = [&](ParameterInfo row) {
        row.expert = static_cast<int>(e);
        row.experts = static_cast<int>(c.experts);
        rows.push_back(std::move(row));
      };
      add(split(matrix(layer_name(layer, expert_name(e, "gate_up.weight")), 2 * c.ffn, c.hidden, block, c.init_std), 0,
                gate_up_pieces(c)));
      add(split(matrix(layer_name(layer, expert_name(e, "down.weight")), c.hidden, c.ffn, block, c.init_std), 1,
                {{.units = c.ffn}}));
    }
  }

  Var mlp(Forward& f, int layer, const Var& x) const override {
    const Routing routing = f.route(layer, x, f.layer(layer, "router.weight"));
    Var h = dispatch(f.tape, f.tp, f.experts, x, routing);  // (R,C): rows of this rank's experts
    h = expert_linear(f.tape, f.tp, h, routing, weights(f, layer, "gate_up.weight"), ExpertSplit::column);  // (R,2F/tp)
    h = gate(f, h);                                                                                         // (R,F/tp)
    h = expert_linear(f.tape, f.tp, h, routing, weights(f, layer, "down.weight"), ExpertSplit::row);        // (R,C)
    return combine(f.tape, f.tp, f.experts, h, routing);                                                    // (T,B,C)
  }

  std::vector<HfTensor> mlp_tensors(const ModelConfig& c, int) const override {
    const std::string hf = "block_sparse_moe.";
    std::vector<HfTensor> names = {{hf + "gate.weight", "router.weight"}};
    for (std::int64_t e = 0; e < c.experts; ++e) {
      names.push_back({hf + expert_name(e, "w1.weight"), expert_name(e, "gate_up.weight"), 0});
      names.push_back({hf + expert_name(e, "w3.weight"), expert_name(e, "gate_up.weight"), 1});
      names.push_back({hf + expert_name(e, "w2.weight"), expert_name(e, "down.weight")});
    }
    return names;
  }

 private:
  // Of this rank's experts.
  static std::vector<Parameter*> weights(Forward& f, int layer, std::string_view name) {
    std::vector<Parameter*> found;
    for (std::int64_t e = f.first_expert(); e < f.first_expert() + f.local_experts(); ++e) {
      found.push_back(&f.layer(layer, expert_name(e, name)));
    }
    return found;
  }
};

}  // namespace

std::unique_ptr<Model> make_mixtral() {
  return std::make_unique<Mixtral>();
}

}  // namespace cuboid
