#include "comm/join/endpoint.h"

#include <optional>

#include "comm/join/launchers.h"

namespace ivy::comm {
namespace {

constexpr std::string_view kHead = "ivycomm meeting 1\n";
constexpr std::string_view kEnd = "end\n";  // An endpoint that lacks it was cut off.
constexpr std::string_view kDigits = "0123456789abcdef";
constexpr std::size_t kJobIdSize = 32;

std::string to_hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<std::string> from_hex(std::string_view text) {
  if (text.size() % 2 != 0 || text.find_first_not_of(kDigits) != std::string_view::npos) {
    return std::nullopt;
  }
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes += static_cast<char>(kDigits.find(text[i]) << 4 | kDigits.find(text[i + 1]));
  }
  return bytes;
}

bool take_line(std::string_view name, std::string_view value, Endpoint& endpoint) {
  if (name == "job") {
    endpoint.job_id = value;
    return value.size() == kJobIdSize && value.find_first_not_of(kDigits) == std::string::npos;
  }
  if (name == "token") {
    const std::optional<std::string> token = from_hex(value);
    endpoint.token = token.value_or("");
    return token.has_value() && !token->empty();
  }
  if (name == "generation") {
    const std::optional<std::uint32_t> number = whole_number(value);
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
  text += "job " + endpoint.job_id + "\ntoken " + to_hex(endpoint.token) + "\ngeneration " +
          std::to_string(endpoint.generation) + "\n";
  for (const std::string& address : endpoint.addresses) text += "address " + address + "\n";
  return text.append(kEnd);
}

Result<Endpoint> decode_endpoint(std::string_view text) {
  const Error wrong{Code::kDataLoss, "this is no endpoint of rank 0"};
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
