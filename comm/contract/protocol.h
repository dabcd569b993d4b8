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

// "00112233aabbccdd"
inline std::string protocol_text(std::uint64_t identity) {
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[identity >> shift & 15];
  return text;
}

}  // namespace ivy::comm
