// What rank 0 tells the others about the store that it has started: text, in a file or as a value
// in torchrun's store. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy::comm {

struct MeetingNote {
  std::string job_id;  // 32 hexadecimal digits, random: the note's own.
  std::string token;   // Any bytes.
  // How many worlds rank 0's process has had before.
  std::uint32_t generation = 0;
  std::vector<std::string> addresses;  // With ports, the best first; at least one.

  bool operator==(const MeetingNote&) const = default;
};

inline constexpr std::size_t kNoteBytesMax = 8192;
inline constexpr std::size_t kNoteAddressesMax = 16;

std::string encode_note(const MeetingNote& note);
// DataLoss: the text is not a note, of another version, or cut off.
Result<MeetingNote> decode_note(std::string_view text);

}  // namespace ivy::comm
