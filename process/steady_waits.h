// Timed waits that an adjusted wall clock neither prolongs nor cuts short.
#ifndef SHARDMESH_PROCESS_STEADY_WAITS_H_
#define SHARDMESH_PROCESS_STEADY_WAITS_H_

namespace shardmesh::rpc {

// Abseil waits until a time of the wall clock (in Mutex::AwaitWithTimeout too, which adds the
// timeout to the present). Set back by an hour, the clock then prolongs each wait under way by that
// hour: heartbeats, leases and renewals stand still. A program that calls this has waits of its
// own in place of Abseil's, for all mutexes and condition variables of the process, those of gRPC
// among them: a wait counts its time by the steady clock from the moment at which it begins.
//
// The call does nothing but bring the file into the program; waits are replaced from its start on.
void UseSteadyWaits();

// Whether they are: not in builds for ThreadSanitizer, nor where the library's names are others.
bool WaitsAreSteady();

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_PROCESS_STEADY_WAITS_H_
