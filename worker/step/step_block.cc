// StepBlock: remembers which parts of a memory have owners.
#include "worker/step/step_block.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace shardmesh::worker {

struct StepBlock::Owner {
  Owner(std::shared_ptr<Shared> the_shared, const Part& the_part)
      : shared(std::move(the_shared)), part(the_part) {}
  ~Owner() {
    absl::MutexLock lock(&shared->mutex);
    // Several owners may have the same part: remove one of them.
    shared->owned.erase(std::find(shared->owned.begin(), shared->owned.end(), part));
    shared->released.SignalAll();
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  const std::shared_ptr<Shared> shared;
  const Part part;
};

StepBlock::StepBlock(Buffer memory) {
  auto buffer = std::make_shared<Buffer>(std::move(memory));
  const absl::Span<char> bytes = buffer->mutable_bytes();
  shared_ = std::make_shared<Shared>(OwnedMutableBytes{bytes, std::move(buffer)});
}

StepBlock::StepBlock(OwnedMutableBytes memory)
    : shared_(std::make_shared<Shared>(std::move(memory))) {}

std::optional<OwnedMutableBytes> StepBlock::Take(int64_t offset_bytes, int64_t size_bytes) {
  if (size_bytes == 0) return OwnedMutableBytes();
  const Part part{.begin_bytes = offset_bytes, .end_bytes = offset_bytes + size_bytes};
  {
    absl::MutexLock lock(&shared_->mutex);
    const auto overlaps = [&part](const Part& other) {
      return other.begin_bytes < part.end_bytes && part.begin_bytes < other.end_bytes;
    };
    if (std::any_of(shared_->owned.begin(), shared_->owned.end(), overlaps)) return std::nullopt;
  }
  // Other threads only release owners, so the part is still free.
  return Add(part);
}

OwnedMutableBytes StepBlock::Share(int64_t offset_bytes, int64_t size_bytes) {
  if (size_bytes == 0) return OwnedMutableBytes();
  return Add({.begin_bytes = offset_bytes, .end_bytes = offset_bytes + size_bytes});
}

bool StepBlock::HasOwners() const {
  absl::MutexLock lock(&shared_->mutex);
  return !shared_->owned.empty();
}

void StepBlock::Wait(absl::Duration timeout) {
  absl::MutexLock lock(&shared_->mutex);
  if (!shared_->owned.empty()) shared_->released.WaitWithTimeout(&shared_->mutex, timeout);
}

OwnedMutableBytes StepBlock::Add(const Part& part) {
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->owned.push_back(part);
  }
  const auto owner = std::make_shared<Owner>(shared_, part);
  return {shared_->memory.bytes.subspan(static_cast<size_t>(part.begin_bytes),
                                        static_cast<size_t>(part.end_bytes - part.begin_bytes)),
          owner};
}

}  // namespace shardmesh::worker
