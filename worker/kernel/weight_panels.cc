// WeightPanels: packs, converts and unpacks panel by panel.
#include "worker/kernel/weight_panels.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "status/status_macros.h"
#include "worker/kernel/float_block.h"
#include "worker/kernel/pieces.h"
#include "worker/kernel/weight_loops.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kGranule = kWeightColumnGranule;
// Rows of a panel that fit into the nearest cache.
constexpr int64_t kBlockRows = 64;

size_t Size(int64_t count) { return static_cast<size_t>(count); }

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
    for (int64_t begin = 0; begin < k_; begin += kBlockRows) {
      const int64_t end = std::min(begin + kBlockRows, k_);
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

PanelsView WeightPanels::view() const {
  return {.form = dtype_ == Dtype::kI8 ? PanelForm::kI8 : PanelForm::kF16,
          .data = data_.get(),
          .k = k_,
          .n = n_,
          .columns = kColumns,
          .last_pitch = n_ == 0 ? 0 : PitchOf(Panels() - 1),
          .panel_bytes = kColumns * k_ * element_bytes_};
}

void WeightPanels::Widen(int64_t column, int64_t columns, Dtype to, int threads, char* out) const {
  const WeightLoops loops = WeightLoopsOfCpu();
  const int64_t to_bytes = FloatBytes(to);
  RunOnKernelThreads((columns + kColumns - 1) / kColumns, threads, [&](int64_t i) {
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
