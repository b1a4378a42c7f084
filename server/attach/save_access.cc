// Encodes the orders of saves, and passes on what workers report.
#include "server/attach/save_access.h"

#include <limits>
#include <optional>
#include <utility>

#include "server/attach/attach_codec.h"
#include "shardmesh/internal/v1/attach_service.pb.h"

namespace shardmesh::server {

void SaveOrderTable::Send(WorkerStream* stream, const internal::v1::SaveOrder& order,
                          SaveProgressed progressed, SaveAnswered answered) {
  internal::v1::AttachResponse message;
  *message.mutable_save() = order;
  Waiting waiting{.progressed = std::move(progressed), .answered = std::move(answered)};
  // Saves::kMaxRunning limits the orders: each worker has one order of a save at a time.
  table_.Register(stream, &waiting, std::numeric_limits<size_t>::max(),
                  [&message](int64_t order_id) {
                    message.mutable_save()->set_order_id(order_id);
                    return EncodeMessage(message);
                  });
}

void SaveOrderTable::Progress(const WorkerStream* stream,
                              const internal::v1::SaveProgress& progress) {
  SaveProgressed progressed;
  table_.Look(stream, progress.order_id(),
              [&progressed](const Waiting& waiting) { progressed = waiting.progressed; });
  if (progressed) progressed(progress.done_bytes());
}

void SaveOrderTable::Answer(const WorkerStream* stream, const internal::v1::SaveAnswer& answer) {
  std::optional<Waiting> waiting = table_.Take(stream, answer.order_id());
  if (waiting.has_value()) std::move(waiting->answered)(answer);
}

std::vector<SaveAnswered> SaveOrderTable::TakeAllOf(const WorkerStream* stream) {
  std::vector<SaveAnswered> taken;
  for (Waiting& waiting : table_.TakeAllOf(stream)) taken.push_back(std::move(waiting.answered));
  return taken;
}

}  // namespace shardmesh::server
