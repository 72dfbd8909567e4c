// cuboid data build|inspect: token files from text, and what is in token files.
#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "cuboid/core/log.h"
#include "cuboid/core/text.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/folder.h"
#include "cuboid/formats/mapped_file.h"
#include "cuboid/formats/megatron.h"
#include "cuboid/formats/tokenizer.h"
#include "cuboid/formats/tokens.h"

#include "launch/commands.h"
#include "launch/flags.h"
#include "launch/outputs.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kUsage =
    "cuboid data inspect PATH... [--vocab-size V] [--seq-len T] [--json]\n"
    "       cuboid data build PATH... --out PREFIX [--tokenizer bytes|MODEL] [--documents files|lines]";
constexpr const char* kSummary =
    "inspect: what text, token files or a Megatron data set hold; with a vocabulary, whether all ids are in it (status "
    "2\n"
    "if not). build: tokenizes text files or folders of them into a Megatron data set, PREFIX.bin and PREFIX.idx.";

constexpr const char* kBytes = "bytes";

enum class Documents { files, lines };

struct Request {
  std::vector<std::string> paths;
  DataFormat format = DataFormat::automatic;
  std::int64_t vocab = 0;
  std::int64_t seq_len = 0;
  std::string out;
  std::string tokenizer = kBytes;
  Documents documents = Documents::files;
  bool end_of_document = true;
  int threads = 0;
  bool json = false;
};

void print(const Json& document, bool json) {
  if (json) return fmt::print("{}\n", document.dump(2));
  for (const auto& [key, value] : document.items()) {
    fmt::print("{:<18}{}\n", spaced(key), value.is_string() ? value.get<std::string>() : value.dump());
  }
}

// Of inputs and targets, which are a token later.
std::int64_t samples_of(std::int64_t tokens, std::int64_t seq_len) {
  return std::max<std::int64_t>(tokens - 1, 0) / seq_len;
}

std::int64_t largest_id(const TokenStream& stream) {
  constexpr std::int64_t kStretch = 1 << 16;
  std::vector<std::int32_t> ids(kStretch);
  std::int64_t largest = 0;
  for (std::int64_t at = 0; at < stream.size(); at += kStretch) {
    const auto part = std::span(ids).first(static_cast<std::size_t>(std::min(kStretch, stream.size() - at)));
    stream.read(at, part);
    largest = std::max<std::int64_t>(largest, *std::max_element(part.begin(), part.end()));
  }
  return largest;
}

int inspect(const Request& request) {
  const TokenStream stream = TokenStream::open(request.paths, request.format);
  stream.check_tokens(request.vocab > 0 ? request.vocab : std::int64_t{1} << 31);
  Json document = {{"data", stream.description()}, {"tokens", stream.size()}, {"largest_id", largest_id(stream)}};
  if (request.paths.size() == 1 && MegatronIndex::is_pair(request.paths[0])) {
    const MegatronIndex index = MegatronIndex::open(request.paths[0]);
    document["type"] = name_of(index.type());
    document["documents"] = index.documents();
    document["sequences"] = index.sequences();
  }
  if (request.vocab > 0) document["vocab_size"] = request.vocab;
  if (request.seq_len > 0) {
    if (stream.size() < request.seq_len + 1) {
      throw Error(ErrorKind::request,
                  fmt::format("{}: a sample of --seq-len {} needs {} tokens, there are {}", stream.description(),
                              request.seq_len, request.seq_len + 1, stream.size()));
    }
    document["samples"] = samples_of(stream.size(), request.seq_len);
  }
  print(document, request.json);
  return 0;
}

/// Texts of the documents, in order, as parts of mapped files.
class Texts {
 public:
  explicit Texts(const Request& request) {
    for (const std::string& path : request.paths) add(path);
    std::vector<std::string_view> files;
    for (const auto& file : files_) {
      files.emplace_back(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
    }
    for (const std::string_view text : files) {
      if (request.documents == Documents::files) {
        if (!text.empty()) documents.push_back(text);
      } else {
        add_lines(text);
      }
    }
    for (const std::string_view document : documents) bytes += document.size();
  }
  std::vector<std::string_view> documents;
  std::size_t bytes = 0;

 private:
  void add(const std::string& path) {
    std::error_code fault;
    if (!fs::is_directory(path, fault)) return files_.push_back(MappedFile::open(path));
    for (const std::string& file : files_beneath(path)) files_.push_back(MappedFile::open(file));
  }
  void add_lines(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      if (end > 0) documents.push_back(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }
  std::vector<std::shared_ptr<const MappedFile>> files_;
};

/// Tokenizes documents on several threads, a batch at a time; results come in order.
class ParallelEncoder {
 public:
  ParallelEncoder(const Tokenizer& tokenizer, int threads) : tokenizer_(tokenizer), threads_(threads) {}

  std::vector<std::vector<std::int32_t>> encode(std::span<const std::string_view> texts) const {
    std::vector<std::vector<std::int32_t>> ids(texts.size());
    std::atomic<std::size_t> next = 0;
    std::exception_ptr fault;
    std::mutex mutex;
    const auto work = [&] {
      try {
        for (std::size_t i = next++; i < texts.size(); i = next++) ids[i] = tokenizer_.encode(texts[i]);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        fault = std::current_exception();
      }
    };
    {
      std::vector<std::jthread> workers;  // joined also where one cannot be started
      for (int t = 1; t < threads_; ++t) workers.emplace_back(work);
      work();
    }
    if (fault) std::rethrow_exception(fault);
    return ids;
  }

 private:
  const Tokenizer& tokenizer_;
  int threads_;
};

int build(const Request& request) {
  const auto tokenizer =
      request.tokenizer == kBytes ? make_byte_tokenizer() : make_sentencepiece_tokenizer(request.tokenizer);
  if (request.vocab > 0 && tokenizer->vocab() > request.vocab) {
    throw Error(ErrorKind::request, fmt::format("--vocab-size {}: the tokenizer {} makes ids up to {}", request.vocab,
                                                request.tokenizer, tokenizer->vocab() - 1));
  }
  const Texts texts(request);
  if (texts.documents.empty()) throw Error(ErrorKind::request, join(request.paths) + ": holds no text");
  const int threads =
      request.threads > 0 ? request.threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const ParallelEncoder encoder(*tokenizer, threads);
  const std::int32_t end = request.end_of_document ? tokenizer->end_of_document() : -1;
  MegatronWriter writer(request.out, tokenizer->vocab() <= 65536 ? TokenType::u16 : TokenType::i32);
  // Batches bound the memory: ids take four bytes a token.
  constexpr std::size_t kBatchBytes = std::size_t{16} << 20;
  std::size_t done = 0;
  int tenths = 0;
  for (std::size_t first = 0; first < texts.documents.size();) {
    std::size_t last = first;
    std::size_t bytes = 0;
    while (last < texts.documents.size() && (bytes == 0 || bytes + texts.documents[last].size() <= kBatchBytes)) {
      bytes += texts.documents[last++].size();
    }
    for (auto& ids : encoder.encode(std::span(texts.documents).subspan(first, last - first))) {
      if (end >= 0) ids.push_back(end);
      writer.add_document(ids);
    }
    first = last;
    done += bytes;
    if (const int tenth = static_cast<int>(10 * done / texts.bytes); tenth > tenths) {
      tenths = tenth;
      log::info(fmt::format("{} of {} tokenized", human_bytes(done), human_bytes(texts.bytes)));
    }
  }
  writer.finish();
  Json document = {{"data", request.out},
                   {"tokens", writer.tokens()},
                   {"documents", writer.documents()},
                   {"vocab_size", tokenizer->vocab()}};
  if (request.seq_len > 0) document["samples"] = samples_of(writer.tokens(), request.seq_len);
  print(document, request.json);
  return 0;
}

// Flags that the other action has are refused, not ignored.
void check_action(const std::string& action, const Flags& flags, const Request& request, Problems& problems) {
  const bool builds = action == "build";
  if (!builds && action != "inspect") {
    problems.add(action.empty() ? "data: say build or inspect" : fmt::format("data {}: say build or inspect", action));
    return;
  }
  const std::vector<const char*> of_inspect = {"data-format"};
  const std::vector<const char*> of_build = {"out", "tokenizer", "documents", "end-of-document", "threads"};
  for (const char* name : builds ? of_inspect : of_build) {
    problems.add_if(flags.value_of(name).has_value(), fmt::format("--{}: says nothing to data {}", name, action));
  }
  if (!builds) return;
  problems.add_if(request.out.empty(), "data build: needs --out PREFIX");
  if (!request.out.empty()) {
    for (const char* suffix : {".bin", ".idx"}) check_new_file("--out", request.out + suffix, problems);
  }
  problems.add_if(request.tokenizer == kBytes && flags.value_of("end-of-document") && request.end_of_document,
                  "--end-of-document: bytes have no end token; name a SentencePiece model with --tokenizer");
}

}  // namespace

int data_command(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  Request request;
  flags.choice<DataFormat>("data-format", request.format,
                           {{"auto", DataFormat::automatic},
                            {"text", DataFormat::text},
                            {"bin", DataFormat::bin},
                            {"megatron", DataFormat::megatron}},
                           "inspect: what the files hold");
  flags.whole("vocab-size", request.vocab, "refuse ids from this on; 0: any", 0);
  flags.whole("seq-len", request.seq_len, "tokens of a sample: how many samples there are; 0: not asked", 0);
  flags.text("out", "PREFIX", request.out, "build: where PREFIX.bin and PREFIX.idx are written");
  flags.text("tokenizer", "bytes|MODEL", request.tokenizer, "build: a token a byte, or a SentencePiece model");
  flags.choice<Documents>("documents", request.documents, {{"files", Documents::files}, {"lines", Documents::lines}},
                          "build: what one document is");
  flags.toggle("end-of-document", request.end_of_document,
               "build: end each document with the model's end token (on; =false: off; bytes have none)");
  flags.whole("threads", request.threads, "build: threads that tokenize; 0: one a core", 0, 1024);
  flags.toggle("json", request.json, "print one JSON document on standard output");
  const auto first_flag =
      std::find_if(arguments.begin(), arguments.end(), [](const std::string& word) { return word.starts_with("-"); });
  const std::vector<std::string> words(arguments.begin(), first_flag);
  Problems problems;
  if (!flags.read({first_flag, arguments.end()}, problems)) return 0;
  const std::string action = words.empty() ? "" : words.front();
  check_action(action, flags, request, problems);
  problems.add_if(words.size() < 2, "data: give at least one path");
  problems.throw_if_any();
  request.paths.assign(words.begin() + 1, words.end());
  return action == "build" ? build(request) : inspect(request);
}

}  // namespace cuboid::launch
