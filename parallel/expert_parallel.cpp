#include "cuboid/parallel/expert_parallel.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "sequence.h"

namespace cuboid {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

Tensor rows_like(const Device& device, const Tensor& x, std::int64_t rows) {
  return device.empty({rows, x.dim(-1)}, x.dtype());
}

Tensor permuted(const Device& device, const Tensor& x, const Tensor& index) {
  const Tensor y = rows_like(device, x, index.elements());
  kernels::gather_rows(device, x, index, y);
  return y;
}

// Rows to and from the other ranks of the expert group.
Tensor exchanged(const Device& device, const ExpertParallel& ep, const Tensor& x, const Counts& sent,
                 const Counts& arriving) {
  const std::int64_t n = x.dim(-1);
  const Tensor y = device.empty({total(arriving), n}, x.dtype(), Category::communication);
  const auto elements = [n](Counts counts) {
    for (auto& count : counts) count *= n;
    return counts;
  };
  ep.comm->all_to_all_v(x, elements(sent), y, elements(arriving)).wait();
  return y;
}

// Copies of this rank's tokens (N·k,C), sorted by expert → rows of this rank's experts (R,C).
Tensor to_experts(const Device& device, const ExpertParallel& ep, const ExpertExchange& e, const Tensor& copies) {
  if (ep.size() == 1) return copies;
  return permuted(device, exchanged(device, ep, copies, e.sent, e.arrived), e.order);
}

// The way back.
Tensor from_experts(const Device& device, const ExpertParallel& ep, const ExpertExchange& e, const Tensor& rows) {
  if (ep.size() == 1) return rows;
  return exchanged(device, ep, permuted(device, rows, e.place), e.arrived, e.sent);
}

// Copies that arrive from each rank of the expert group for each expert of this one (size, E/size). Without data all
// ranks are taken to send what this one does.
Counts arriving_copies(const Device& device, const ExpertParallel& ep, const Counts& tokens) {
  const auto local = static_cast<std::int64_t>(tokens.size()) / ep.size();
  const bool data = device.kind() != DeviceKind::meta;
  const Device place = data ? device.host() : device;
  const Tensor mine = place.empty({ep.size(), local}, DType::int64, Category::workspace);
  const Tensor theirs = place.empty({ep.size(), local}, DType::int64, Category::workspace);
  if (data) std::copy(tokens.begin(), tokens.end(), mine.data<std::int64_t>());
  ep.comm->all_to_all(mine, theirs).wait();
  if (data) return {theirs.data<std::int64_t>(), theirs.data<std::int64_t>() + theirs.elements()};
  Counts alike;
  for (int r = 0; r < ep.size(); ++r) {
    alike.insert(alike.end(), tokens.begin() + ep.rank() * local, tokens.begin() + (ep.rank() + 1) * local);
  }
  return alike;
}

// The order of arrived rows: by expert, then by sender, whose ranks ascend with the samples.
void order_arrivals(const Device& device, const Counts& arriving, int senders, ExpertExchange& e) {
  const bool data = device.kind() != DeviceKind::meta;
  const Device host = data ? device.host() : device;
  e.order = host.empty({e.rows()}, DType::int32);
  e.place = host.empty({e.rows()}, DType::int32);
  if (!data) return;
  const auto local = static_cast<std::int64_t>(arriving.size()) / senders;
  std::int64_t row = 0;
  for (std::int64_t i = 0; i < local; ++i) {
    std::int64_t block = 0;  // where the sender's rows begin
    for (int r = 0; r < senders; ++r) {
      const auto of_sender = arriving.begin() + r * local;
      std::int64_t at = block + std::accumulate(of_sender, of_sender + i, std::int64_t{0});
      for (std::int64_t c = 0; c < of_sender[i]; ++c, ++at, ++row) {
        e.order.data<std::int32_t>()[row] = static_cast<std::int32_t>(at);
        e.place.data<std::int32_t>()[at] = static_cast<std::int32_t>(row);
      }
      block += e.arrived[static_cast<std::size_t>(r)];
    }
  }
  e.order = device.to_device(e.order);
  e.place = device.to_device(e.place);
}

// Tells each rank of the expert group how many rows it gets for each of its experts, and plans their order there.
void plan_arrivals(const Device& device, const ExpertParallel& ep, const Counts& tokens, ExpertExchange& e) {
  const int size = ep.size();
  if (size == 1) {
    e.expert_rows = tokens;
    return;
  }
  const auto local = static_cast<std::int64_t>(tokens.size()) / size;
  const Counts arriving = arriving_copies(device, ep, tokens);
  e.expert_rows.assign(static_cast<std::size_t>(local), 0);
  for (int r = 0; r < size; ++r) {
    const auto of_sender = arriving.begin() + r * local;
    e.sent.push_back(std::accumulate(tokens.begin() + r * local, tokens.begin() + (r + 1) * local, std::int64_t{0}));
    e.arrived.push_back(std::accumulate(of_sender, of_sender + local, std::int64_t{0}));
    for (std::int64_t i = 0; i < local; ++i) e.expert_rows[static_cast<std::size_t>(i)] += of_sender[i];
  }
  order_arrivals(device, arriving, size, e);
}

// What the router computed of its own rows.
struct Choice {
  Tensor probabilities;  // (n,E)
  Tensor experts;        // (n,k)
  Tensor weights;        // (n,k)
  Tensor log_sum;        // (n)
};

// x in the type that routers compute in.
Tensor widened(const Device& device, const Tensor& x) {
  const DType type = compute_type(x.dtype());
  if (type == x.dtype()) return x;
  const Tensor wide = device.empty(x.shape(), type, Category::workspace);
  kernels::convert(device, x, wide);
  return wide;
}

Choice choose(const Device& device, const Tensor& x, const Tensor& weight, std::int64_t k) {
  const std::int64_t rows = x.shape().rows();
  const std::int64_t experts = weight.dim(0);
  const DType type = compute_type(x.dtype());
  const Tensor logits = device.empty({rows, experts}, type, Category::workspace);
  kernels::matmul(device, widened(device, x), widened(device, weight), logits, {.transpose_b = true});
  Shape chosen = x.shape();  // (T,B,k) or its shard
  chosen[-1] = k;
  const Choice made{device.empty({rows, experts}, type), device.empty(chosen, DType::int32), device.empty(chosen, type),
                    device.empty({rows}, type)};
  kernels::route(device, logits, made.probabilities, made.experts, made.weights, made.log_sum);
  return made;
}

RouterReport describe(const Device& device, const Choice& choice, Counts tokens, std::int64_t rows) {
  RouterReport report;
  report.tokens = std::move(tokens);
  report.rows = rows;
  Tensor sums = device.zeros({choice.probabilities.dim(1)}, choice.probabilities.dtype(), Category::workspace);
  kernels::add_column_sum(device, choice.probabilities, sums);
  Tensor squares = device.zeros({ExactSum::kWords}, DType::int64, Category::workspace);
  kernels::add_squares(device, choice.log_sum, squares);
  report.probability_sums.assign(report.tokens.size(), 0);
  if (device.kind() == DeviceKind::meta) return report;
  sums = device.to_host(sums);
  squares = device.to_host(squares);
  std::array<std::int64_t, ExactSum::kWords> words{};
  std::copy_n(squares.data<std::int64_t>(), words.size(), words.begin());
  report.squared_log_sums = ExactSum::from_words(words).value();
  if (sums.dtype() == DType::float64) {
    std::copy_n(sums.data<double>(), sums.elements(), report.probability_sums.begin());
  } else {
    std::copy_n(sums.data<float>(), sums.elements(), report.probability_sums.begin());
  }
  return report;
}

// Copies for each expert from whole sequences. Without data all ranks are taken to be alike.
Counts over_context(const Device& device, const ExpertParallel& ep, const Counts& tokens) {
  if (ep.context == nullptr || ep.context->size() == 1) return tokens;
  const bool data = device.kind() != DeviceKind::meta;
  const Device place = data ? device.host() : device;
  const Tensor sum = place.empty({static_cast<std::int64_t>(tokens.size())}, DType::int64, Category::workspace);
  if (data) std::copy(tokens.begin(), tokens.end(), sum.data<std::int64_t>());
  all_reduce_in_place(*ep.context, sum);
  if (data) return {sum.data<std::int64_t>(), sum.data<std::int64_t>() + sum.elements()};
  Counts all = tokens;
  for (std::int64_t& count : all) count *= ep.context->size();
  return all;
}

// d(aux loss)/d(probability of an expert), for every row: f is taken as it is.
Tensor aux_slope(const Device& device, double factor, const Counts& tokens, std::int64_t rows, DType type) {
  std::vector<float> numbers;
  const double scale =
      factor * static_cast<double>(tokens.size()) / static_cast<double>(total(tokens)) / static_cast<double>(rows);
  for (const std::int64_t count : tokens) numbers.push_back(static_cast<float>(scale * static_cast<double>(count)));
  const Tensor slope = device.empty({static_cast<std::int64_t>(numbers.size())}, type);
  kernels::convert(device, numbers.data(), slope);
  return slope;
}

}  // namespace

double RouterReport::aux_loss() const {
  const double copies = static_cast<double>(total(tokens));
  double sum = 0;
  for (std::size_t e = 0; e < tokens.size(); ++e) {
    sum += static_cast<double>(tokens[e]) / copies * probability_sums[e] / static_cast<double>(rows);
  }
  return sum * static_cast<double>(tokens.size());
}

std::int64_t ExpertExchange::rows() const {
  return total(expert_rows);
}

Routing route(Tape& tape, const TensorParallel& tp, const ExpertParallel& ep, const Var& x, Parameter& weight,
              std::int64_t experts_per_token, const std::function<void(RouterReport)>& report) {
  const Device& device = tape.device();
  const Choice choice = choose(device, x.value(), weight.value, experts_per_token);
  const Tensor experts = tp.splits_sequence() ? gather_sequence(device, tp, choice.experts) : choice.experts;
  auto exchange = std::make_shared<ExpertExchange>();
  exchange->tokens = {experts.dim(0), experts.dim(1)};
  exchange->slot = device.empty(experts.shape(), DType::int32);
  exchange->source = device.empty({experts.elements()}, DType::int32);
  const Counts tokens = kernels::sort_by_expert(device, experts, weight.value.dim(0), exchange->slot, exchange->source);
  plan_arrivals(device, ep, tokens, *exchange);
  const Counts all = over_context(device, ep, tokens);
  const std::int64_t rows = exchange->tokens.elements() * (ep.context ? ep.context->size() : 1);
  if (report) report(describe(device, choice, all, rows));

  const Tensor slope = aux_slope(device, ep.aux_factor, all, rows, choice.weights.dtype());
  const double z = ep.z_factor / static_cast<double>(rows);
  Var weights = tape.record(choice.weights, {x.slot()}, {&weight},
                            [slot = x.slot(), saved = x.saved(), &weight, choice, slope, z](Tape& t, Tensor dweights) {
                              const Device& on = t.device();
                              const Tensor dlogits =
                                  on.empty(choice.probabilities.shape(), choice.probabilities.dtype());
                              kernels::route_gradient(on, dweights, choice.probabilities, choice.experts,
                                                      choice.weights, choice.log_sum, slope, z, dlogits);
                              if (slot.wanted()) {
                                Shape shape = choice.experts.shape();
                                shape[-1] = weight.value.dim(1);
                                const Tensor dx = on.empty(shape, dlogits.dtype());
                                kernels::matmul(on, dlogits, widened(on, weight.value), dx);
                                t.contribute(slot, rounded(on, dx, weight.value.dtype()));
                              }
                              t.defer({&weight}, [on, saved, dlogits, &weight] {
                                kernels::matmul(on, dlogits, widened(on, saved.get()), weight.gradient,
                                                {.transpose_a = true, .accumulate = true});
                              });
                            });
  // The gradients of the whole sequence's weights are partial sums over tp, as those of its activations are.
  return {x.value().dtype(), enter_split_region(tape, tp, weights), std::move(exchange)};
}

Var dispatch(Tape& tape, const TensorParallel& tp, const ExpertParallel& ep, const Var& x, const Routing& routing) {
  const Var full = enter_split_region(tape, tp, x);  // (T,B,C)
  const Device& device = tape.device();
  const auto exchange = routing.exchange;
  const Tensor rows = to_experts(device, ep, *exchange, permuted(device, full.value(), exchange->source));
  return tape.record(rows, {full.slot()}, {},
                     [ep, exchange, slot = full.slot(), shape = full.shape()](Tape& t, Tensor drows) {
                       const Tensor copies = from_experts(t.device(), ep, *exchange, drows);
                       const Tensor dx = t.device().empty(shape, drows.dtype());
                       kernels::combine_rows(t.device(), copies, exchange->slot, {}, dx);
                       t.contribute(slot, dx);
                     });
}

namespace {

// f(rows of the expert within x, expert) for every expert that has any.
template <typename F>
void for_experts(const Counts& rows, F&& visit) {
  std::int64_t at = 0;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    if (rows[e] > 0) visit(e, at, rows[e]);
    at += rows[e];
  }
}

}  // namespace

Var expert_linear(Tape& tape, const TensorParallel& tp, const Var& x, const Routing& routing,
                  const std::vector<Parameter*>& weights, ExpertSplit split) {
  const Device& device = tape.device();
  const auto exchange = routing.exchange;
  const DType whole = x.value().dtype();
  const DType partial = tp.size() > 1 ? tp.partial_type(whole) : whole;
  const bool columns = split == ExpertSplit::column;
  const std::int64_t out = weights.front()->value.dim(0);
  const Tensor y = device.empty({exchange->rows(), out}, columns ? whole : partial);
  for_experts(exchange->expert_rows, [&](std::size_t e, std::int64_t at, std::int64_t rows) {
    kernels::matmul(device, x.value().narrow(at, rows), weights[e]->value, y.narrow(at, rows),
                    {.transpose_b = true, .varying = true});
  });
  return tape.record(y, {x.slot()}, weights,
                     [exchange, weights, slot = x.slot(), saved = x.saved(), in = x.shape()[-1],
                      dx_type = columns ? partial : whole](Tape& t, Tensor dy) {
                       const Device& on = t.device();
                       if (slot.wanted()) {
                         const Tensor dx = on.empty({exchange->rows(), in}, dx_type);
                         for_experts(exchange->expert_rows, [&](std::size_t e, std::int64_t at, std::int64_t rows) {
                           kernels::matmul(on, dy.narrow(at, rows), weights[e]->value, dx.narrow(at, rows),
                                           {.varying = true});
                         });
                         t.contribute(slot, dx);
                       }
                       // One for all experts, those without a token too: their gradient of this micro-batch is
                       // complete.
                       t.defer(weights, [on, exchange, weights, saved, dy] {
                         const Tensor inputs = saved.get();
                         for_experts(exchange->expert_rows, [&](std::size_t e, std::int64_t at, std::int64_t rows) {
                           kernels::matmul(on, dy.narrow(at, rows), inputs.narrow(at, rows), weights[e]->gradient,
                                           {.transpose_a = true, .accumulate = true});
                         });
                       });
                     });
}

Var combine(Tape& tape, const TensorParallel& tp, const ExpertParallel& ep, const Var& rows, const Routing& routing) {
  const Device& device = tape.device();
  const auto exchange = routing.exchange;
  const Tensor copies = from_experts(device, ep, *exchange, rows.value());  // (N·k,C)
  const Tensor y = device.empty({exchange->tokens[0], exchange->tokens[1], rows.shape()[-1]}, copies.dtype());
  const Tensor weights = routing.weights.value();
  kernels::combine_rows(device, copies, exchange->slot, weights, y);
  const Var sum =
      tape.record(y, {rows.slot(), routing.weights.slot()}, {},
                  [ep, exchange, copies, weights, rows_slot = rows.slot(), weights_slot = routing.weights.slot()](
                      Tape& t, Tensor dy) {
                    const Tensor dcopies = t.device().empty(copies.shape(), dy.dtype());
                    const Tensor dweights = t.device().empty(weights.shape(), weights.dtype());
                    kernels::combine_rows_gradient(t.device(), dy, copies, exchange->slot, weights, dcopies, dweights);
                    t.contribute(weights_slot, dweights);
                    t.contribute(rows_slot, to_experts(t.device(), ep, *exchange, dcopies));
                  });
  return leave_split_region(tape, tp, sum, routing.dtype);
}

}  // namespace cuboid
