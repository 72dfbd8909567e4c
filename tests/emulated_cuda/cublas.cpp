#include <cstring>
#include <vector>

#include <cublasLt.h>
#include <emulated_cuda.h>

#include "cuboid/core/dtype.h"

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque {
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasOperation_t transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct cublasLtMatrixLayoutOpaque {
  cudaDataType_t type;
  std::int64_t rows, columns, stride;
  std::int32_t batch = 1;
  std::int64_t distance = 0;
};
struct cublasLtMatmulPreferenceOpaque {
  std::uint32_t alignment[4] = {256, 256, 256, 256};
};

namespace {

using cuboid::BFloat16;
using Layout = cublasLtMatrixLayoutOpaque;

template <typename T>
void put(T& to, const void* value, std::size_t bytes) {
  if (bytes == sizeof(T)) std::memcpy(&to, value, bytes);
}

float number(const void* base, cudaDataType_t type, std::int64_t i) {
  return type == CUDA_R_32F ? static_cast<const float*>(base)[i]
                            : static_cast<float>(static_cast<const BFloat16*>(base)[i]);
}

// Rows of op(stored), of which `rows` and `columns` are given, as floats. Stored columns first.
std::vector<float> read(const void* base, const Layout& layout, std::int64_t offset, bool transposed, std::int64_t rows,
                        std::int64_t columns) {
  std::vector<float> made(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::int64_t at = transposed ? i * layout.stride + j : j * layout.stride + i;
      made[static_cast<std::size_t>(i * columns + j)] = number(base, layout.type, offset + at);
    }
  }
  return made;
}

struct Product {
  cublasLtMatmulDescOpaque desc;
  Layout a, b, d;
  const void* a_data;
  const void* b_data;
  void* d_data;
  float alpha, beta;
};

// d (m,n) = alpha·op(a)·op(b) + beta·d [+ bias (m)], columns first.
void multiply(const Product& p, std::int64_t batch) {
  const std::int64_t m = p.d.rows;
  const std::int64_t n = p.d.columns;
  const bool ta = p.desc.transpose_a == CUBLAS_OP_T;
  const bool tb = p.desc.transpose_b == CUBLAS_OP_T;
  const std::int64_t k = ta ? p.a.rows : p.a.columns;
  const auto a = read(p.a_data, p.a, batch * p.a.distance, !ta, k, m);  // (k,m): aᵀ
  const auto b = read(p.b_data, p.b, batch * p.b.distance, !tb, n, k);  // (n,k): bᵀ
  std::vector<float> column(static_cast<std::size_t>(m));
  for (std::int64_t j = 0; j < n; ++j) {
    std::fill(column.begin(), column.end(), 0.0F);
    for (std::int64_t i = 0; i < k; ++i) {
      const float factor = b[static_cast<std::size_t>(j * k + i)];
      const float* const row = a.data() + i * m;
      for (std::int64_t r = 0; r < m; ++r) column[static_cast<std::size_t>(r)] += factor * row[r];
    }
    for (std::int64_t r = 0; r < m; ++r) {
      const std::int64_t at = batch * p.d.distance + j * p.d.stride + r;
      float value = p.alpha * column[static_cast<std::size_t>(r)];
      if (p.beta != 0) value += p.beta * number(p.d_data, p.d.type, at);
      if (p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS) value += number(p.desc.bias, p.d.type, r);
      if (p.d.type == CUDA_R_32F) {
        static_cast<float*>(p.d_data)[at] = value;
      } else {
        static_cast<BFloat16*>(p.d_data)[at] = BFloat16(value);
      }
    }
  }
}

bool sizes_match(const cublasLtMatmulDescOpaque& desc, const Layout& a, const Layout& b, const Layout& d) {
  const bool ta = desc.transpose_a == CUBLAS_OP_T;
  const bool tb = desc.transpose_b == CUBLAS_OP_T;
  return (ta ? a.columns : a.rows) == d.rows && (tb ? b.rows : b.columns) == d.columns &&
         (ta ? a.rows : a.columns) == (tb ? b.columns : b.rows) && a.type == b.type && a.batch == d.batch &&
         b.batch == d.batch && a.stride >= a.rows && b.stride >= b.rows && d.stride >= d.rows;
}

}  // namespace

const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                 : "CUBLAS_STATUS_NOT_SUPPORTED";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t, cudaDataType_t) {
  *desc = new cublasLtMatmulDescOpaque;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      put(desc->transpose_a, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      put(desc->transpose_b, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      put(desc->epilogue, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      put(desc->bias, value, bytes);
      break;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t stride) {
  *layout =
      new Layout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), stride, 1, std::int64_t{0}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) {
    put(layout->batch, value, bytes);
  } else {
    put(layout->distance, value, bytes);
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  if (attribute != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    put(preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
  }
  return CUBLAS_STATUS_SUCCESS;
}
// The algorithm holds what was promised of the pointers, so that the product can check it.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = 0;
  if (!sizes_match(*desc, *a, *b, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  *found = 1;
  results->algo = {};
  for (int i = 0; i < 4; ++i) results->algo.data[i] = preference->alignment[i];
  results->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void*,
                              std::size_t, cudaStream_t stream) {
  const void* const pointers[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<std::uintptr_t>(pointers[i]) % algorithm->data[i] != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (c != d || !sizes_match(*desc, *a_layout, *b_layout, *d_layout)) return CUBLAS_STATUS_INVALID_VALUE;
  Product product{*desc,
                  *a_layout,
                  *b_layout,
                  *d_layout,
                  emulated_cuda::for_workers(a),
                  emulated_cuda::for_workers(b),
                  emulated_cuda::for_workers(d),
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta)};
  product.desc.bias = emulated_cuda::for_workers(product.desc.bias);
  emulated_cuda::enqueue(stream, [product] {
    for (std::int64_t batch = 0; batch < product.d.batch; ++batch) multiply(product, batch);
  });
  return CUBLAS_STATUS_SUCCESS;
}
