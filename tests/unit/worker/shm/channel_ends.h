// Two ends of a channel of shared memory in one process.
#ifndef SHARDMESH_TESTS_UNIT_WORKER_SHM_CHANNEL_ENDS_H_
#define SHARDMESH_TESTS_UNIT_WORKER_SHM_CHANNEL_ENDS_H_

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "process/sealed/local_socket.h"
#include "tensor/buffer.h"
#include "worker/collective/link.h"
#include "worker/shm/shm_arena.h"
#include "worker/shm/shm_channel.h"
#include "worker/shm/shm_peers.h"
#include "worker/shm/shm_segment.h"

namespace shardmesh::worker {

struct ChannelEnd {
  std::shared_ptr<ShmArena> arena = std::make_shared<ShmArena>("test");
  MemoryBudget budget{int64_t{1} << 30};
  std::shared_ptr<BufferPool> pool = BufferPool::Create(&budget, 0, arena);
  ShmSegment* control = nullptr;  // the channel's
  std::shared_ptr<const FileDescriptor> socket;
  std::shared_ptr<ShmChannel> channel;

  OwnedBytes Own(const std::string& text) {
    auto buffer =
        std::make_shared<Buffer>(*pool->Allocate(static_cast<int64_t>(text.size()), "a message"));
    std::memcpy(buffer->data(), text.data(), text.size());
    return {buffer->bytes(), buffer};
  }
  // Does as ShmPeers does with what comes over the socket, until nothing more comes.
  void Hear() {
    while (true) {
      auto received = ReceiveDescriptors(socket->get());
      if (!received.ok()) return;
      ShmGreeting greeting;
      ASSERT_EQ(received->text.size(), sizeof(greeting));
      std::memcpy(&greeting, received->text.data(), sizeof(greeting));
      if (greeting.kind == ShmGreeting::Kind::kFreed) {
        channel->DropView(greeting.segment_id);
      } else {
        ASSERT_TRUE(
            channel
                ->AddView(greeting.segment_id,
                          *ShmView::Open(std::move(received->fds.at(0)), greeting.size_bytes))
                .ok());
      }
    }
  }
};

// Connects two ends. Errors are failures of the test.
inline void ConnectEnds(ChannelEnd (&ends)[2]) {
  int sockets[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, sockets), 0);
  std::unique_ptr<ShmSegment> controls[2];
  for (int i = 0; i < 2; ++i) {
    controls[i] = *ShmSegment::Create("control", ShmControl::SizeBytes(), true);
    new (controls[i]->bytes().data()) ShmControl();
    ends[i].control = controls[i].get();
    ends[i].socket = std::make_shared<const FileDescriptor>(sockets[i]);
  }
  std::unique_ptr<ShmView> views[2];
  for (int i = 0; i < 2; ++i) {
    views[i] = *ShmView::Open(FileDescriptor(dup(controls[1 - i]->fd())), ShmControl::SizeBytes());
  }
  for (int i = 0; i < 2; ++i) {
    ends[i].channel =
        std::make_shared<ShmChannel>(std::move(controls[i]), std::move(views[i]), ends[i].socket,
                                     ends[i].arena.get(), &ends[i].budget);
  }
}

}  // namespace shardmesh::worker

#endif  // SHARDMESH_TESTS_UNIT_WORKER_SHM_CHANNEL_ENDS_H_
