// SPDX-License-Identifier: Apache-2.0
// A handwritten, minimal ClientHello. RFC 8446, section 4.1.2.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy::test {

inline std::string number(std::size_t value, std::size_t bytes) {
  std::string text;
  for (std::size_t i = bytes; i-- > 0;) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}
inline std::string with_length(const std::string& body, std::size_t bytes) {
  return number(body.size(), bytes) + body;
}

// `versions` as in the extension. An empty list makes the hello of a client older than TLS 1.3.
inline std::string client_hello(const std::vector<unsigned>& versions = {0x0304},
                                std::size_t padding = 0) {
  std::string list;
  for (const unsigned version : versions) list += number(version, 2);
  std::string extensions = number(21, 2) + with_length(std::string(padding, '\0'), 2);
  // The group and the signature algorithm that gRPC supports, but no key share: gRPC requests one
  // and waits.
  extensions += number(10, 2) + with_length(with_length(number(0x0017, 2), 2), 2);
  extensions += number(13, 2) + with_length(with_length(number(0x0403, 2), 2), 2);
  extensions += number(51, 2) + with_length(with_length("", 2), 2);
  if (!versions.empty()) extensions += number(43, 2) + with_length(with_length(list, 1), 2);
  const std::string body = number(0x0303, 2) + std::string(32, 'r') + with_length("", 1) +
                           with_length(number(0x1301, 2), 2) +
                           with_length(std::string(1, '\0'), 1) + with_length(extensions, 2);
  const std::string handshake = number(1, 1) + with_length(body, 3);
  return number(0x16, 1) + number(0x0301, 2) + with_length(handshake, 2);
}

}  // namespace ivy::test
