#include <algorithm>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <omp.h>

#include "cuboid/core/log.h"
#include "cuboid/core/median.h"
#include "cuboid/core/text.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/durable.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/plan/trace.h"
#include "cuboid/train/check.h"
#include "cuboid/train/measure.h"

#include "launch/bench.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUsage = "cuboid bench gemm [--shapes M,N,K...] [--model M] [flags]";
constexpr const char* kSummary =
    "Rates of matrix products (M,K)·(K,N) by shape: squares, shapes given, or those of a model's micro-batch.";

constexpr std::int64_t kMostRows = 1 << 20;

struct Shape3 {
  std::int64_t m = 0, n = 0, k = 0;
  auto operator<=>(const Shape3&) const = default;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

struct Request {
  std::vector<Shape3> shapes;
  std::string model;
  int tp = 1;
  std::int64_t micro_batch = 1;
  std::int64_t seq_len = 512;
  DType dtype = DType::float32;
  int threads = 1;
  DeviceChoice device = DeviceChoice::automatic;
  double seconds = 0.2;
  std::string save;
  bool json = false;
};

void add_flags(Flags& flags, Request& request) {
  flags.section("Products");
  flags.add(
      "shapes", "M,N,K...", "squares of 128 to 1024", "rows, columns and inner dimension",
      [&request](const Flags::Values& v) {
        for (const auto& word : v) {
          Shape3 shape;
          std::istringstream parts(word);
          try {
            for (std::int64_t* dim : {&shape.m, &shape.n, &shape.k}) {
              std::string part;
              std::getline(parts, part, ',');
              *dim = Flags::parse_whole(part, 1, kMostRows);
            }
          } catch (const Error&) {
            parts.clear();
          }
          if (!parts.eof()) {
            throw Error(ErrorKind::request,
                        fmt::format("'{}' is not M,N,K, three whole numbers from 1 to {}", word, kMostRows));
          }
          request.shapes.push_back(shape);
        }
      },
      true);
  flags.text("model", "M", request.model, "shapes of this model's products, from its trace");
  flags.whole("tp", request.tp, "tensor parallel degree that cuts the model's matrices", 1);
  flags.whole("micro-batch", request.micro_batch, "sequences of the model's micro-batch", 1, kMostRows);
  flags.whole("seq-len", request.seq_len, "tokens of a sequence", 1, kMostRows);
  flags.choice<DType>("dtype", request.dtype, {{"float32", DType::float32}, {"bfloat16", DType::bfloat16}},
                      "of the operands");
  flags.whole("threads-per-rank", request.threads, "threads of a product", 1, 1024);
  add_device_flag(flags, request.device);
  flags.real("seconds", request.seconds, "of each shape", "SECONDS");
  flags.section("Output");
  flags.text(
      "save", "FILE.toml", request.save,
      "cluster file: the fastest rate becomes the device's peak for the type (a GPU's remains the rated one), the "
      "largest product's share of it matmul-efficiency");
  flags.toggle("json", request.json, "one JSON document");
}

struct Rate {
  Shape3 shape;
  double seconds = 0;
  double flops_per_second() const { return shape.flops() / seconds; }
};

// Whether the model can be cut and computed so.
void check_model(const Request& request, Problems& problems) {
  if (request.model.empty()) return;
  collect(problems, [&] {
    RunConfig run;
    AxisValues degrees{{1, 1, 1, 1, 1}};
    degrees[Axis::tp] = request.tp;
    run.grid = Grid(degrees, Grid::kDefaultOrder);
    run.micro_batch = run.global_batch = static_cast<int>(request.micro_batch);
    run.seq_len = static_cast<int>(request.seq_len);
    check_layout(load_model(request.model), run, problems);
  });
}

std::vector<Shape3> shapes_of(const Request& request) {
  std::vector<Shape3> shapes = request.shapes;
  if (!request.model.empty()) {
    TraceOptions options;
    options.tp = request.tp;
    options.micro_batch = request.micro_batch;
    options.seq_len = request.seq_len;
    options.dtype = request.dtype;
    const ModelTrace trace = trace_model(load_model(request.model), options);
    std::vector<const TracedBlock*> blocks = {&trace.embedding, &trace.head};
    for (const TracedBlock& layer : trace.layers) blocks.push_back(&layer);
    for (const TracedBlock* block : blocks) {
      for (const TracedPass* pass : {&block->forward, &block->backward}) {
        for (const TracedEvent& event : pass->events) {
          const auto* kernel = std::get_if<TracedKernel>(&event);
          if (kernel != nullptr && kernel->kind == TracedKernel::Kind::matmul)
            shapes.push_back({kernel->m, kernel->n, kernel->k});
        }
      }
    }
  }
  if (shapes.empty()) {
    for (std::int64_t n : {128, 256, 512, 1024}) shapes.push_back({n, n, n});
  }
  std::sort(shapes.begin(), shapes.end(),
            [](const Shape3& a, const Shape3& b) { return std::pair(a.flops(), a) < std::pair(b.flops(), b); });
  shapes.erase(std::unique(shapes.begin(), shapes.end()), shapes.end());
  return shapes;
}

Rate measured(const Device& device, const Shape3& shape, const Request& request) {
  const TimedProduct product(device, request.dtype, shape.m, shape.n, shape.k);
  const int in_a_row = product.enough();
  std::vector<double> times;
  for (double sum = 0; sum < request.seconds || times.size() < 3; sum += times.back() * in_a_row) {
    times.push_back(product.seconds(in_a_row));
  }
  return {shape, median(times)};
}

// On the CPU what was measured is all that is known of its peak; a GPU's is rated.
void save(const Request& request, const std::vector<int>& gpus, const std::vector<Rate>& rates) {
  Cluster cluster = cluster_to_complete(request.save, gpus);
  double& peak = request.dtype == DType::bfloat16 ? cluster.device.bfloat16_flops : cluster.device.float32_flops;
  if (gpus.empty()) {
    peak = 0;
    for (const Rate& rate : rates) peak = std::max(peak, rate.flops_per_second());
  }
  cluster.stack.matmul_efficiency = rates.back().flops_per_second() / peak;
  write_durably(request.save, write_cluster_file(cluster));
  log::info("wrote " + request.save);
}

}  // namespace

int bench_gemm(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  Request request;
  add_flags(flags, request);
  Problems problems;
  if (!flags.read(arguments, problems)) return 0;
  problems.add_if(!(request.seconds > 0), fmt::format("--seconds {}: must be over 0", request.seconds));
  for (const char* name : {"tp", "micro-batch", "seq-len"}) {
    problems.add_if(request.model.empty() && flags.value_of(name).has_value(),
                    fmt::format("--{}: says nothing without --model", name));
  }
  check_threads(request.device, request.threads, problems);
  check_new_file("--save", request.save, problems);
  check_model(request, problems);
  problems.throw_if_any();
  const std::vector<int> gpus = choose_gpus(request.device, 1, nullptr, 1);
  const Device device = gpus.empty() ? Device() : Device::cuda(gpus.front());
  omp_set_num_threads(request.threads);
  std::vector<Rate> rates;
  for (const Shape3& shape : shapes_of(request)) rates.push_back(measured(device, shape, request));
  if (!request.save.empty()) save(request, gpus, rates);
  if (request.json) {
    Json rows = Json::array();
    for (const Rate& r : rates) {
      rows.push_back({{"m", r.shape.m},
                      {"n", r.shape.n},
                      {"k", r.shape.k},
                      {"seconds", r.seconds},
                      {"flops_per_second", r.flops_per_second()}});
    }
    fmt::print("{}\n", Json{{"dtype", name_of(request.dtype)},
                            {"device", name_of(device.kind())},
                            {"threads", request.threads},
                            {"results", rows}}
                           .dump(2));
    return 0;
  }
  const std::string where = gpus.empty() ? counted(request.threads, "thread")
                                         : find_gpus().gpus.at(static_cast<std::size_t>(gpus.front())).name;
  fmt::print("{}, {}\n{:>8} {:>8} {:>8} {:>10} {:>10}\n", name_of(request.dtype), where, "m", "n", "k", "time",
             "GFLOP/s");
  for (const Rate& r : rates) {
    fmt::print("{:>8} {:>8} {:>8} {:>10} {:>10.1f}\n", r.shape.m, r.shape.n, r.shape.k, human_seconds(r.seconds),
               r.flops_per_second() * 1e-9);
  }
  return 0;
}

}  // namespace cuboid::launch
