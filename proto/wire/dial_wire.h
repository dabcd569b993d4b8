// SPDX-License-Identifier: Apache-2.0
// The message of a launcher to the hosts of a srun step before they dial back, and the first line
// that a host sends. Pure; thread: any.
//
//   standard input of every host      IVYDIAL 1
//                                     job HEX32
//                                     key HEX64                the pre-shared key of this step
//                                     silence MILLISECONDS     then a second connection is tried
//                                     address ADDRESS PORT     one line each, preferred first
//                                     host NAME                one line each, in the job's order
//                                     self INDEX               this host; else its name decides
//                                     end
//   first line inside TLS (upwards)   IVYDIAL 1 HOST
//                                     IVYSIGNAL 1 HOST SIGNAL tasks|tree
//                                     IVYJOIN 1 RANK           an ivyrun, not ivy-node
//   answer to the first               IVYOPEN 1 new|reattach JOBID HOST
//
// After that answer the connection is used as any other transport (proto/wire/session.h). After
// IVYJOIN it connects two ivyruns (launcher/join).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

inline constexpr std::size_t kDialKeyBytes = 32;
// Enough for 65,536 hosts with long names.
inline constexpr std::size_t kDialOrderMaxBytes = 8u << 20;
// The launcher sends only its first addresses, at most this many.
inline constexpr std::size_t kDialAddressesMax = 16;
// The first line inside TLS, including its newline.
inline constexpr std::size_t kDialGreetingMaxBytes = 64;
// The line that ends an order; a shell may wait for it, too.
inline constexpr std::string_view kDialOrderEnd = "end";

struct DialAddress {
  std::string address;  // Numeric, IPv4 or IPv6.
  std::uint16_t port = 0;
  bool operator==(const DialAddress&) const = default;
};

struct DialOrder {
  std::string job_id;
  std::string key;  // The secret key, kDialKeyBytes long.
  // A running launcher sends something twice a second. After this silence the host tries a second
  // connection in addition to the silent one.
  std::chrono::milliseconds silence{5000};
  std::vector<DialAddress> addresses;  // Tried in this order; at least one.
  std::vector<std::string> hosts;      // Slurm's names; the index is the host's number in the job.
  std::optional<std::uint32_t> self;   // This host's number; only in torchrun mode.
};

std::string encode_dial_order(const DialOrder& order);
// `text` ends with the "end" line. Fails with InvalidArgument, which names the line but never shows
// the key.
Result<DialOrder> parse_dial_order(std::string_view text);

// The first line of a host that dials: its number and purpose.
struct DialGreeting {
  enum class Kind {
    kTransport,  // Carries the job's bytes.
    kSignal,     // Only reports that the scheduler has signalled the step's task on this host.
    kJoin,       // The ivyrun of another node, in torchrun mode; `host` is its node rank.
  };
  Kind kind = Kind::kTransport;
  std::uint32_t host = 0;
  int signal = 0;           // With kSignal, the signal's number.
  bool whole_tree = false;  // With kSignal, all processes below the task got the signal, too.
};

// Encodes the line that a host sends, including its newline.
std::string encode_dial_greeting(const DialGreeting& greeting);
// Parses that line without its newline. Fails with InvalidArgument if it is malformed.
Result<DialGreeting> parse_dial_greeting(std::string_view line);

}  // namespace ivy
