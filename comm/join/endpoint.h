// SPDX-License-Identifier: Apache-2.0
// The endpoint of the store that rank 0 has started, for the other ranks, as text in a file or in
// torchrun's store. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy::comm {

struct Endpoint {
  std::string job_id;  // 32 random hexadecimal digits, unique to this endpoint.
  std::string token;   // A secret of arbitrary bytes, not text.
  // Number of worlds that rank 0's process has had before.
  std::uint32_t generation = 0;
  std::vector<std::string> addresses;  // With ports, best first; at least one.

  bool operator==(const Endpoint&) const = default;
};

inline constexpr std::size_t kEndpointBytesMax = 8192;
inline constexpr std::size_t kEndpointAddressesMax = 16;

std::string encode_endpoint(const Endpoint& endpoint);
// Fails with DataLoss if the text is not an endpoint, has another version, or is truncated.
Result<Endpoint> decode_endpoint(std::string_view text);

}  // namespace ivy::comm
