// SPDX-License-Identifier: Apache-2.0
#include "comm/join/endpoint.h"

#include <optional>

#include "comm/join/launchers.h"
#include "proto/contract/text.h"

namespace ivy::comm {
namespace {

constexpr std::string_view kHead = "ivycomm meeting 1\n";
constexpr std::string_view kEnd = "end\n";  // An endpoint without it was truncated.
constexpr std::size_t kJobIdSize = 32;

bool take_line(std::string_view name, std::string_view value, Endpoint& endpoint) {
  if (name == "job") {
    endpoint.job_id = value;
    return value.size() == kJobIdSize && is_hexadecimal(value);
  }
  if (name == "token") {
    endpoint.token = from_hexadecimal(value);
    return value.size() % 2 == 0 && is_hexadecimal(value) && !value.empty();
  }
  if (name == "generation") {
    const std::optional<std::uint32_t> number = to_number<std::uint32_t>(value);
    endpoint.generation = number.value_or(0);
    return number.has_value();
  }
  if (name == "address") {
    endpoint.addresses.emplace_back(value);
    return !value.empty() && endpoint.addresses.size() <= kEndpointAddressesMax;
  }
  return true;  // A later version may have further fields.
}

}  // namespace

std::string encode_endpoint(const Endpoint& endpoint) {
  std::string text(kHead);
  text += "job " + endpoint.job_id + "\ntoken " + hexadecimal(endpoint.token) + "\ngeneration " +
          std::to_string(endpoint.generation) + "\n";
  for (const std::string& address : endpoint.addresses) text += "address " + address + "\n";
  return text.append(kEnd);
}

Result<Endpoint> decode_endpoint(std::string_view text) {
  const Error wrong{Code::kDataLoss, "this is not an endpoint file of rank 0"};
  if (text.size() > kEndpointBytesMax || !text.starts_with(kHead) || !text.ends_with(kEnd)) {
    return wrong;
  }
  text.remove_prefix(kHead.size());
  text.remove_suffix(kEnd.size());
  Endpoint endpoint;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::size_t space = text.find(' ');
    if (end == std::string_view::npos || space > end) return wrong;
    if (!take_line(text.substr(0, space), text.substr(space + 1, end - space - 1), endpoint)) {
      return wrong;
    }
    text.remove_prefix(end + 1);
  }
  if (endpoint.job_id.empty() || endpoint.token.empty() || endpoint.addresses.empty()) return wrong;
  return endpoint;
}

}  // namespace ivy::comm
