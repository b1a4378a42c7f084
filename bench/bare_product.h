// One product of oneDNN with packed weights, without the code of MatmulKernel: what the worker's
// kernel is measured against.
#ifndef SHARDMESH_BENCH_BARE_PRODUCT_H_
#define SHARDMESH_BENCH_BARE_PRODUCT_H_

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "tensor/dtype.h"
#include "tensor/random.h"
#include "worker/kernel/dnnl_matmul.h"

namespace shardmesh::bench {

// A product of [rows, in] with a weight [out, in].
struct ProductCase {
  int64_t rows, in, out;
  Dtype dtype;
};

inline std::vector<char> RandomValues(Dtype dtype, int64_t count, uint64_t seed) {
  std::vector<char> values(static_cast<size_t>(count * BitsPerElement(dtype) / 8));
  if (!FillNormal(dtype, seed, 0.1, 0, absl::MakeSpan(values)).ok()) std::abort();
  return values;
}

// Multiplies by one primitive. F32 or BF16. The buffers outlive the object.
class BareProduct {
 public:
  BareProduct(const ProductCase& c, std::vector<char>& lhs, std::vector<char>& weights,
              std::vector<char>& out)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const auto type =
        c.dtype == Dtype::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
    const dnnl::memory::desc lhs_desc({c.rows, c.in}, type, dnnl::memory::format_tag::ab);
    const dnnl::memory::desc out_desc({c.rows, c.out}, type, dnnl::memory::format_tag::ab);
    const dnnl::memory::desc any({c.in, c.out}, type, dnnl::memory::format_tag::any);
    const dnnl::matmul::primitive_desc description =
        worker::DescribeMatmul(engine_, lhs_desc, any, std::nullopt, out_desc, {});
    product_ = dnnl::matmul(description);
    dnnl::memory plain({{c.in, c.out}, type, dnnl::memory::format_tag::ba}, engine_,
                       weights.data());
    dnnl::memory packed(description.weights_desc(), engine_);
    dnnl::reorder(plain, packed).execute(stream_, plain, packed);
    stream_.wait();
    arguments_ = {{DNNL_ARG_SRC, dnnl::memory(lhs_desc, engine_, lhs.data())},
                  {DNNL_ARG_WEIGHTS, packed},
                  {DNNL_ARG_DST, dnnl::memory(out_desc, engine_, out.data())}};
  }

  void Run() {
    product_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul product_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

}  // namespace shardmesh::bench

#endif  // SHARDMESH_BENCH_BARE_PRODUCT_H_
