// What two builds of this library must share to be ranks of one job, as one number: the layout of
// shared memory, the words on connections and in the store, and the built-in table by which all
// ranks choose the same algorithm. It is compared when the ranks meet and in every segment.
//
// Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>

namespace ivy::comm {

// Returns a number that is never 0.
std::uint64_t protocol_identity();

}  // namespace ivy::comm
