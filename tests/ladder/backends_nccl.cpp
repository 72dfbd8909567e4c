// Ranks with a GPU each, as a backend of the contract suite's collectives. Its messages and failures are where NCCL's
// contract is another one: see emulation_test.cpp.
#include "contract/backend.h"
#include "machine.h"

namespace cuboid::contract {

const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = {
      {"nccl",
       {1, ladder::gpus_for_nccl()},
       false,
       [](int ranks, const Body& body, RankOptions options) {
         for (int i = 0; i < ranks; ++i) options.gpus.push_back(i);
         run_ranks(ranks, body, options);
       }},
  };
  return all;
}

}  // namespace cuboid::contract
