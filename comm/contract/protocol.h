// SPDX-License-Identifier: Apache-2.0
// One number for everything that two builds of this library must share to be ranks of one job: the
// layout of shared memory, the messages on connections and in the store, and the built-in table
// from which all ranks choose the same algorithm. Ranks compare it when they join and in every
// segment.
//
// Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>

namespace ivy::comm {

// Never returns 0.
std::uint64_t protocol_identity();

}  // namespace ivy::comm
