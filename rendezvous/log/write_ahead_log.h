// The bytes of the store's log: a head, then records, each of which holds the effects (effect.h) of
// one request. Recovery takes records from the front and stops at the first that is not whole, so
// its result is always the state after some number of requests.
//
// clang-format off
//   head    "IVYWAL1\n" | job id, 32 characters | epoch, 16 bytes | u32 0 | u32 crc of the 60 before
//   record  u32 length | u64 sequence | u32 crc of the payload | u32 crc of the 16 before | payload
// clang-format on
//
// Integers are little endian; crc is CRC-32C. Sequences begin at 1 and leave out none, so a record
// that was lost or doubled in the middle is seen. The head of a record has a check of its own, so
// that a length can be believed: a file that ends inside a record was cut off by a crash, and what
// is missing was never acknowledged; anything else that does not fit is damage, and then something
// acknowledged may be missing.
//
// Pure. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/contract/status.h"

namespace ivy::store {

inline constexpr std::size_t kLogHeadBytes = 64;
inline constexpr std::size_t kRecordHeadBytes = 20;
// More than one request can cause: 64 MiB of a multi-set with its lengths, or the calls of every
// member that may wait at a barrier.
inline constexpr std::size_t kMaxRecordBytes = 96u << 20;

std::uint32_t crc32c(std::string_view bytes);

struct LogHead {
  std::string job_id;  // It has 32 hexadecimal digits.
  std::string epoch;   // Random; it has kEpochBytes bytes.
};
std::string encode_log_head(const LogHead& head);
// Fails with DataLoss if the bytes are no head of ours.
Result<LogHead> decode_log_head(std::string_view bytes);

// The payload has at most kMaxRecordBytes.
void append_record(std::string& out, std::uint64_t sequence, std::string_view effects);

class LogReader {
 public:
  enum class End { kClean, kCutOff, kDamaged };

  // Takes the bytes after the head of the file, in any cut.
  void feed(std::string_view bytes);
  // Returns the next whole record's effects, valid until the next feed(), or nothing if more bytes
  // are needed.
  std::optional<std::string_view> next();
  // Call it when no bytes follow. Returns how the log ends: kClean after a record, kCutOff inside
  // one.
  End end() const;
  // Bytes of whole records, heads included: where to cut the file off.
  std::uint64_t good_bytes() const { return good_bytes_; }
  std::uint64_t records() const { return next_sequence_ - 1; }

 private:
  std::string buffer_;
  std::size_t consumed_ = 0;
  std::uint64_t next_sequence_ = 1;
  std::uint64_t good_bytes_ = 0;
  bool damaged_ = false;
};

// True if the log has grown so far beyond its contents that a rewrite pays.
bool is_worth_compacting(std::uint64_t log_bytes, std::uint64_t store_bytes);

}  // namespace ivy::store
