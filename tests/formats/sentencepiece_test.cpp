// Tokenizing with a SentencePiece model that the test trains.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "cuboid/formats/tokenizer.h"

#include "files.h"

namespace cuboid {
namespace {

TEST(Tokenizer, SentencePieceModels) {
  const test::TemporaryFolder folder;
  const std::string model = folder / "tiny";
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      fmt::format("--input={} --model_prefix={} --vocab_size=220 --hard_vocab_limit=false --minloglevel=2",
                  test::oracle_path("README.md"), model));
  ASSERT_TRUE(status.ok()) << status.ToString();
  const auto tokenizer = make_sentencepiece_tokenizer(model + ".model");
  sentencepiece::SentencePieceProcessor reference;
  ASSERT_TRUE(reference.Load(model + ".model").ok());
  EXPECT_EQ(tokenizer->vocab(), reference.GetPieceSize());
  EXPECT_EQ(tokenizer->end_of_document(), reference.eos_id());
  const std::vector<std::int32_t> ids = tokenizer->encode("the weights of a model");
  EXPECT_GT(ids.size(), 4U);
  EXPECT_LT(ids.size(), 22U);  // pieces, not letters
  std::string text;
  ASSERT_TRUE(reference.Decode(ids, &text).ok());
  EXPECT_EQ(text, "the weights of a model");
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{ids[0], 1 << 20}).substr(0, 1), text.substr(0, 1));
}

}  // namespace
}  // namespace cuboid
