// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/dial_wire.h"

#include <algorithm>
#include <optional>

#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr std::string_view kFirstLine = "IVYDIAL 1";
constexpr std::string_view kTransportLine = "IVYDIAL 1 ";
constexpr std::string_view kSignalLine = "IVYSIGNAL 1 ";
constexpr std::string_view kJoinLine = "IVYJOIN 1 ";
constexpr std::size_t kJobIdDigits = 32;
// The number of Linux's last real-time signal.
constexpr int kLastSignal = 64;

std::string_view take_word(std::string_view& text) { return take_part(text, ' '); }

// Parses one line into the order. Returns false if it is malformed.
bool take_line(std::string_view line, DialOrder& order) {
  std::string_view rest = line;
  const std::string_view name = take_word(rest);
  if (name == "job" && rest.size() == kJobIdDigits && is_hexadecimal(rest)) {
    order.job_id = rest;
    return true;
  }
  if (name == "key" && rest.size() == 2 * kDialKeyBytes && is_hexadecimal(rest)) {
    order.key = from_hexadecimal(rest);
    return true;
  }
  if (name == "silence") {
    const auto milliseconds = to_number<std::uint32_t>(rest);
    if (!milliseconds || *milliseconds == 0) return false;
    order.silence = std::chrono::milliseconds(*milliseconds);
    return true;
  }
  if (name == "address" && order.addresses.size() < kDialAddressesMax) {
    const std::string_view address = take_word(rest);
    const auto port = to_number<std::uint16_t>(rest);
    if (address.empty() || !port || *port == 0) return false;
    order.addresses.push_back({std::string(address), *port});
    return true;
  }
  if (name == "self") {
    order.self = to_number<std::uint32_t>(rest);
    return order.self.has_value();
  }
  if (name == "host" && !rest.empty()) {
    order.hosts.emplace_back(rest);
    return true;
  }
  return false;
}

}  // namespace

std::string encode_dial_order(const DialOrder& order) {
  std::string text(kFirstLine);
  text += "\njob " + order.job_id + "\nkey " + hexadecimal(order.key);
  text += "\nsilence " + std::to_string(order.silence.count()) + "\n";
  const std::size_t count = std::min(order.addresses.size(), kDialAddressesMax);
  for (std::size_t i = 0; i < count; ++i)
    text += "address " + order.addresses[i].address + " " +
            std::to_string(order.addresses[i].port) + "\n";
  for (const std::string& host : order.hosts) text += "host " + host + "\n";
  if (order.self) text += "self " + std::to_string(*order.self) + "\n";
  return text + std::string(kDialOrderEnd) + "\n";
}

Result<DialOrder> parse_dial_order(std::string_view text) {
  DialOrder order;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = take_part(text, '\n');
    if (number == 1 && line == kFirstLine) continue;
    if (number > 1 && line == kDialOrderEnd) break;
    if (number == 1 || !take_line(line, order))
      return Error{Code::kInvalidArgument,
                   "the launcher's order is invalid at line " + std::to_string(number)};
  }
  if (order.job_id.empty() || order.key.empty() || order.addresses.empty() || order.hosts.empty())
    return Error{Code::kInvalidArgument, "the launcher's order is incomplete"};
  if (order.self && *order.self >= order.hosts.size())
    return Error{Code::kInvalidArgument,
                 "the launcher's order gives this host an index out of range"};
  return order;
}

std::string encode_dial_greeting(const DialGreeting& greeting) {
  const std::string host = std::to_string(greeting.host);
  if (greeting.kind == DialGreeting::Kind::kTransport)
    return std::string(kTransportLine) + host + "\n";
  if (greeting.kind == DialGreeting::Kind::kJoin) return std::string(kJoinLine) + host + "\n";
  return std::string(kSignalLine) + host + " " + std::to_string(greeting.signal) +
         (greeting.whole_tree ? " tree\n" : " tasks\n");
}

Result<DialGreeting> parse_dial_greeting(std::string_view line) {
  const Error malformed{Code::kInvalidArgument, "the first line is not a greeting from ivy-node"};
  DialGreeting greeting;
  if (line.starts_with(kSignalLine)) {
    greeting.kind = DialGreeting::Kind::kSignal;
    line.remove_prefix(kSignalLine.size());
  } else if (line.starts_with(kTransportLine)) {
    line.remove_prefix(kTransportLine.size());
  } else if (line.starts_with(kJoinLine)) {
    greeting.kind = DialGreeting::Kind::kJoin;
    line.remove_prefix(kJoinLine.size());
  } else {
    return malformed;
  }
  const auto host = to_number<std::uint32_t>(take_word(line));
  if (!host) return malformed;
  greeting.host = *host;
  if (greeting.kind != DialGreeting::Kind::kSignal) {
    if (!line.empty()) return malformed;
    return greeting;
  }
  const auto signal = to_number<int>(take_word(line));
  if (!signal || *signal < 1 || *signal > kLastSignal || (line != "tree" && line != "tasks"))
    return malformed;
  greeting.signal = *signal;
  greeting.whole_tree = line == "tree";
  return greeting;
}

}  // namespace ivy
