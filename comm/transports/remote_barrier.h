// A memory barrier on every processor that runs a process which asked for it, made by one who can
// wait: then those who cannot need none of their own.
//
// Source: membarrier(2), "global expedited"; sys_membarrier in the kernel's documentation of the
// memory model (a store, then a load, against a load, then a store).
// Thread: any.
#pragma once

namespace ivy::comm {

// This process is reached from now on. False: the kernel or a sandbox has no such thing. Waits for
// a moment (some milliseconds) where the process has threads already.
bool join_remote_barriers();

// After this, each process that joined has either done everything that stands in its program before
// its present place, visibly, or it reads memory anew. Nothing where there is no such thing.
void remote_barrier();

}  // namespace ivy::comm
