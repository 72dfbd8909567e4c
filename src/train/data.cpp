#include "cuboid/train/data.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/random.h"
#include "cuboid/core/text.h"
#include "cuboid/kernels/kernels.h"

#include "blend.h"

namespace cuboid {
namespace {

/// Runs one independent check of what a flag names; its refusal joins the others.
template <typename Check>
void collect(Problems& problems, const char* flag, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    problems.add(naming(flag, error.what()));
  }
}

/// A blend as it is given: WEIGHT PATH WEIGHT PATH … Empty: one stream.
struct GivenBlend {
  std::vector<double> weights;
  std::vector<std::string> paths;
};

std::optional<double> number(const std::string& text) {
  double value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

GivenBlend blend_of(const std::vector<std::string>& paths, Problems& problems) {
  GivenBlend blend;
  std::error_code ignored;
  // A file whose name is a number is a file.
  if (paths.empty() || !number(paths[0]) || std::filesystem::exists(paths[0], ignored)) return blend;
  problems.add_if(
      paths.size() % 2 != 0,
      fmt::format("--data: of a blend the weight {} has no path: give WEIGHT PATH WEIGHT PATH...", paths.back()));
  problems.add_if(paths.size() / 2 > Blend::kMostSets,
                  fmt::format("--data: a blend of {} sets; at most {}", paths.size() / 2, Blend::kMostSets));
  for (std::size_t i = 0; i + 1 < paths.size(); i += 2) {
    const auto weight = number(paths[i]);
    problems.add_if(
        !weight || !(*weight > 0) || !std::isfinite(*weight),
        fmt::format("--data {}: the weight of {} in a blend must be a number above 0", paths[i], paths[i + 1]));
    blend.weights.push_back(weight.value_or(1));
    blend.paths.push_back(paths[i + 1]);
  }
  return blend;
}

}  // namespace

SampleSource::SampleSource(const DataConfig& data, std::int64_t seq_len, std::int64_t vocab, std::uint64_t seed)
    : seq_len_(seq_len), order_(data.order), seed_(seed) {
  Problems problems;
  problems.add_if(seq_len < 1, fmt::format("--seq-len {}: must be at least 1", seq_len));
  const double fraction = data.validation_fraction;
  problems.add_if(!(fraction >= 0 && fraction < 1),
                  fmt::format("--validation-fraction {}: must be at least 0 and below 1", fraction));
  problems.add_if(data.eval_every < 0, fmt::format("--eval-every {}: must not be negative", data.eval_every));
  problems.add_if(data.eval_every > 0 && fraction == 0,
                  fmt::format("--eval-every {}: needs data to validate on; give --validation-fraction, such as 0.05",
                              data.eval_every));
  if (data.mask_token) {
    problems.add_if(
        *data.mask_token < 0 || *data.mask_token >= vocab,
        fmt::format("--mask-token {}: must be an id of the vocabulary, 0 to {}", *data.mask_token, vocab - 1));
    mask_token_ = static_cast<std::int32_t>(*data.mask_token);
  }
  if (!data.mask_file.empty()) collect(problems, "--mask-file", [&] { mask_ = MappedFile::open(data.mask_file); });
  const GivenBlend blend = blend_of(data.paths, problems);
  if (blend.paths.empty()) {
    sets_.push_back(open_set(data, "", vocab, problems));
  } else {
    problems.add_if(mask_ != nullptr,
                    fmt::format("--mask-file {}: cannot go with a blend of data sets", data.mask_file));
    mask_.reset();
    for (const std::string& path : blend.paths) sets_.push_back(open_set(data, path, vocab, problems));
  }
  problems.throw_if_any();
  if (!blend.paths.empty()) blend_ = std::make_shared<const Blend>(blend.weights);
}

// @param path  of one set of a blend; empty: all paths are one stream
SampleSource::Set SampleSource::open_set(const DataConfig& data, const std::string& path, std::int64_t vocab,
                                         Problems& problems) const {
  Set set;
  collect(problems, "--data", [&] {
    set.stream = TokenStream::open(path.empty() ? data.paths : std::vector<std::string>{path}, data.format);
  });
  const std::int64_t tokens = set.stream.size();
  if (tokens == 0) return set;  // nothing below can be judged without the stream
  collect(problems, "--data", [&] { set.stream.check_tokens(vocab); });
  const auto mask_bytes = mask_ ? static_cast<std::int64_t>(mask_->bytes().size()) : tokens;
  problems.add_if(mask_bytes != tokens,
                  fmt::format("--mask-file {}: holds {} bytes, the data {} tokens; one byte a token "
                              "is needed",
                              data.mask_file, mask_bytes, tokens));
  if (seq_len_ < 1) return set;
  if (tokens < seq_len_ + 1) {
    problems.add(fmt::format("--data {}: a sample of --seq-len {} needs {} tokens, there are {}",
                             set.stream.description(), seq_len_, seq_len_ + 1, tokens));
    return set;
  }
  const std::int64_t samples = (tokens - 1) / seq_len_;
  const double fraction = data.validation_fraction;
  if (!(fraction >= 0 && fraction < 1)) return set;
  set.validation = std::llround(fraction * static_cast<double>(samples));
  set.training = samples - set.validation;
  problems.add_if(
      fraction > 0 && (set.validation < 1 || set.training < 1),
      fmt::format("--validation-fraction {}: of {} samples ({} tokens, --seq-len {}), {} would be held out and "
                  "{} be trained on; each must be at least 1",
                  exact(fraction), samples, tokens, seq_len_, set.validation, set.training));
  return set;
}

std::int64_t SampleSource::training_samples() const {
  return std::accumulate(sets_.begin(), sets_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Set& set) { return sum + set.training; });
}

std::int64_t SampleSource::validation_samples() const {
  return std::accumulate(sets_.begin(), sets_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Set& set) { return sum + set.validation; });
}

SampleSource::Place SampleSource::place_of(std::int64_t global_sample) const {
  CUBOID_CHECK(global_sample >= 0, "sample " + std::to_string(global_sample));
  Place place{0, global_sample};
  if (blend_) {
    const Blend::Choice choice = blend_->at(global_sample);
    place = {choice.set, choice.sample};
  }
  const std::int64_t training = sets_[place.set].training;
  const std::int64_t epoch = place.sample / training;
  place.sample %= training;
  if (order_ == DataOrder::sequential) return place;
  constexpr std::uint64_t kOrder = name_key("data order");
  std::uint64_t key = mix_key(mix_key(seed_, kOrder), static_cast<std::uint64_t>(epoch));
  if (blend_) key = mix_key(key, place.set);  // sets of one size are not permuted alike
  place.sample = static_cast<std::int64_t>(
      permuted(key, static_cast<std::uint64_t>(place.sample), static_cast<std::uint64_t>(training)));
  return place;
}

std::size_t SampleSource::set_of(std::int64_t global_sample) const {
  return place_of(global_sample).set;
}

std::int64_t SampleSource::stream_sample(std::int64_t global_sample) const {
  return place_of(global_sample).sample;
}

void SampleSource::training(std::int64_t global_sample, std::span<std::int32_t> inputs,
                            std::span<std::int32_t> targets) const {
  window(place_of(global_sample), inputs, targets);
}

void SampleSource::validation(std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  CUBOID_CHECK(i >= 0 && i < validation_samples(), "validation sample " + std::to_string(i));
  Place place;
  while (i >= sets_[place.set].validation) i -= sets_[place.set++].validation;
  place.sample = sets_[place.set].training + i;
  window(place, inputs, targets);
}

void SampleSource::window(const Place& place, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(seq_len_);
  CUBOID_CHECK(inputs.size() == length && targets.size() == length, "inputs and targets hold seq_len tokens");
  const std::int64_t begin = place.sample * seq_len_;
  const TokenStream& stream = sets_[place.set].stream;
  stream.read(begin, inputs);
  stream.read(begin + 1, targets);
  if (mask_token_ >= 0) std::replace(targets.begin(), targets.end(), mask_token_, kernels::kIgnore);
  if (!mask_) return;
  const auto mask = mask_->bytes().subspan(static_cast<std::size_t>(begin + 1), length);
  for (std::size_t t = 0; t < length; ++t) {
    if (mask[t] == std::byte{0}) targets[t] = kernels::kIgnore;
  }
}

}  // namespace cuboid
