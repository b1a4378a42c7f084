// Converts the messages of SaveService.
#include "server/codec/save_codec.h"

namespace shardmesh::server {

SaveRequest Decode(const v1::BeginSaveRequest& from) {
  SaveRequest to;
  to.session_id = from.session_id();
  to.prefix = from.prefix();
  to.strip_prefix = from.strip_prefix();
  to.destination.folder = from.folder();
  if (from.has_step()) to.destination.step = from.step();
  to.destination.keep = from.keep();
  to.destination.overwrite = from.overwrite();
  to.max_file_bytes = from.max_file_bytes();
  to.single_file = from.single_file();
  to.is_detached = from.detached();
  return to;
}

void Encode(const BegunSave& from, v1::BeginSaveResponse* to) {
  to->set_operation_id(from.operation_id);
  to->set_tensors(from.tensors);
  to->set_files(from.files);
  to->set_size_bytes(from.size_bytes);
  to->set_revision(from.revision);
  to->set_detached(from.is_detached);
}

void Encode(const SaveResult& from, v1::WaitSaveResponse* to) {
  to->set_path(from.path);
  to->set_tensors(from.tensors);
  to->set_files(from.files);
  to->set_size_bytes(from.size_bytes);
  to->set_written_bytes(from.written_bytes);
  to->set_found_bytes(from.found_bytes);
  to->set_linked_files(from.linked_files);
  to->set_took_over(from.took_over);
  to->mutable_removed_steps()->Add(from.removed_steps.begin(), from.removed_steps.end());
  to->mutable_kept_steps()->Add(from.kept_steps.begin(), from.kept_steps.end());
  to->set_revision(from.revision);
}

}  // namespace shardmesh::server
