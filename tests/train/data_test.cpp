#include "cuboid/train/data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>
#include <thread>

#include "formats/files.h"

namespace cuboid {
namespace {

using test::bytes_of;
using test::expect_mentions;
using test::refusal;
using test::TemporaryFolder;
using Ids = std::vector<std::int32_t>;

struct Sample {
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
};

Sample training(const SampleSource& source, std::int64_t i) {
  Sample sample{std::vector<std::int32_t>(static_cast<std::size_t>(source.seq_len())), {}};
  sample.targets = sample.inputs;
  source.training(i, sample.inputs, sample.targets);
  return sample;
}
Sample validation(const SampleSource& source, std::int64_t i) {
  Sample sample{std::vector<std::int32_t>(static_cast<std::size_t>(source.seq_len())), {}};
  sample.targets = sample.inputs;
  source.validation(i, sample.inputs, sample.targets);
  return sample;
}

/// A stream of n tokens 0, 1, 2, …
class Data : public testing::Test {
 protected:
  DataConfig counting(std::int64_t n) const {
    std::vector<std::uint16_t> ids(static_cast<std::size_t>(n));
    std::iota(ids.begin(), ids.end(), std::uint16_t{0});
    DataConfig data;
    data.paths = {folder_.write("count.bin", bytes_of(ids))};
    return data;
  }
  TemporaryFolder folder_;
};

TEST_F(Data, SamplesAreConsecutiveWindows) {
  const SampleSource source(counting(23), 4, 1000, 0);
  EXPECT_EQ(source.training_samples(), 5);  // (23 - 1) / 4; one more would need 25 tokens
  EXPECT_EQ(source.validation_samples(), 0);
  EXPECT_EQ(training(source, 0).inputs, (Ids{0, 1, 2, 3}));
  EXPECT_EQ(training(source, 0).targets, (Ids{1, 2, 3, 4}));
  EXPECT_EQ(training(source, 4).inputs, (Ids{16, 17, 18, 19}));
  EXPECT_EQ(training(source, 4).targets, (Ids{17, 18, 19, 20}));
  EXPECT_EQ(training(source, 5).inputs, (Ids{0, 1, 2, 3}));  // epoch 1
  EXPECT_EQ(training(source, 5'000'000'000'003).inputs, (Ids{12, 13, 14, 15}));
}

TEST_F(Data, OneWindowIsEnoughAndOneTokenLessIsRefused) {
  EXPECT_EQ(SampleSource(counting(17), 16, 1000, 0).training_samples(), 1);
  expect_mentions(refusal([&] { SampleSource(counting(16), 16, 1000, 0); }),
                  {"a sample of --seq-len 16 needs 17 tokens, there are 16"});
  DataConfig data;
  data.paths = {test::case_path("tokens/llmc-10-tokens.bin")};
  expect_mentions(refusal([&] { SampleSource(data, 16, 50257, 0); }),
                  {"llmc-10-tokens.bin", "needs 17 tokens, there are 10"});
  EXPECT_EQ(SampleSource(data, 9, 50257, 0).training_samples(), 1);
}

TEST_F(Data, ValidationIsTheLastFraction) {
  DataConfig data = counting(7 * 20 + 3);
  data.validation_fraction = 0.15;
  data.eval_every = 2;
  const SampleSource source(data, 7, 1000, 0);
  EXPECT_EQ(source.training_samples(), 17);
  EXPECT_EQ(source.validation_samples(), 3);
  // No target is in both; validation begins where training ends.
  EXPECT_EQ(training(source, 16).targets.back(), 17 * 7);
  EXPECT_EQ(validation(source, 0).targets.front(), 17 * 7 + 1);
  EXPECT_EQ(validation(source, 2).inputs, (Ids{133, 134, 135, 136, 137, 138, 139}));
  EXPECT_EQ(training(source, 17).inputs, training(source, 0).inputs);  // training never runs into validation
  EXPECT_THROW(validation(source, 3), std::logic_error);
  EXPECT_THROW(training(source, -1), std::logic_error);
}

TEST_F(Data, ValidationNeedsASampleOnEachSide) {
  DataConfig data = counting(4 * 10 + 1);
  data.validation_fraction = 0.04;
  expect_mentions(refusal([&] { SampleSource(data, 4, 1000, 0); }),
                  {"--validation-fraction 0.04: of 10 samples (41 tokens, --seq-len 4), 0 would be held out and 10"});
  data.validation_fraction = 0.96;
  expect_mentions(refusal([&] { SampleSource(data, 4, 1000, 0); }), {"10 would be held out and 0 be trained on"});
  data.validation_fraction = 0.95;  // rounds to 10 of 10 as well: 9.5 goes away from zero
  refusal([&] { SampleSource(data, 4, 1000, 0); });
  data.validation_fraction = 0.94;
  EXPECT_EQ(SampleSource(data, 4, 1000, 0).training_samples(), 1);
}

TEST_F(Data, ShuffledVisitsEachSampleOnceAnEpoch) {
  DataConfig data = counting(3 * 29 + 1);
  data.order = DataOrder::shuffled;
  data.validation_fraction = 0.2;
  const SampleSource source(data, 3, 1000, 5);
  const std::int64_t n = source.training_samples();
  ASSERT_EQ(n, 23);
  std::vector<std::vector<std::int64_t>> epochs;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < n; ++i) order.push_back(source.stream_sample(epoch * n + i));
    EXPECT_EQ(std::set<std::int64_t>(order.begin(), order.end()).size(), static_cast<std::size_t>(n));
    EXPECT_LT(*std::max_element(order.begin(), order.end()), n);
    epochs.push_back(order);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  // A pure function of seed and index: the same in another object, another order with another seed.
  const SampleSource again(data, 3, 1000, 5);
  const SampleSource other(data, 3, 1000, 6);
  std::vector<std::int64_t> same;
  std::vector<std::int64_t> different;
  for (std::int64_t i = 0; i < n; ++i) {
    same.push_back(again.stream_sample(n + i));
    different.push_back(other.stream_sample(n + i));
  }
  EXPECT_EQ(same, epochs[1]);
  EXPECT_NE(different, epochs[1]);
  EXPECT_EQ(training(source, 2).inputs.front(), 3 * epochs[0][2]);
}

TEST_F(Data, MaskToken) {
  const std::vector<std::uint16_t> ids = {5, 2, 5, 7, 5, 5, 1};
  DataConfig data;
  data.paths = {folder_.write("m.bin", bytes_of(ids))};
  data.mask_token = 5;
  const SampleSource source(data, 3, 8, 0);
  EXPECT_EQ(training(source, 0).inputs, (Ids{5, 2, 5}));
  EXPECT_EQ(training(source, 0).targets, (Ids{2, -100, 7}));
  EXPECT_EQ(training(source, 1).targets, (Ids{-100, -100, 1}));
}

TEST_F(Data, MaskFileBelongsToTheTargetsPosition) {
  DataConfig data = counting(11);
  data.validation_fraction = 1.0 / 3;
  data.mask_token = 2;
  std::string mask(11, '\1');
  mask[0] = '\0';  // no target lies here
  mask[3] = mask[4] = mask[8] = '\0';
  mask[5] = '\xff';  // any byte but 0 counts
  data.mask_file = folder_.write("mask", mask);
  const SampleSource source(data, 3, 100, 0);
  EXPECT_EQ(training(source, 0).inputs, (Ids{0, 1, 2}));
  EXPECT_EQ(training(source, 0).targets, (Ids{1, -100, -100}));  // 2 by the token, 3 by the file
  EXPECT_EQ(training(source, 1).targets, (Ids{-100, 5, 6}));
  EXPECT_EQ(validation(source, 0).targets, (Ids{7, -100, 9}));
}

TEST_F(Data, AllReasonsAtOnce) {
  DataConfig data = counting(11);
  data.validation_fraction = 1;
  data.mask_token = 50;
  data.mask_file = folder_.write("mask", "1234567");
  data.eval_every = -1;
  expect_mentions(refusal([&] { SampleSource(data, 16, 9, 0); }),
                  {"--validation-fraction 1: must be at least 0 and below 1",
                   "--mask-token 50: must be an id of the vocabulary, 0 to 8", "holds 7 bytes, the data 11 tokens",
                   "token 9 (byte 18) has id 9", "--eval-every -1", "needs 17 tokens, there are 11"});
  data = counting(11);
  data.paths.push_back(folder_ / "none");
  data.mask_file = folder_ / "no-mask";
  data.eval_every = 3;
  data.validation_fraction = 0;
  expect_mentions(refusal([&] { SampleSource(data, 0, 9, 0); }),
                  {"none: cannot be opened", "no-mask: cannot be opened", "--seq-len 0: must be at least 1",
                   "--eval-every 3: needs data to validate on; give --validation-fraction"});
}

TEST_F(Data, ManyThreadsReadOneSource) {
  DataConfig data = counting(5 * 64 + 1);
  data.order = DataOrder::shuffled;
  const SampleSource source(data, 5, 1000, 1);
  std::vector<std::vector<std::int32_t>> firsts(4);
  std::vector<std::thread> threads;
  for (auto& first : firsts) {
    threads.emplace_back([&] {
      for (std::int64_t i = 0; i < 128; ++i) first.push_back(training(source, i).inputs.front());
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& first : firsts) EXPECT_EQ(first, firsts[0]);
}

// ---------------------------------------------------------------- blends

class BlendedData : public Data {
 protected:
  // Sets of 10 samples of 4 tokens; set i holds i·100 … i·100 + 40.
  DataConfig blend(const std::vector<std::string>& weights) const {
    DataConfig data;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      std::vector<std::uint16_t> ids(41);
      std::iota(ids.begin(), ids.end(), static_cast<std::uint16_t>(100 * i));
      data.paths.push_back(weights[i]);
      data.paths.push_back(folder_.write("set" + std::to_string(i) + ".bin", bytes_of(ids)));
    }
    return data;
  }
};

TEST_F(BlendedData, TheSetFurthestBehindGivesTheNextSample) {
  const SampleSource source(blend({"0.75", "0.25"}), 4, 1000, 0);
  EXPECT_EQ(source.sets(), 2U);
  EXPECT_EQ(source.training_samples(), 20);
  // The one furthest behind: deficits 0.75 n - a and 0.25 n - b by hand, the first of equals.
  const std::vector<std::size_t> wanted = {0, 0, 1, 0, 0, 0, 1, 0, 0, 0};
  std::vector<std::size_t> sets;
  for (std::int64_t n = 0; n < 10; ++n) sets.push_back(source.set_of(n));
  EXPECT_EQ(sets, wanted);
  EXPECT_EQ(training(source, 0).inputs, (Ids{0, 1, 2, 3}));
  EXPECT_EQ(training(source, 1).inputs, (Ids{4, 5, 6, 7}));
  EXPECT_EQ(training(source, 2).inputs, (Ids{100, 101, 102, 103}));
  EXPECT_EQ(training(source, 6).inputs, (Ids{104, 105, 106, 107}));
}

TEST_F(BlendedData, CountsAreWithinOneOfTheWeightsAndSetsStartOver) {
  for (const auto& [a, b] : {std::pair{"0.001", "0.999"}, {"1", "3"}, {"2.5", "2.5"}, {"1e-9", "1"}}) {
    const SampleSource source(blend({a, b}), 4, 1000, 0);
    const double share = std::stod(b) / (std::stod(a) + std::stod(b));
    std::int64_t second = 0;
    for (std::int64_t n = 0; n < 10'000; ++n) {  // far beyond both sets' ends, and over the blocks' edges
      if (source.set_of(n) == 1) {
        EXPECT_EQ(source.stream_sample(n), second % 10);
        ++second;
      }
      ASSERT_LE(std::abs(static_cast<double>(second) - share * static_cast<double>(n + 1)), 1.0 + 1e-9)
          << a << ' ' << n;
    }
  }
}

// The rule leaves a set of many behind by more than one sample where weights are as unequal as these.
TEST_F(BlendedData, CountsOfManySetsAreNear) {
  for (const auto& [weights, most] : std::vector<std::pair<std::vector<std::string>, double>>{
           {{"412", "5", "5", "6", "6", "3", "1", "5", "41", "855", "7", "41"}, 1.25},
           {{"7", "1", "1"}, 1},
           {{"2", "3", "5", "90"}, 1}}) {
    const SampleSource source(blend(weights), 4, 1'000'000, 0);
    double sum = 0;
    for (const std::string& weight : weights) sum += std::stod(weight);
    std::vector<double> given(weights.size());
    for (std::int64_t n = 0; n < 5'000; ++n) {
      ++given[source.set_of(n)];
      for (std::size_t set = 0; set < weights.size(); ++set) {
        ASSERT_LT(std::abs(given[set] - std::stod(weights[set]) / sum * static_cast<double>(n + 1)), most)
            << "set " << set << " after " << n + 1;
      }
    }
  }
}

TEST_F(BlendedData, EachSetHasItsOwnOrderAndValidation) {
  DataConfig data = blend({"1", "1"});
  data.order = DataOrder::shuffled;
  data.validation_fraction = 0.2;
  const SampleSource source(data, 4, 1000, 5);
  EXPECT_EQ(source.training_samples(), 16);
  EXPECT_EQ(source.validation_samples(), 4);
  EXPECT_EQ(validation(source, 1).inputs, (Ids{36, 37, 38, 39}));
  EXPECT_EQ(validation(source, 2).inputs, (Ids{132, 133, 134, 135}));
  std::vector<std::vector<std::int64_t>> orders(2);
  for (std::int64_t n = 0; n < 16; ++n) orders[source.set_of(n)].push_back(source.stream_sample(n));
  EXPECT_NE(orders[0], orders[1]);
  for (auto& order : orders) {
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
}

TEST_F(BlendedData, FaultsOfWeightsAndSetsTogether) {
  DataConfig data = blend({"0.5", "-1", "x"});
  data.paths[5] = folder_ / "none";
  data.paths.push_back("3");
  const std::string message = refusal([&] { SampleSource(data, 4, 1000, 0); });
  expect_mentions(message, {"the weight 3 has no path", "-1", "must be a number above 0", "--data x", "none"});
  DataConfig masked = blend({"1", "1"});
  masked.mask_file = folder_.write("mask", std::string(41, '\1'));
  expect_mentions(refusal([&] { SampleSource(masked, 4, 1000, 0); }), {"--mask-file", "blend"});
  // A file whose name is a number is no weight.
  DataConfig file;
  file.paths = {folder_.write("7", "text of a file"), folder_.write("b.txt", "more")};
  EXPECT_EQ(SampleSource(file, 4, 1000, 0).sets(), 1U);
}

// Three epochs of 2^31 tokens: no count of tokens or samples is kept in 32 bits.
TEST_F(Data, EpochsBeyondTwoGigatokens) {
  DataConfig data;
  data.paths = {folder_.write("large.bin", "")};
  data.format = DataFormat::text;
  std::filesystem::resize_file(data.paths[0], (std::uintmax_t{1} << 31) + 1);  // sparse
  const std::int64_t length = 1 << 20;
  const SampleSource source(data, length, 256, 0);
  const std::int64_t samples = (std::int64_t{1} << 31) / length;
  EXPECT_EQ(source.training_samples(), samples);
  EXPECT_EQ(source.stream_sample(3 * samples - 1), samples - 1);
  EXPECT_EQ(source.stream_sample(3 * samples), 0);
  EXPECT_EQ(training(source, 3 * samples - 1).targets.back(), 0);
}

}  // namespace
}  // namespace cuboid
