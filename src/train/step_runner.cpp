#include "cuboid/train/step_runner.h"

#include "cuboid/core/random.h"

namespace cuboid {

StepRunner::StepRunner(RankContext& context, const RunConfig& run, const ModelConfig& model,
                       const PipelineLayout& layout)
    : context_(context),
      run_(run),
      model_(model),
      replica_(context, run, model, layout),
      optimizer_(context.device, run.optimizer, replica_.parameters()) {
  replica_.parameters().initialize(1);
}

void StepRunner::step(int s) {
  const std::int64_t first = std::int64_t{s} * run_.global_batch;
  const auto random_tokens = [&](std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      const auto word = philox(7, static_cast<std::uint32_t>(first + i), static_cast<std::uint32_t>(t), 0, 0);
      inputs[t] = static_cast<std::int32_t>(word.x[0] % static_cast<std::uint32_t>(model_.vocab));
      targets[t] = static_cast<std::int32_t>(word.x[1] % static_cast<std::uint32_t>(model_.vocab));
    }
    return true;
  };
  replica_.train_batch(random_tokens, {.seed = 1, .step = s, .dropout = run_.dropout}, first, [this] { update(); });
}

void StepRunner::update() {
  const Groups& groups = replica_.groups();
  const double norm =
      gradient_norm(context_.device, replica_.parameters(), groups.axis(Axis::tp), groups.axis(Axis::pp));
  optimizer_.step(run_.optimizer.lr, clipping_factor(run_.optimizer.clip_grad, norm));
}

}  // namespace cuboid
