// WeightPanels: packs, multiplies, converts and unpacks panel by panel.
#include "worker/kernel/weight_panels.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "absl/base/config.h"
#include "absl/functional/function_ref.h"
#include "process/thread_pool.h"
#include "status/status_macros.h"
#include "tensor/float_convert.h"
#include "worker/kernel/activation_loops.h"
#include "worker/kernel/float_block.h"
#include "worker/kernel/weight_loops.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kGranule = kWeightColumnGranule;
constexpr auto kPanelColumns = static_cast<size_t>(WeightPanels::kColumns);
// A block of rows of a panel stays in the nearest cache while all rows of lhs are multiplied by it.
constexpr int64_t kRowsOfI8 = 256;
constexpr int64_t kRowsOfF32 = 64;

size_t Size(int64_t count) { return static_cast<size_t>(count); }

// Calls body(i) for each i in [0, count). OpenMP's threads are those of oneDNN's products, and wait
// for work for a while. ThreadSanitizer does not see how they synchronise, and the OpenMP of clang,
// which the builds for the sanitizers use, leaks a little for each thread that has called it.
void OnThreads(int64_t count, int threads, absl::FunctionRef<void(int64_t i)> body) {
#if defined(ABSL_HAVE_THREAD_SANITIZER) || defined(ABSL_HAVE_ADDRESS_SANITIZER)
  RunOnThreads(Size(count), Size(threads), [&](size_t i) { body(static_cast<int64_t>(i)); });
#else
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (count > 1)
  for (int64_t i = 0; i < count; ++i) body(i);
#endif
}

}  // namespace

WeightPanels::WeightPanels(Dtype dtype, int64_t k, int64_t n, bool is_transposed)
    : dtype_(dtype),
      element_bytes_(BitsPerElement(dtype) / 8),
      k_(k),
      n_(n),
      is_transposed_(is_transposed),
      data_(AllocateAligned(Size(size_bytes()))) {}

int64_t WeightPanels::SizeBytes(Dtype dtype, int64_t k, int64_t n) {
  return RowPitch(n) * k * (BitsPerElement(dtype) / 8);
}

int64_t WeightPanels::ColumnsOf(int64_t panel) const {
  return std::min(kColumns, n_ - panel * kColumns);
}

int64_t WeightPanels::PitchOf(int64_t panel) const {
  return (ColumnsOf(panel) + kGranule - 1) / kGranule * kGranule;
}

int64_t WeightPanels::RowPitch(int64_t n) { return (n + kGranule - 1) / kGranule * kGranule; }

const char* WeightPanels::At(int64_t row, int64_t column) const {
  const int64_t panel = column / kColumns;
  const int64_t before = panel * kColumns * k_;
  return data_.get() + (before + row * PitchOf(panel) + column - panel * kColumns) * element_bytes_;
}

absl::StatusOr<std::unique_ptr<const WeightPanels>> WeightPanels::Pack(
    Dtype dtype, int64_t k, int64_t n, bool is_transposed, absl::Span<const char> weights,
    const AbortCheck& abort_check) {
  // Some milliseconds.
  constexpr int64_t kTurnBytes = int64_t{4} << 20;
  std::unique_ptr<WeightPanels> packed(new WeightPanels(dtype, k, n, is_transposed));
  int64_t turn_bytes = 0;
  for (int64_t panel = 0; k > 0 && panel < packed->Panels(); ++panel) {
    if (abort_check && turn_bytes >= kTurnBytes) {
      SHARDMESH_RETURN_IF_ERROR(abort_check());
      turn_bytes = 0;
    }
    packed->PackPanel(panel, weights.data());
    turn_bytes += k * kColumns * packed->element_bytes_;
  }
  return packed;
}

void WeightPanels::PackPanel(int64_t panel, const char* weights) {
  const int64_t columns = ColumnsOf(panel);
  const int64_t pitch_bytes = PitchOf(panel) * element_bytes_;
  const int64_t row_bytes = columns * element_bytes_;
  const int64_t first = panel * kColumns;
  char* const to = data_.get() + first * k_ * element_bytes_;
  if (!is_transposed_) {
    for (int64_t row = 0; row < k_; ++row) {
      std::memcpy(to + row * pitch_bytes, weights + (row * n_ + first) * element_bytes_,
                  Size(row_bytes));
    }
  } else {
    // Block by block, so that the lines of memory that are written stay in the nearest cache.
    for (int64_t begin = 0; begin < k_; begin += kRowsOfF32) {
      const int64_t end = std::min(begin + kRowsOfF32, k_);
      for (int64_t column = 0; column < columns; ++column) {
        const char* const from = weights + (first + column) * k_ * element_bytes_;
        char* const line = to + column * element_bytes_;
        for (int64_t row = begin; row < end; ++row) {
          // A copy of a size that the compiler knows is one move.
          if (element_bytes_ == 1) {
            line[row * pitch_bytes] = from[row];
          } else {
            std::memcpy(line + row * pitch_bytes, from + row * 2, 2);
          }
        }
      }
    }
  }
  for (int64_t row = 0; row < k_ && row_bytes < pitch_bytes; ++row) {
    std::memset(to + row * pitch_bytes + row_bytes, 0, Size(pitch_bytes - row_bytes));
  }
}

absl::Status WeightPanels::Multiply(const StreamedProduct& product, int threads,
                                    int64_t columns_of_turn, const AbortCheck& abort_check) const {
  const int64_t turn = std::max<int64_t>(columns_of_turn / kColumns, 1);
  for (int64_t first = 0; first < Panels(); first += turn) {
    if (abort_check && first > 0) SHARDMESH_RETURN_IF_ERROR(abort_check());
    OnThreads(std::min(turn, Panels() - first), threads,
              [&](int64_t i) { MultiplyPanel(product, first + i); });
  }
  return absl::OkStatus();
}

void WeightPanels::MultiplyPanel(const StreamedProduct& product, int64_t panel) const {
  alignas(64) std::array<float, kMostStreamedRows * kPanelColumns> sums;
  alignas(64) std::array<float, kPanelColumns> bias;
  const int64_t first = panel * kColumns;
  const int64_t pitch = PitchOf(panel);
  const size_t columns = Size(ColumnsOf(panel));
  std::fill_n(sums.data(), product.rows * pitch, 0.0F);
  AddProducts(product, panel, sums.data());

  const ActivationFn activate = ActivationLoop(product.activation);
  if (product.bias != nullptr) {
    LoadFloats(product.bias_dtype, product.bias + first * FloatBytes(product.bias_dtype), columns,
               bias.data());
  }
  const int64_t out_bytes = FloatBytes(product.out_dtype);
  for (int64_t row = 0; row < product.rows; ++row) {
    float* const values = sums.data() + row * pitch;
    for (size_t i = 0; product.scale != 1 && i < columns; ++i) values[i] *= product.scale;
    for (size_t i = 0; product.scales != nullptr && i < columns; ++i) {
      values[i] *= product.scales[Size(first) + i];
    }
    activate(product.bias != nullptr ? bias.data() : nullptr, values, columns);
    StoreFloats(product.out_dtype, values, columns, product.out + (row * n_ + first) * out_bytes);
  }
}

void WeightPanels::AddProducts(const StreamedProduct& product, int64_t panel, float* sums) const {
  const WeightLoops loops = WeightLoopsOfCpu();
  const size_t pitch = Size(PitchOf(panel));
  const size_t rows = Size(product.rows);
  const char* const weights = At(0, panel * kColumns);
  if (dtype_ == Dtype::kI8) {
    for (int64_t begin = 0; begin < k_; begin += kRowsOfI8) {
      loops.add_i8(product.lhs + begin, Size(k_), rows,
                   reinterpret_cast<const int8_t*>(weights) + Size(begin) * pitch,
                   Size(std::min(kRowsOfI8, k_ - begin)), pitch, sums);
    }
    return;
  }
  alignas(64) std::array<float, kRowsOfF32 * kPanelColumns> converted;
  for (int64_t begin = 0; begin < k_; begin += kRowsOfF32) {
    const size_t depth = Size(std::min(kRowsOfF32, k_ - begin));
    LoadFloats(dtype_, weights + begin * PitchOf(panel) * element_bytes_, depth * pitch,
               converted.data());
    loops.add_f32(product.lhs + begin, Size(k_), rows, converted.data(), depth, pitch, sums);
  }
}

void WeightPanels::Widen(int64_t column, int64_t columns, Dtype to, int threads, char* out) const {
  const WeightLoops loops = WeightLoopsOfCpu();
  const int64_t to_bytes = FloatBytes(to);
  OnThreads((columns + kColumns - 1) / kColumns, threads, [&](int64_t i) {
    const int64_t first = i * kColumns;
    const size_t count = Size(std::min(kColumns, columns - first));
    for (int64_t row = 0; row < k_; ++row) {
      const char* const from = At(row, column + first);
      char* const place = out + (row * columns + first) * to_bytes;
      if (dtype_ != Dtype::kI8) {
        LoadFloats(dtype_, from, count, reinterpret_cast<float*>(place));
      } else if (to == Dtype::kBF16) {
        loops.i8_to_bf16(reinterpret_cast<const int8_t*>(from), count,
                         reinterpret_cast<uint16_t*>(place));
      } else {
        loops.i8_to_f32(reinterpret_cast<const int8_t*>(from), count,
                        reinterpret_cast<float*>(place));
      }
    }
  });
}

void WeightPanels::Unpack(int64_t begin, int64_t end, char* out) const {
  // A line of the plain weights is a row, or a column if they are transposed.
  const int64_t line_elements = is_transposed_ ? k_ : n_;
  for (int64_t at = begin; at < end;) {
    const int64_t line = at / line_elements;
    const int64_t first = at % line_elements;
    int64_t stop = std::min(line_elements, first + end - at);
    if (is_transposed_) {
      const char* from = At(first, line);
      const int64_t pitch_bytes = PitchOf(line / kColumns) * element_bytes_;
      for (int64_t row = first; row < stop; ++row, from += pitch_bytes) {
        char* const to = out + (row - first) * element_bytes_;
        if (element_bytes_ == 1) {
          *to = *from;
        } else {
          std::memcpy(to, from, 2);
        }
      }
    } else {
      stop = std::min(stop, (first / kColumns + 1) * kColumns);
      std::memcpy(out, At(line, first), Size((stop - first) * element_bytes_));
    }
    out += (stop - first) * element_bytes_;
    at += stop - first;
  }
}

}  // namespace shardmesh::worker
