// SPDX-License-Identifier: Apache-2.0
// The messages between a worker and its supervisor on the control socket (IVY_CONTROL): a Unix
// socket of type SOCK_SEQPACKET in the job's 0700 directory. One message is one packet. Deaths,
// reports and operations travel through the status page (status_page.h) and need no message.
//
// clang-format off
//   packet   u8 kind | fields          little endian; a text is u32 length and bytes
//
//   worker → supervisor   fields
//   ATTACH   1            u32 version, u32 rank, u32 generation, i32 pid      answered by ATTACHED or REJECTED
//   SEGMENT  2            u64 bytes, u32 members, u8 flags, name              answered by SEGMENT_READY or REJECTED
//   REPORT   3            u8 kind, u32 blamed rank, u64 sequence, communicator, text   not answered
//   LEAVE    4            -                                                  answered by LEFT
//   OBSERVE  5            u32 version, u32 rank, u32 generation              answered by OBSERVED or REJECTED
//
//   supervisor → worker
//   ATTACHED 128          u32 version, u32 slot, u64 bytes      with the status page's descriptor
//   SEGMENT_READY 129     u64 bytes, name                       with the segment's descriptor
//   REJECTED 130          u8 kind of the request, u32 code (status.h), name, text
//   LEFT     131          -
//   OBSERVED 132          u64 bytes                    with the descriptor of a separate page
// clang-format on
//
// A connection starts with ATTACH; one rank has one connection. Answers are sent as they become
// available, so answers to SEGMENT carry the name. The supervisor creates a segment (sealed against
// shrinking and growing) for the first of its `members` local ranks that requests it, gives the
// same one to all, and forgets the name when all have it or the generation ends. After LEAVE, the
// exit of the process does not count as a death for the other ranks. End of file without LEAVE is
// only a hint; the process's exit decides.
//
// OBSERVE needs no ATTACH and does not affect any rank. Any process of a worker may send it, and
// gets a status page with one slot in which it shows its activity (NCCL's profiler plug-in,
// comm/nccl_profiler). It closes the connection after it has received the page.
//
// Pure. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "proto/contract/status.h"

namespace ivy::control {

inline constexpr std::uint32_t kWireVersion = 1;
// Limit of a communicator's name and its segment's.
inline constexpr std::size_t kMaxNameBytes = 64;
inline constexpr std::size_t kMaxTextBytes = 512;
inline constexpr std::size_t kMaxPacketBytes = 1024;
inline constexpr std::uint64_t kMaxSegmentBytes = std::uint64_t{16} << 30;
inline constexpr std::uint32_t kMaxMembers = 4096;  // Local ranks of one host.
inline constexpr std::uint32_t kNoRank = 0xffffffff;

// Kinds of errors that a rank reports. The wire and the status page use these numbers.
enum class ReportKind : std::uint8_t {
  kMismatch = 1,       // Operation, type, count, root or order differ between ranks.
  kTimeout = 2,        // A wait for `blamed` timed out.
  kAborted = 3,        // The program called ivy_comm_abort() or an equivalent.
  kTransportLost = 4,  // A connection to `blamed` broke, and no death explains it.
  kInternal = 5,       // A bug in the runtime or a fault of the machine.
};

struct Attach {
  std::uint32_t version = kWireVersion;
  std::uint32_t rank = 0;
  std::uint32_t generation = 0;
  std::int32_t pid = 0;  // The worker's own view; the supervisor trusts only the kernel's.
  bool operator==(const Attach&) const = default;
};

struct Segment {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t members = 0;  // Number of local ranks that will request it, including this one.
  // If true, the supervisor allocates all pages immediately, so a lack of memory is an error of
  // this request instead of a later SIGBUS. If false, each rank touches its own part, which places
  // it on its own NUMA node, with MADV_POPULATE_WRITE, which fails as cleanly.
  bool reserve = true;
  bool operator==(const Segment&) const = default;
};

struct Report {
  ReportKind kind = ReportKind::kInternal;
  std::uint32_t blamed = kNoRank;  // Rank in the job that caused the error.
  std::uint64_t sequence = 0;      // The failed operation's number, or 0.
  std::string communicator;
  std::string text;
  bool operator==(const Report&) const = default;
};

struct Leave {
  bool operator==(const Leave&) const = default;
};

struct Observe {
  std::uint32_t version = kWireVersion;
  std::uint32_t rank = 0;
  std::uint32_t generation = 0;
  bool operator==(const Observe&) const = default;
};

struct Attached {
  std::uint32_t version = kWireVersion;
  std::uint32_t slot = 0;  // This worker's slot in the status page.
  std::uint64_t bytes = 0;
  bool operator==(const Attached&) const = default;
};

struct SegmentReady {
  std::uint64_t bytes = 0;
  std::string name;
  bool operator==(const SegmentReady&) const = default;
};

enum class RequestKind : std::uint8_t {
  kAttach = 1,
  kSegment = 2,
  kReport = 3,
  kLeave = 4,
  kObserve = 5,
};

struct Rejected {
  RequestKind request = RequestKind::kAttach;
  Code code = Code::kInternal;
  std::string name;  // The segment's; empty for other requests.
  std::string text;
  bool operator==(const Rejected&) const = default;
};

struct Left {
  bool operator==(const Left&) const = default;
};

struct Observed {
  std::uint64_t bytes = 0;
  bool operator==(const Observed&) const = default;
};

using Request = std::variant<Attach, Segment, Report, Leave, Observe>;
using Reply = std::variant<Attached, SegmentReady, Rejected, Left, Observed>;

// Encodes one packet of at most kMaxPacketBytes. Texts are cut at their limits; passing a longer
// name is a bug.
std::string encode(const Request& request);
std::string encode(const Reply& reply);

// Fails with DataLoss if the packet is not a valid message, a field exceeds its limit, or bytes are
// left over.
Result<Request> decode_request(std::string_view packet);
Result<Reply> decode_reply(std::string_view packet);

}  // namespace ivy::control
