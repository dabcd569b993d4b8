// SPDX-License-Identifier: Apache-2.0
// Frames the messages of proto/wire/ctl.proto on a byte stream: four bytes of length (little
// endian), then the message. Pure. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {

inline constexpr std::uint32_t kCtlVersion = 1;
// Largest request. Texts in replies are cut to half of this.
inline constexpr std::size_t kMaxCtlBytes = 1u << 20;
// Largest reply that ivyctl reads from a launcher of the same user. A row of a rank has about 140
// bytes, so 400,000 ranks fit.
inline constexpr std::size_t kMaxCtlReplyBytes = 64u << 20;

// Returns the message with its length in front.
std::string framed(const std::string& message);
std::string encode_ctl(const ctl::Request& request);
std::string encode_ctl(const ctl::Reply& reply);

// Splits a byte stream into messages. Errors are final: drop the connection.
class CtlDecoder {
 public:
  explicit CtlDecoder(std::size_t max_bytes = kMaxCtlBytes) : max_bytes_(max_bytes) {}
  void feed(std::string_view bytes) { buffer_ += bytes; }
  // Returns the next complete message, or nullopt until it is complete. DataLoss: the message is
  // too long.
  Result<std::optional<std::string>> next();

 private:
  std::size_t max_bytes_;
  std::string buffer_;
  std::size_t consumed_ = 0;  // Bytes of buffer_ that were returned.
};

}  // namespace ivy
