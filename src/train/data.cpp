#include "cuboid/train/data.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/random.h"
#include "cuboid/core/text.h"
#include "cuboid/kernels/kernels.h"

namespace cuboid {
namespace {

/// Runs one independent check; its refusal joins the others.
template <typename Check>
void collect(Problems& problems, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    problems.add(error.what());
  }
}

}  // namespace

SampleSource::SampleSource(const DataConfig& data, std::int64_t seq_len, std::int64_t vocab, std::uint64_t seed)
    : seq_len_(seq_len), order_(data.order), seed_(seed) {
  Problems problems;
  problems.add_if(seq_len < 1, fmt::format("--seq-len {}: must be at least 1", seq_len));
  const double fraction = data.validation_fraction;
  const bool fraction_sound = fraction >= 0 && fraction < 1;
  problems.add_if(!fraction_sound,
                  fmt::format("--validation-fraction {}: must be at least 0 and below 1", exact(fraction)));
  problems.add_if(data.eval_every < 0, fmt::format("--eval-every {}: must not be negative", data.eval_every));
  problems.add_if(data.eval_every > 0 && fraction == 0,
                  fmt::format("--eval-every {}: needs --validation-fraction above 0", data.eval_every));
  if (data.mask_token) {
    problems.add_if(
        *data.mask_token < 0 || *data.mask_token >= vocab,
        fmt::format("--mask-token {}: must be an id of the vocabulary, 0 to {}", *data.mask_token, vocab - 1));
    mask_token_ = static_cast<std::int32_t>(*data.mask_token);
  }
  if (!data.mask_file.empty()) collect(problems, [&] { mask_ = MappedFile::open(data.mask_file); });
  collect(problems, [&] { stream_ = TokenStream::open(data.paths, data.format); });
  const std::int64_t tokens = stream_.size();
  if (tokens == 0) problems.throw_if_any();  // nothing below can be judged without the stream

  collect(problems, [&] { stream_.check_tokens(vocab); });
  const auto mask_bytes = mask_ ? static_cast<std::int64_t>(mask_->bytes().size()) : tokens;
  problems.add_if(mask_bytes != tokens,
                  fmt::format("--mask-file {}: holds {} bytes, the data {} tokens; one byte a token "
                              "is needed",
                              data.mask_file, mask_bytes, tokens));
  if (seq_len < 1) problems.throw_if_any();
  if (tokens < seq_len + 1) {
    problems.add(fmt::format("--data {}: a sample of --seq-len {} needs {} tokens, there are {}", stream_.description(),
                             seq_len, seq_len + 1, tokens));
    problems.throw_if_any();
  }
  const std::int64_t samples = (tokens - 1) / seq_len;
  if (fraction_sound) validation_ = std::llround(fraction * static_cast<double>(samples));
  training_ = samples - validation_;
  problems.add_if(
      fraction_sound && fraction > 0 && (validation_ < 1 || training_ < 1),
      fmt::format("--validation-fraction {}: of {} samples ({} tokens, --seq-len {}), {} would be held out and "
                  "{} be trained on; each must be at least 1",
                  exact(fraction), samples, tokens, seq_len, validation_, training_));
  problems.throw_if_any();
}

std::int64_t SampleSource::stream_sample(std::int64_t global_sample) const {
  CUBOID_CHECK(global_sample >= 0, "sample " + std::to_string(global_sample));
  const std::int64_t epoch = global_sample / training_;
  const std::int64_t position = global_sample % training_;
  if (order_ == DataOrder::sequential) return position;
  constexpr std::uint64_t kOrder = name_key("data order");
  const std::uint64_t key = mix_key(mix_key(seed_, kOrder), static_cast<std::uint64_t>(epoch));
  return static_cast<std::int64_t>(
      permuted(key, static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(training_)));
}

void SampleSource::training(std::int64_t global_sample, std::span<std::int32_t> inputs,
                            std::span<std::int32_t> targets) const {
  window(stream_sample(global_sample), inputs, targets);
}

void SampleSource::validation(std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  CUBOID_CHECK(i >= 0 && i < validation_, "validation sample " + std::to_string(i));
  window(training_ + i, inputs, targets);
}

void SampleSource::window(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(seq_len_);
  CUBOID_CHECK(inputs.size() == length && targets.size() == length, "inputs and targets hold seq_len tokens");
  const std::int64_t begin = sample * seq_len_;
  stream_.read(begin, inputs);
  stream_.read(begin + 1, targets);
  if (mask_token_ >= 0) std::replace(targets.begin(), targets.end(), mask_token_, kernels::kIgnore);
  if (!mask_) return;
  const auto mask = mask_->bytes().subspan(static_cast<std::size_t>(begin + 1), length);
  for (std::size_t t = 0; t < length; ++t) {
    if (mask[t] == std::byte{0}) targets[t] = kernels::kIgnore;
  }
}

}  // namespace cuboid
