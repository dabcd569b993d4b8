// SPDX-License-Identifier: Apache-2.0
// Detects from a peer's first bytes whether it speaks TLS 1.3, before any large library reads them.
// Only a complete ClientHello is passed on: RFC 8446, sections 4.1.2 and 5.1. Does not authenticate
// the peer. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ivy {

// A ClientHello in one record, which is what every TLS library sends.
inline constexpr std::size_t kMaxHelloBytes = 5 + 16384;
// Enough bytes to distinguish TLS from all other protocols.
inline constexpr std::size_t kFirstLookBytes = 5;

struct TlsDetection {
  enum class Kind { kIncomplete, kTls13, kOther };
  Kind kind = Kind::kIncomplete;
  std::size_t needed = kFirstLookBytes;  // With kIncomplete: call again with this many bytes.
  std::string what;  // With kOther: the kind of data, for a sentence after "is"; one line, no
                     // control characters.
};

// `seen`: the bytes received so far, at most kMaxHelloBytes.
TlsDetection detect_tls13(std::string_view seen);

// Describes a peer that sent only this much until it closed or timed out.
std::string describe_unfinished(std::string_view seen);

}  // namespace ivy
