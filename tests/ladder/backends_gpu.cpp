// Rank threads that share the first GPU, as a backend of the contract suite.
#include "contract/backend.h"

namespace cuboid::contract {

const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = {
      {"shared_gpu",
       {1, 2, 5},
       true,
       [](int ranks, const Body& body, RankOptions options) {
         options.gpus.assign(static_cast<std::size_t>(ranks), 0);
         run_ranks(ranks, body, options);
       }},
  };
  return all;
}

}  // namespace cuboid::contract
