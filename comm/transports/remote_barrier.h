// A memory barrier on every processor that runs a process which asked for it, made by a process
// that has time to wait, so that those that have none need no barrier of their own.
//
// Source: membarrier(2), "global expedited"; sys_membarrier in the kernel's documentation of the
// memory model (a store, then a load, against a load, then a store).
// Thread: any.
#pragma once

namespace ivy::comm {

// Registers this process for barriers. False: the kernel or a sandbox does not offer them. Waits
// for a moment (some milliseconds) where the process has threads already.
bool join_remote_barriers();

// After this, each process that joined has either done everything that stands in its program before
// its present place, visibly, or it reads memory anew. Does nothing if the kernel has no such
// barrier.
void remote_barrier();

}  // namespace ivy::comm
