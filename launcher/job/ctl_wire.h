// Messages of proto/wire/ctl.proto on a stream: four bytes of length (little endian), then the
// message. Pure; thread: one at a time.
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
// Largest message. A description of a thousand hosts takes less than 100 KiB.
inline constexpr std::size_t kMaxCtlBytes = 1u << 20;

// A message with its length before it.
std::string framed(const std::string& message);
std::string encode_ctl(const ctl::Request& request);
std::string encode_ctl(const ctl::Reply& reply);

// Bytes to messages. Errors are final: drop the connection.
class CtlDecoder {
 public:
  void feed(std::string_view bytes) { buffer_ += bytes; }
  // The next whole message, or nothing. DataLoss for one that is too long.
  Result<std::optional<std::string>> next();

 private:
  std::string buffer_;
  std::size_t consumed_ = 0;
};

}  // namespace ivy
