// SPDX-License-Identifier: Apache-2.0
// Checks the first bytes of an unauthenticated peer before any large library reads them. Only a
// complete TLS 1.3 ClientHello is passed on: RFC 8446, sections 4.1.2 and 5.1. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ivy {

// A ClientHello in one record, which is what every TLS library sends.
inline constexpr std::size_t kMaxHelloBytes = 5 + 16384;
// Enough bytes to distinguish TLS from all other protocols.
inline constexpr std::size_t kFirstLookBytes = 5;

struct ClientHelloCheck {
  enum class Verdict { kMore, kTls13, kRefused };
  Verdict verdict = Verdict::kMore;
  std::size_t needed = kFirstLookBytes;  // With kMore: judge again when so many are there.
  std::string what;  // With kRefused: the kind of data, for a sentence after "is"; one line, no
                     // control characters.
};

// `seen`: the bytes received so far, at most kMaxHelloBytes.
ClientHelloCheck check_client_hello(std::string_view seen);

// Describes a peer that sent only this much until it closed or timed out.
std::string describe_unfinished(std::string_view seen);

}  // namespace ivy
