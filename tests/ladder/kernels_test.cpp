// Every kernel on the GPU against its result on the CPU. Rows are shorter and longer than a warp's limit, and sizes are
// no multiples of anything.
#include "both.h"

namespace cuboid::ladder {
namespace {

using namespace kernels;

class OfType : public testing::TestWithParam<DType> {
 protected:
  DType type() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Ladder, OfType, testing::Values(DType::float32, DType::bfloat16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST_P(OfType, Norms) {
  for (const std::int64_t n :
       {37, 48, 2312}) {  // moved element by element, and 16 bytes at a time by a warp and a block
    expect_same_on_both("layer_norm", 64, [&](const Place& p) {
      const std::int64_t rows = 141;  // more than one segment of a weight gradient
      const Tensor x = p.normals("x", {rows, n}, type());
      const Tensor w = p.normals("w", {n}, type());
      const Tensor y = p.empty({rows, n}, type());
      const Tensor mean = p.empty({rows});
      const Tensor rstd = p.empty({rows});
      layer_norm(p.device, x, w, p.normals("b", {n}, type()), 1e-5, y, mean, rstd);
      const Tensor dy = p.normals("dy", {rows, n}, type());
      const Tensor dx = p.empty({rows, n}, type());
      layer_norm_input_gradient(p.device, dy, x, w, mean, rstd, dx);
      const Tensor dw = p.normals("dw", {n});
      const Tensor db = p.normals("db", {n});
      layer_norm_weight_gradient(p.device, dy, x, mean, rstd, dw, db);
      return std::vector<Tensor>{y, mean, rstd, dx, dw, db};
    });
    expect_same_on_both("rms_norm", 64, [&](const Place& p) {
      const std::int64_t rows = 19;
      const Tensor x = p.normals("x", {rows, n}, type());
      const Tensor w = p.normals("w", {n}, type());
      const Tensor y = p.empty({rows, n}, type());
      const Tensor rstd = p.empty({rows});
      rms_norm(p.device, x, w, 1, 1e-6, y, rstd);
      const Tensor dy = p.normals("dy", {rows, n}, type());
      const Tensor dx = p.empty({rows, n}, type());
      rms_norm_input_gradient(p.device, dy, x, w, 1, rstd, dx);
      const Tensor dw = p.normals("dw", {n});
      rms_norm_weight_gradient(p.device, dy, x, rstd, dw);
      return std::vector<Tensor>{y, rstd, dx, dw};
    });
  }
}

TEST_P(OfType, Elementwise) {
  for (const std::int64_t n : {31, 40}) {  // rows that are accessed element by element, and 16 bytes at a time
    const Shape shape = {7, 3, n};
    const Shape wide = {7, 3, 2 * n};
    const Dropout mask{.p = 0.3, .key = 99, .first_sample = 5, .rows = {.first = 11}};
    expect_same_on_both("elementwise", 4, [&](const Place& p) {
      const Tensor x = p.normals("x", shape, type(), 3);
      const Tensor dy = p.normals("dy", shape, type());
      const Tensor pairs = p.normals("pairs", wide, type(), 2);
      std::vector<Tensor> made;
      const auto out = [&](const Shape& of) -> const Tensor& { return made.emplace_back(p.empty(of, type())); };
      gelu(p.device, x, out(shape));
      gelu_gradient(p.device, dy, x, out(shape));
      swiglu(p.device, pairs, out(shape));
      swiglu_gradient(p.device, dy, pairs, out(wide));
      geglu(p.device, pairs, out(shape));
      geglu_gradient(p.device, dy, pairs, out(wide));
      add(p.device, x, dy, out(shape));
      add_bias(p.device, x, p.normals("bias", {n}, type()), out(shape));
      dropout(p.device, x, mask, out(shape));
      dropout_add(p.device, x, dy, mask, out(shape));
      dropout(p.device, x, {}, out(shape));
      dropout_add(p.device, x, dy, {}, out(shape));
      scale(p.device, made.front(), 0.7);
      made.push_back(p.empty(shape));
      convert(p.device, x, made.back());
      const Tensor back = p.empty(shape, type());
      convert(p.device, made.back(), back);
      made.push_back(back);
      const std::vector<float> numbers(static_cast<std::size_t>(7 * 3 * n), 1.0F / 3);
      convert(p.device, numbers.data(), out(shape));
      return made;
    });
  }
}

TEST_P(OfType, MatrixProducts) {
  const std::int64_t m = 29;
  const std::int64_t n = 23;
  const std::int64_t k = 130;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      expect_same_on_both("matmul", 64, [&](const Place& p) {
        const Tensor a = p.normals("a", ta ? Shape{k, m} : Shape{m, k}, type());
        const Tensor b = p.normals("b", tb ? Shape{n, k} : Shape{k, n}, type());
        const Tensor bias = p.normals("bias", {n}, type());
        const Tensor plain = p.empty({m, n}, type());
        const Tensor with_bias = p.empty({m, n}, type());
        const Tensor wide = p.empty({m, n});
        const Tensor sum = p.normals("c", {m, n});
        const Tensor all = p.normals("c", {m, n});
        matmul(p.device, a, b, plain, {ta, tb});
        matmul(p.device, a, b, with_bias, {ta, tb}, bias);
        matmul(p.device, a, b, wide, {ta, tb}, bias);
        matmul(p.device, a, b, sum, {ta, tb, true});
        matmul(p.device, a, b, all, {ta, tb, true}, bias);
        return std::vector<Tensor>{plain, with_bias, wide, sum, all};
      });
    }
  }
  expect_same_on_both("matmul without an inner size", 1, [&](const Place& p) {
    const Tensor a = p.empty({m, 0}, type());
    const Tensor b = p.empty({0, n}, type());
    const Tensor zero = p.empty({m, n}, type());
    const Tensor bias = p.empty({m, n}, type());
    matmul(p.device, a, b, zero, {});
    matmul(p.device, a, b, bias, {}, p.normals("bias", {n}, type()));
    return std::vector<Tensor>{zero, bias};
  });
}

TEST_P(OfType, Attention) {
  const std::int64_t B = 2;
  const std::int64_t H = 6;
  const std::int64_t K = 3;
  const std::int64_t T = 150;  // two blocks of query rows
  const std::int64_t D = 10;
  for (const auto& [p_drop, window] : {std::pair{0.0, 0}, {0.2, 0}, {0.0, 45}, {0.2, 45}}) {
    const Dropout mask{.p = p_drop, .key = 7, .first_sample = 3, .first_head = 6};
    expect_same_on_both("attention", 64, [&](const Place& p) {
      const Tensor qkv = p.normals("qkv", {T, B, (H + 2 * K) * D}, type());
      const Tensor cos = p.normals("cos", {T, D / 2});
      const Tensor sin = p.normals("sin", {T, D / 2});
      const Tensor q = p.empty({B, H, T, D}, type());
      const Tensor k = p.empty({B, K, T, D}, type());
      const Tensor v = p.empty({B, K, T, D}, type());
      split_heads(p.device, qkv, cos, sin, q, k, v);
      const Tensor out = p.empty({T, B, H * D}, type());
      const Tensor log_sum = p.empty({B, H, T});
      attention(p.device, q, k, v, mask, out, log_sum, {.window = window});
      const Tensor dout = p.normals("dout", {T, B, H * D}, type());
      const Tensor dq = p.empty(q.shape(), type());
      const Tensor dk = p.empty(k.shape(), type());
      const Tensor dv = p.empty(v.shape(), type());
      attention_gradient(p.device, dout, q, k, v, out, log_sum, mask, dq, dk, dv, {.window = window});
      const Tensor dqkv = p.empty(qkv.shape(), type());
      split_heads_gradient(p.device, dq, dk, dv, cos, sin, dqkv);
      const Tensor plain = p.empty(q.shape(), type());
      split_heads(p.device, qkv, {}, {}, plain, k, v);
      return std::vector<Tensor>{q, out, log_sum, dq, dk, dv, dqkv, plain, k, v};
    });
  }
}

TEST_P(OfType, AttentionOfAPartOfTheSequence) {
  const std::int64_t B = 2;
  const std::int64_t H = 6;
  const std::int64_t K = 3;
  const std::int64_t T = 156;
  const std::int64_t D = 10;
  const int ranks = 2;
  const std::int64_t N = T / ranks;
  for (const std::int64_t window : {0, 45}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Dropout mask{.p = 0.2, .key = 7, .first_sample = 3, .first_head = 6};
      const Causal causal{window, context_part(T, rank, ranks)};
      expect_same_on_both("attention of a part", 64, [&](const Place& p) {
        const Tensor q = p.normals("q", {B, H, N, D}, type());
        const Tensor parts = p.normals("parts", {ranks, 2 * B, K, N, D}, type());
        const Tensor kv = p.empty({2 * B, K, T, D}, type());
        join_sequence(p.device, parts, kv);
        const Tensor k = kv.narrow(0, B);
        const Tensor v = kv.narrow(B, B);
        const Tensor out = p.empty({N, B, H * D}, type());
        const Tensor log_sum = p.empty({B, H, N});
        attention(p.device, q, k, v, mask, out, log_sum, causal);
        const Tensor dout = p.normals("dout", out.shape(), type());
        const Tensor dq = p.empty(q.shape(), type());
        const Tensor sums = p.empty(kv.shape());  // float32: partial sums
        attention_gradient(p.device, dout, q, k, v, out, log_sum, mask, dq, sums.narrow(0, B), sums.narrow(B, B),
                           causal);
        const Tensor cut = p.empty(parts.shape());
        cut_sequence(p.device, sums, cut);
        const Tensor rounded = p.empty(parts.shape(), type());  // as exact as what the sums are made of
        convert(p.device, cut, rounded);
        return std::vector<Tensor>{kv, out, log_sum, dq, rounded};
      });
    }
  }
}

TEST_P(OfType, NormsOfHeads) {
  const std::int64_t rows = 133;
  const std::int64_t H = 4;
  const std::int64_t K = 2;
  const std::int64_t D = 14;
  expect_same_on_both("rms_norm_heads", 64, [&](const Place& p) {
    const Shape fused = {rows, (H + 2 * K) * D};
    const Tensor qkv = p.normals("qkv", fused, type());
    const Tensor wq = p.normals("wq", {D}, type());
    const Tensor wk = p.normals("wk", {D}, type());
    const Tensor y = p.empty(fused, type());
    const Tensor rstd = p.empty({H + K, rows});
    rms_norm_heads(p.device, qkv, wq, wk, 1e-6, H, K, y, rstd);
    const Tensor dy = p.normals("dy", fused, type());
    const Tensor dqkv = p.empty(fused, type());
    rms_norm_heads_input_gradient(p.device, dy, qkv, wq, wk, rstd, H, K, dqkv);
    const Tensor dwq = p.normals("dwq", {D});
    const Tensor dwk = p.normals("dwk", {D});
    rms_norm_heads_weight_gradient(p.device, dy, qkv, rstd, H, K, dwq, dwk);
    return std::vector<Tensor>{y, rstd, dqkv, dwq, dwk};
  });
}

TEST_P(OfType, EmbeddingsAndCrossEntropy) {
  const std::int64_t T = 9;
  const std::int64_t B = 5;
  const std::int64_t V = 83;
  for (const std::int64_t C : {35, 48}) {
    const SequencePart rows{.first = 1, .gap_at = 4, .gap = 3};
    expect_same_on_both("embeddings", 16, [&](const Place& p) {
      const Tensor tokens = p.ids("tokens", {T, B}, 2 * V);  // half of them are held elsewhere
      const Tensor y = p.empty({T, B, C}, type());
      embedding(p.device, tokens, p.normals("table", {V, C}, type()), 40, y);
      add_positions(p.device, y, p.normals("positions", {T + 4, C}, type()), rows);
      const Tensor dy = p.normals("dy", {T, B, C}, type());
      const Tensor dtable = p.normals("dtable", {V, C});
      const Tensor dpositions = p.normals("dpositions", {T + 4, C});
      embedding_gradient(p.device, tokens, dy, 40, dtable);
      add_positions_gradient(p.device, dy, rows, dpositions);
      return std::vector<Tensor>{y, dtable, dpositions};
    });
  }
  for (const std::int64_t vocab : {V, std::int64_t{2503}}) {
    expect_same_on_both("cross-entropy", 64, [&](const Place& p) {
      const std::int64_t N = T * B;
      const Tensor logits = p.normals("logits", {N, vocab}, DType::float32, 4);
      const Tensor targets = p.ids("targets", {N}, 2 * vocab, true);
      const Tensor row_max = p.empty({N});
      const Tensor row_sum = p.empty({N});
      const Tensor target_logit = p.empty({N});
      cross_entropy_statistics(p.device, logits, targets, 7, row_max, row_sum, target_logit);
      const Tensor higher = p.empty({N});
      add(p.device, row_max, p.normals("gap", {N}, DType::float32, 0.1), higher);
      const Tensor rescaled = p.device.clone(row_sum);
      rescale_sum(p.device, row_max, higher, rescaled);
      const Tensor losses = p.empty({B}, DType::float64);
      cross_entropy_loss(p.device, row_max, row_sum, target_logit, targets, losses);
      Tensor dlogits = type() == DType::float32 ? p.device.clone(logits) : p.empty({N, vocab}, type());
      cross_entropy_gradient(p.device, type() == DType::float32 ? dlogits : logits, targets, 7, row_max, row_sum, 0.01,
                             dlogits);
      return std::vector<Tensor>{row_max, row_sum, target_logit, rescaled, losses, dlogits};
    });
  }
}

TEST_P(OfType, MovesRowsOfExperts) {
  const std::int64_t N = 211;
  const std::int64_t E = 7;
  const std::int64_t k = 3;
  for (const std::int64_t C : {45, 56}) {
    expect_same_on_both("experts", 16, [&](const Place& p) {
      const Tensor logits = p.normals("logits", {N, E}, DType::float32, 2);
      const Tensor probabilities = p.empty({N, E});
      const Tensor experts = p.empty({N, k}, DType::int32);
      const Tensor weights = p.empty({N, k});
      const Tensor log_sum = p.empty({N});
      route(p.device, logits, probabilities, experts, weights, log_sum);
      const Tensor dlogits = p.empty({N, E});
      route_gradient(p.device, p.normals("dweights", {N, k}), probabilities, experts, weights, log_sum,
                     p.normals("slope", {E}), 0.03, dlogits);
      const Tensor slot = p.empty({N, k}, DType::int32);
      const Tensor source = p.empty({N * k}, DType::int32);
      const Tensor totals = Device().empty({E + 2}, DType::int64);  // two experts that nobody chooses
      const auto tokens = sort_by_expert(p.device, experts, E + 2, slot, source);
      std::copy(tokens.begin(), tokens.end(), totals.data<std::int64_t>());
      const Tensor rows = p.empty({N * k, C}, type());
      gather_rows(p.device, p.normals("x", {N, C}, type()), source, rows);
      const Tensor y = p.empty({N, C}, type());
      const Tensor sum = p.empty({N, C}, type());
      combine_rows(p.device, rows, slot, weights, y);
      combine_rows(p.device, rows, slot, {}, sum);
      const Tensor dy = p.normals("dy", {N, C}, type());
      std::vector<Tensor> made{
          probabilities, experts, weights, log_sum, dlogits, slot, source, p.device.to_device(totals), rows, y, sum};
      for (const Tensor& of : {rows, p.normals("wide", {N * k, C})}) {
        made.push_back(p.empty({N * k, C}, type()));
        made.push_back(p.empty({N, k}));
        combine_rows_gradient(p.device, dy, of, slot, weights, made[made.size() - 2], made.back());
      }
      return made;
    });
  }
}

TEST(Experts, ACopyForNoExpertIsFound) {
  const Place p{gpu()};
  const Tensor experts = p.ids("experts", {600, 1}, 5);
  const Tensor slot = p.empty({600}, DType::int32);
  const Tensor source = p.empty({600}, DType::int32);
  EXPECT_THROW(sort_by_expert(gpu(), experts, 4, slot, source), std::logic_error);
}

TEST(Optimizer, StepsAndSquares) {
  expect_same_on_both("optimizer", 8, [&](const Place& p) {
    const Tensor weight = p.normals("w", {777});
    const Tensor plain = p.normals("w", {777});
    const Tensor gradient = p.normals("g", {777});
    const Tensor m = p.normals("m", {777}, DType::float32, 0.1);
    const Tensor v = p.zeros({777});
    const AdamW options{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.19, 0.0975, 0.5};
    adamw(p.device, options, gradient, weight, m, v);
    sgd(p.device, 0.1, 0.01, 0.5, gradient, plain);
    const Tensor rounded = p.zeros({777}, DType::bfloat16);
    const Tensor plain_rounded = p.zeros({777}, DType::bfloat16);
    adamw(p.device, options, gradient, weight, m, v, rounded);
    sgd(p.device, 0.1, 0.01, 0.5, gradient, plain, plain_rounded);
    return std::vector<Tensor>{weight, m, v, plain, rounded, plain_rounded};
  });
  // Exact: the same integers, whatever part of a line the tensor begins at, but for a sum's order inside a line.
  const auto norm = [](const Place& p) {
    const Tensor words = p.zeros({ExactSum::kWords}, DType::int64);
    const Tensor x = p.normals("x", {1500});
    add_squares(p.device, x.narrow(3, 1200), words);
    add_squares(p.device, x.narrow(0, 0), words);
    const Tensor here = p.device.to_host(words);
    std::array<std::int64_t, ExactSum::kWords> numbers{};
    std::copy_n(here.data<std::int64_t>(), numbers.size(), numbers.begin());
    return ExactSum::from_words(numbers).value();
  };
  const double expected = norm(Place{Device()});
  EXPECT_NEAR(norm(Place{gpu()}), expected, 64 * 0x1p-53 * expected);
}

}  // namespace
}  // namespace cuboid::ladder
