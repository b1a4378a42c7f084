// Timed waits that an adjustment of the wall clock neither prolongs nor shortens.
#ifndef SHARDMESH_PROCESS_STEADY_WAITS_H_
#define SHARDMESH_PROCESS_STEADY_WAITS_H_

namespace shardmesh {

// Abseil waits until a wall-clock time. Even Mutex::AwaitWithTimeout adds its timeout to the wall
// clock's present value. If the wall clock is set back by an hour, each current wait lasts an hour
// longer: heartbeats, leases and renewals stop.
//
// A program that calls this function replaces Abseil's waits. The replacement covers all mutexes
// and condition variables of the process, including those of gRPC. A wait then measures its time on
// the steady clock, from the moment at which the wait begins.
//
// The call itself does nothing: it makes the linker include this file in the program. The
// replacement is active from program start.
void UseSteadyWaits();

// Returns whether Abseil's waits are replaced. Returns false in builds for ThreadSanitizer, and if
// the Abseil library uses other symbol names.
bool WaitsAreSteady();

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_STEADY_WAITS_H_
