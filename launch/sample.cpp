// cuboid sample: what a trained model writes after a prompt.
#include <chrono>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/log.h"
#include "cuboid/formats/checkpoint.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/formats/tokenizer.h"
#include "cuboid/train/checkpointing.h"
#include "cuboid/train/generate.h"
#include "cuboid/train/weights.h"

#include "launch/commands.h"
#include "launch/flags.h"

namespace cuboid::launch {
namespace {

constexpr const char* kUsage = "cuboid sample --from DIR --prompt TEXT [--tokens N] [flags]";
constexpr const char* kSummary =
    "Lets a trained model go on from a text, on the ranks of one process. The tokens do not depend on the grid.";
constexpr const char* kBytes = "bytes";
constexpr const char* kTokenizerFile = "tokenizer.model";

struct Asked {
  std::string from;
  std::string prompt;
  std::string tokenizer;
  int tp = 1;
  int pp = 1;
  bool json = false;
  GenerateRequest request;
};

void add_flags(Flags& flags, Asked& asked) {
  flags.section("Text");
  flags.text("from", "DIR", asked.from, "a run's folder, a checkpoint, or a Hugging Face folder");
  flags.text("prompt", "TEXT", asked.prompt, "what the text begins with");
  flags.text("tokenizer", "bytes|MODEL", asked.tokenizer,
             "bytes, or a SentencePiece model; without it tokenizer.model in the folder, or bytes where the model "
             "knows 256 tokens");
  flags.whole("tokens", asked.request.tokens, "tokens to make, unless the model ends the text before", 1);
  flags.section("Choice of a token");
  flags.real("temperature", asked.request.choice.temperature,
             "above 0: drawn at random, the more evenly the higher; 0: the likeliest");
  flags.real("top-p", asked.request.choice.top_p, "drawn from the likeliest that together have this probability", "P");
  flags.whole("seed", asked.request.choice.seed, "of the draws", 0);
  flags.section("Machine");
  flags.whole("tp", asked.tp, "tensor parallel degree", 1);
  flags.whole("pp", asked.pp, "pipeline parallel degree", 1);
  flags.choice<DType>("dtype", asked.request.dtype, {{"float32", DType::float32}, {"bfloat16", DType::bfloat16}},
                      "type that is computed with");
  flags.whole("threads-per-rank", asked.request.threads_per_rank, "threads of a rank's matrix products", 1, 1024);
  flags.real("deadline", asked.request.deadline, "longest wait for another rank, in seconds", "SECONDS");
  flags.toggle("json", asked.json, "print one JSON document");
}

/// Trained weights: a checkpoint, or a Hugging Face folder.
struct Source {
  ModelConfig model;
  std::optional<Checkpoint> checkpoint;
  std::optional<WeightFolder> folder;

  void load(ParameterStore& store) const {
    if (checkpoint) return load_checkpoint_weights(*checkpoint, store);
    load_weights(*folder, model, store);
  }
};

Source open_source(const std::string& from) {
  Source source;
  Problems problems;
  if (Checkpoint::find(from)) {
    source.checkpoint = Checkpoint::open(from);
    source.model = source.checkpoint->model();
    check_checkpoint(*source.checkpoint, source.model, problems);
  } else {
    if (std::error_code fault; !std::filesystem::exists(std::filesystem::path(from) / "config.json", fault)) {
      throw Error(ErrorKind::request,
                  fmt::format("--from {}: holds neither a checkpoint nor a config.json with weights", from));
    }
    source.model = load_model(from);
    source.folder = WeightFolder::open(from);
    check_weights(*source.folder, source.model, problems);
  }
  problems.throw_if_any();
  return source;
}

std::unique_ptr<Tokenizer> open_tokenizer(const Asked& asked, const ModelConfig& model) {
  const std::filesystem::path beside = std::filesystem::path(asked.from) / kTokenizerFile;
  std::unique_ptr<Tokenizer> tokenizer;
  std::string name = asked.tokenizer;
  if (std::error_code fault; name.empty() && std::filesystem::exists(beside, fault)) name = beside.string();
  if (name.empty() && model.vocab == make_byte_tokenizer()->vocab()) name = kBytes;
  if (name.empty()) {
    throw Error(ErrorKind::request,
                fmt::format("--tokenizer: the model knows {} tokens, which are no bytes, and {} holds no {}; name the "
                            "SentencePiece model that made them, or bytes if its text was trained on as bytes",
                            model.vocab, asked.from, kTokenizerFile));
  }
  tokenizer = name == kBytes ? make_byte_tokenizer() : make_sentencepiece_tokenizer(name);
  if (tokenizer->vocab() > model.vocab) {
    throw Error(ErrorKind::request, fmt::format("--tokenizer {}: has {} tokens, the model knows {}", name,
                                                tokenizer->vocab(), model.vocab));
  }
  return tokenizer;
}

}  // namespace

int sample_command(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  Asked asked;
  add_flags(flags, asked);
  Problems problems;
  if (!flags.read(arguments, problems)) return 0;
  problems.add_if(asked.from.empty(), "--from: give a run's folder, a checkpoint or a Hugging Face folder");
  problems.add_if(!flags.value_of("prompt"), "--prompt: give the text to go on from");
  std::optional<Source> opened;
  std::unique_ptr<Tokenizer> tokenizer;
  if (!asked.from.empty()) {
    collect(problems, [&] {
      opened = open_source(asked.from);
      tokenizer = open_tokenizer(asked, opened->model);
    });
  }
  if (tokenizer == nullptr) problems.throw_if_any();
  const Source& source = *opened;
  GenerateRequest& request = asked.request;
  AxisValues degrees;
  degrees.values.fill(1);
  degrees[Axis::tp] = asked.tp;
  degrees[Axis::pp] = asked.pp;
  request.grid = Grid(degrees, Grid::kDefaultOrder);
  request.prompt = tokenizer->encode(asked.prompt);
  request.end = tokenizer->end_of_document();
  check_generate(source.model, request, problems);
  problems.throw_if_any();

  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::int32_t> made = generate(source.model, request, [&](ParameterStore& store) { source.load(store); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (asked.json) {
    const nlohmann::ordered_json json = {
        {"prompt", asked.prompt},
        {"text", tokenizer->decode(made)},
        {"prompt_tokens", request.prompt},
        {"tokens", made},
        {"seconds", seconds},
    };
    // Bytes need not be UTF-8: what is not is replaced.
    fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return 0;
  }
  std::vector<std::int32_t> all = request.prompt;
  all.insert(all.end(), made.begin(), made.end());
  fmt::print("{}\n", tokenizer->decode(all));
  log::info(fmt::format("{} tokens in {:.1f} s", made.size(), seconds));
  return 0;
}

}  // namespace cuboid::launch
