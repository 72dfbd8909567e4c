#include "gemm.h"

#include <bit>
#include <compare>
#include <map>
#include <memory>
#include <string>

#include <cublasLt.h>

#include "runtime/cuda/gpu.h"

namespace cuboid::kernels::cuda {
namespace {

using cuboid::cuda::Gpu;
using cuboid::cuda::gpu_of;

/// What cuBLASLt recommends for sm_90; smaller ones rule out split-k algorithms.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
/// Algorithms remembered at once.
constexpr std::size_t kMostPlans = 4096;

void check_blas(cublasStatus_t status, const char* expression, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorKind::failed, what + ": " + expression + " reports " + cublasLtGetStatusName(status));
}

/// Everything by which an algorithm is chosen.
struct Key {
  std::int64_t m, n, k, batch;
  std::int64_t a_stride, b_stride, c_stride;
  std::int64_t a_distance, b_distance, c_distance;
  DType in, out;
  bool a_transposed, b_transposed, bias;
  std::uint32_t a_alignment, b_alignment, c_alignment;  // bytes, a power of two
  friend auto operator<=>(const Key&, const Key&) = default;
};

std::uint32_t alignment_of(const void* pointer) {
  constexpr std::uintptr_t kMost = 256;
  return static_cast<std::uint32_t>(std::uintptr_t{1}
                                    << std::countr_zero(reinterpret_cast<std::uintptr_t>(pointer) | kMost));
}

std::string describe(const Key& key) {
  return "matrix product (" + std::to_string(key.m) + "," + std::to_string(key.k) + ")·(" + std::to_string(key.k) +
         "," + std::to_string(key.n) + ") of " + name_of(key.in) + " to " + name_of(key.out) + ", " +
         std::to_string(key.batch) + " at a time";
}

cudaDataType_t type_of(DType dtype) {
  CUBOID_CHECK(dtype == DType::float32 || dtype == DType::bfloat16,
               std::string("no CUDA product of ") + name_of(dtype));
  return dtype == DType::float32 ? CUDA_R_32F : CUDA_R_16BF;
}

struct DestroyDescription {
  void operator()(cublasLtMatmulDesc_t d) const { cublasLtMatmulDescDestroy(d); }
};
struct DestroyLayout {
  void operator()(cublasLtMatrixLayout_t l) const { cublasLtMatrixLayoutDestroy(l); }
};
struct DestroyPreference {
  void operator()(cublasLtMatmulPreference_t p) const { cublasLtMatmulPreferenceDestroy(p); }
};
template <typename Handle, typename Destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;
using Description = Owned<cublasLtMatmulDesc_t, DestroyDescription>;
using Layout = Owned<cublasLtMatrixLayout_t, DestroyLayout>;
using Preference = Owned<cublasLtMatmulPreference_t, DestroyPreference>;

#define CUBOID_BLAS(expression) check_blas((expression), #expression, what)

Layout make_layout(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int64_t batch,
                   std::int64_t distance, const std::string& what) {
  cublasLtMatrixLayout_t made = nullptr;
  CUBOID_BLAS(cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<std::uint64_t>(rows),
                                         static_cast<std::uint64_t>(columns), stride));
  Layout layout(made);
  if (batch > 1) {
    const auto count = static_cast<std::int32_t>(batch);
    CUBOID_BLAS(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    CUBOID_BLAS(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &distance,
                                                 sizeof(distance)));
  }
  return layout;
}

/// A product's descriptors and the algorithm chosen for it. cuBLASLt counts columns first: what it is asked for is
/// cᵀ = bᵀ·aᵀ, whose operands lie in memory just as c, b and a do.
struct Plan {
  Description description;
  Layout a, b, c;
  cublasLtMatmulAlgo_t algorithm{};
};

// A rank's handle, workspace and chosen algorithms. Lives in the rank's Gpu.
class Blas {
 public:
  explicit Blas(Gpu& gpu) : gpu_(gpu) {
    const std::string what = "cuBLASLt";
    CUBOID_BLAS(cublasLtCreate(&handle_));
    workspace_ = gpu.allocate(kWorkspaceBytes);
  }
  ~Blas() {
    gpu_.release(workspace_, kWorkspaceBytes);
    cublasLtDestroy(handle_);
  }
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  void multiply(const Key& key, const MatrixBatch& a, const MatrixBatch& b, const MatrixBatch& c,
                const GemmOptions& options) {
    const std::string what = describe(key);
    // Rows of an expert are hardly ever as many as before: what is kept of them must not grow with the run.
    if (plans_.size() >= kMostPlans && !plans_.contains(key)) plans_.clear();
    const auto [found, fresh] = plans_.try_emplace(key);
    if (fresh) choose(key, found->second, what);
    const Plan& plan = found->second;
    if (options.bias != nullptr) {
      CUBOID_BLAS(cublasLtMatmulDescSetAttribute(plan.description.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                 &options.bias, sizeof(options.bias)));
    }
    const float one = 1.0F;
    const float keep = options.accumulate ? 1.0F : 0.0F;
    CUBOID_BLAS(cublasLtMatmul(handle_, plan.description.get(), &one, b.data, plan.b.get(), a.data, plan.a.get(), &keep,
                               c.data, plan.c.get(), c.data, plan.c.get(), &plan.algorithm, workspace_, kWorkspaceBytes,
                               gpu_.compute().get()));
  }

 private:
  void choose(const Key& key, Plan& plan, const std::string& what) {
    cublasLtMatmulDesc_t description = nullptr;
    CUBOID_BLAS(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    plan.description.reset(description);
    const cublasOperation_t of_b = key.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t of_a = key.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBOID_BLAS(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof(of_b)));
    CUBOID_BLAS(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSB, &of_a, sizeof(of_a)));
    if (key.bias) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      CUBOID_BLAS(
          cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    }
    const bool at = key.a_transposed;
    const bool bt = key.b_transposed;
    plan.b = make_layout(key.in, bt ? key.k : key.n, bt ? key.n : key.k, key.b_stride, key.batch, key.b_distance, what);
    plan.a = make_layout(key.in, at ? key.m : key.k, at ? key.k : key.m, key.a_stride, key.batch, key.a_distance, what);
    plan.c = make_layout(key.out, key.n, key.m, key.c_stride, key.batch, key.c_distance, what);

    cublasLtMatmulPreference_t made = nullptr;
    CUBOID_BLAS(cublasLtMatmulPreferenceCreate(&made));
    const Preference preference(made);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      CUBOID_BLAS(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspaceBytes});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment);
    cublasLtMatmulHeuristicResult_t result{};
    int results = 0;
    CUBOID_BLAS(cublasLtMatmulAlgoGetHeuristic(handle_, description, plan.b.get(), plan.a.get(), plan.c.get(),
                                               plan.c.get(), made, 1, &result, &results));
    if (results == 0) throw Error(ErrorKind::failed, what + ": cuBLASLt knows no algorithm for it");
    plan.algorithm = result.algo;
  }

  Gpu& gpu_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace

void gemm(const Device& device, std::int64_t m, std::int64_t n, std::int64_t k, MatrixBatch a, MatrixBatch b,
          MatrixBatch c, GemmOptions options) {
  Gpu& gpu = gpu_of(device);
  const Key key{m,
                n,
                k,
                options.batch,
                a.stride,
                b.stride,
                c.stride,
                options.batch > 1 ? a.distance : 0,
                options.batch > 1 ? b.distance : 0,
                options.batch > 1 ? c.distance : 0,
                a.dtype,
                c.dtype,
                a.transposed,
                b.transposed,
                options.bias != nullptr,
                alignment_of(a.data),
                alignment_of(b.data),
                alignment_of(c.data)};
  gpu.state_of_kernels<Blas>().multiply(key, a, b, c, options);
}

}  // namespace cuboid::kernels::cuda
