#include "cuboid/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cuboid/kernels/kernels.h"
#include "cuboid/runtime/profiler_range.h"

namespace cuboid {

double learning_rate(const OptimizerConfig& config, int step, int steps) {
  if (step < config.warmup_steps) return config.lr * (step + 1) / config.warmup_steps;
  if (config.lr_schedule == LrSchedule::constant) return config.lr;
  const double progress = static_cast<double>(step - config.warmup_steps) / std::max(1, steps - config.warmup_steps);
  const double share =
      config.lr_schedule == LrSchedule::linear ? 1 - progress : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return config.min_lr + (config.lr - config.min_lr) * share;
}

double clipping_factor(double clip, double norm) {
  if (clip <= 0 || !std::isfinite(norm)) return 1;
  return std::min(1.0, clip / (norm + 1e-6));
}

Optimizer::Optimizer(const Device& device, const OptimizerConfig& config, ParameterStore& store)
    : device_(device), config_(config), store_(store) {
  for (const ParameterBucket& bucket : store.buckets()) {
    if (bucket.layout.shares_values) continue;
    Moments made{&bucket, {}, {}};
    if (config.kind == OptimizerKind::adamw) {
      const Shape part = bucket.master.shape();
      made.m = device.zeros(part, bucket.gradient_shard.dtype(), Category::optimizer);
      made.v = device.zeros(part, bucket.gradient_shard.dtype(), Category::optimizer);
    }
    moments_.push_back(std::move(made));
  }
}

void Optimizer::step(double lr, double gradient_scale) {
  const ProfilerRange range("optimizer");
  ++steps_;
  for (const Moments& state : moments_) {
    for (const Parameter* p : state.bucket->parameters) update(state, *p, lr, gradient_scale);
  }
  store_.publish();
}

void Optimizer::update(const Moments& state, const Parameter& parameter, double lr, double gradient_scale) const {
  const OwnedStretch own = store_.owned(parameter);
  if (own.count == 0) return;
  const Tensor gradient = state.bucket->gradient_shard.narrow(own.at, own.count);
  const Tensor weight = state.bucket->master.narrow(own.at, own.count);
  const bool apart = state.bucket->master.dtype() != state.bucket->value_shard.dtype();
  const Tensor rounded = apart ? state.bucket->value_shard.narrow(own.at, own.count) : Tensor();
  const double decay = parameter.info->decay ? config_.weight_decay : 0;
  if (config_.kind == OptimizerKind::sgd) {
    kernels::sgd(device_, lr, decay, gradient_scale, gradient, weight, rounded);
    return;
  }
  const kernels::AdamW options{.lr = lr,
                               .beta1 = config_.beta1,
                               .beta2 = config_.beta2,
                               .eps = config_.eps,
                               .weight_decay = decay,
                               .bias_correction1 = 1 - std::pow(config_.beta1, steps_),
                               .bias_correction2 = 1 - std::pow(config_.beta2, steps_),
                               .gradient_scale = gradient_scale};
  kernels::adamw(device_, options, gradient, weight, state.m.narrow(own.at, own.count),
                 state.v.narrow(own.at, own.count), rounded);
}

}  // namespace cuboid
