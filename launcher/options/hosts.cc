// SPDX-License-Identifier: Apache-2.0
// Host lists. The grammar, from the outside in:
//
//   list   := entry { ',' entry }            commas inside brackets do not split
//   entry  := [user '@'] name { ':' field }
//   name   := '[' IPv6 address ']' | bare IPv6 address | text { '[' ranges ']' text }
//   ranges := lo ['-' hi] { ',' lo ['-' hi] }
//   field  := slots | port ':' slots | 'port=' number
#include "launcher/options/hosts.h"

#include <arpa/inet.h>

#include <algorithm>
#include <map>
#include <span>

#include "launcher/options/option_values.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// More workers than this on one host must be a typing error, such as a port written as slots.
constexpr int kMaxSlots = 8192;
// Limit of entries before repeated hosts are added up: PBS writes a line for every slot. Times
// kMaxSlots it still fits in an int.
constexpr std::size_t kMaxMentions = 1u << 17;
// The origin of a text: "-H, column 5" or "hosts.txt:3:5".
struct Origin {
  std::string name;
  std::size_t line = 0;  // 0 for a list without lines.

  Error error(std::size_t column, const std::string& what, const std::string& fix = {}) const {
    const std::string position =
        line == 0 ? name + ", column " + std::to_string(column)
                  : name + ":" + std::to_string(line) + ":" + std::to_string(column);
    return Error{Code::kInvalidArgument, position + ": " + what, fix};
  }
  std::string text() const { return line == 0 ? name : name + ":" + std::to_string(line); }
};

std::optional<int> to_int(std::string_view text) {
  return text.starts_with('-') ? std::nullopt : to_number<int>(text);
}

bool is_ipv6(std::string_view text) {
  const std::string address(text.substr(0, text.find('%')));
  in6_addr parsed{};
  return inet_pton(AF_INET6, address.c_str(), &parsed) == 1;
}

bool is_safe_user_name(std::string_view user) {
  return !user.empty() && user.front() != '-' && std::all_of(user.begin(), user.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("._-+$@\\").find(c) != std::string_view::npos;
  });
}

Result<int> parse_slots(const TextPiece& piece, const Origin& origin) {
  const std::optional<int> slots = to_int(piece.text);
  if (!slots || *slots < 1 || *slots > kMaxSlots)
    return origin.error(piece.column, in_quotes(piece.text) + " is not a number of slots (1 to " +
                                          std::to_string(kMaxSlots) + ")");
  return *slots;
}

Result<std::uint16_t> parse_port(const TextPiece& piece, const Origin& origin) {
  const std::optional<int> port = to_int(piece.text);
  if (!port || *port < 1 || *port > 65535)
    return origin.error(piece.column, in_quotes(piece.text) + " is not a port (1 to 65535)");
  return static_cast<std::uint16_t>(*port);
}

// Returns the length of the name at the start of "name:slots:port=N". It may be an address with
// colons.
std::size_t name_length(std::string_view text) {
  if (is_ipv6(text)) return text.size();
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']' && depth > 0) --depth;
    if (text[i] == ':' && depth == 0) return i;
  }
  return text.size();
}

// Returns the names of an entry. An address in brackets is a single name; all other names may
// contain ranges.
Result<std::vector<std::string>> entry_names(const TextPiece& piece, const Origin& origin) {
  const std::string_view text = piece.text;
  if (text.size() > 2 && text.front() == '[' && text.find(']') == text.size() - 1 &&
      text.find(':') != std::string_view::npos) {
    const std::string_view address = text.substr(1, text.size() - 2);
    if (!is_ipv6(address))
      return origin.error(piece.column + 1, in_quotes(address) + " is not an IPv6 address");
    return std::vector<std::string>{std::string(address)};
  }
  if (text.empty()) return origin.error(piece.column, "a host name is missing");
  std::vector<std::string> names;
  if (const auto fault = expand_host_ranges(piece, BracketOrder::kLastToFirst, names))
    return origin.error(fault->column, fault->what);
  for (const std::string& name : names) {
    if (!is_safe_host_name(name))
      return origin.error(piece.column, in_quotes(name) + " is not a host name",
                          name.find(' ') == std::string::npos
                              ? "a host name may have only letters, digits and \".-_\""
                              : "separate hosts with commas");
    // A bracket without a name ("[1-4]") is almost always a mistake.
    if (text.front() == '[')
      return origin.error(piece.column, in_quotes(text) + " has no host name before the bracket");
  }
  return names;
}

// Parses ":4", ":22:4", ":port=22", in any unambiguous order.
Result<void> parse_fields(const TextPiece& piece, const Origin& origin, Host& host) {
  std::vector<TextPiece> numbers;
  std::size_t at = 0;
  while (at < piece.text.size()) {
    const std::size_t colon = std::min(piece.text.find(':', at + 1), piece.text.size());
    const TextPiece field = piece.sub(at + 1, colon - at - 1);
    if (field.text.starts_with("port=")) {
      host.port = IVY_TRY(parse_port(field.sub(5), origin));
    } else {
      numbers.push_back(field);
    }
    at = colon;
  }
  if (numbers.size() > 2 || (numbers.size() == 2 && host.port != 0))
    return origin.error(piece.column, in_quotes(piece.text) + " has too many numbers",
                        "write host:slots, host:port:slots or host:slots:port=N");
  if (numbers.size() == 2) host.port = IVY_TRY(parse_port(numbers.front(), origin));
  if (!numbers.empty()) host.slots = IVY_TRY(parse_slots(numbers.back(), origin));
  return {};
}

// Adds the hosts of one entry.
Result<void> parse_entry(const TextPiece& entry, const Origin& origin, std::vector<Host>& hosts) {
  Host host;
  host.origin = origin.text();
  TextPiece rest = entry;
  // Use the last '@', because some sites have user names that contain a domain.
  const std::size_t sign = rest.text.rfind('@');
  if (sign != std::string_view::npos) {
    host.user = rest.text.substr(0, sign);
    if (!is_safe_user_name(host.user))
      return origin.error(rest.column, in_quotes(host.user) + " is not a user name");
    rest = rest.sub(sign + 1);
  }
  const std::size_t length = name_length(rest.text);
  IVY_CHECK(parse_fields(rest.sub(length), origin, host));
  const std::vector<std::string> names = IVY_TRY(entry_names(rest.sub(0, length), origin));
  if (hosts.size() + names.size() > kMaxMentions)
    return origin.error(entry.column,
                        "more than " + std::to_string(kMaxMentions) + " host entries");
  for (const std::string& name : names) {
    host.name = name;
    hosts.push_back(host);
  }
  return {};
}

TextPiece trimmed(TextPiece piece) {
  constexpr std::string_view kWhite = " \t\r\n";
  const std::size_t first = piece.text.find_first_not_of(kWhite);
  if (first == std::string_view::npos) return piece.sub(piece.text.size());
  return piece.sub(first, piece.text.find_last_not_of(kWhite) - first + 1);
}

// Parses the comma-separated entries of one list.
Result<void> parse_entries(const TextPiece& list, const Origin& origin, std::vector<Host>& hosts) {
  for (const TextPiece& piece : cut_at_commas(list, true)) {
    const TextPiece entry = trimmed(piece);
    const bool is_last =
        piece.text.data() + piece.text.size() == list.text.data() + list.text.size();
    if (entry.text.empty())
      return is_last && piece.column > list.column
                 ? origin.error(piece.column, "empty host name after \",\"",
                                "a list cannot contain spaces: -H node1,node2")
                 : origin.error(piece.column, "empty host name before \",\"", "remove one comma");
    IVY_CHECK(parse_entry(entry, origin, hosts));
  }
  return {};
}

// Adds the slots of repeated hosts to their first entry. A repeated entry without slots counts as
// one slot, because PBS writes one line per slot.
Result<std::vector<Host>> merged(const std::vector<Host>& hosts, const std::string& origin) {
  std::vector<Host> result;
  std::map<std::string, std::size_t> index;
  for (const Host& host : hosts) {
    const std::string key = host.user + "\n" + host.name + "\n" + std::to_string(host.port);
    const auto [position, is_new] = index.try_emplace(key, result.size());
    if (is_new) {
      result.push_back(host);
      continue;
    }
    Host& first = result[position->second];
    // An entry without a limit allows its own slots.
    const auto max_slots_of = [](const Host& one) {
      return one.max_slots.value_or(one.slots.value_or(1));
    };
    if (first.max_slots || host.max_slots)
      first.max_slots = max_slots_of(first) + max_slots_of(host);
    first.slots = first.slots.value_or(1) + host.slots.value_or(1);
  }
  if (result.size() > kMaxHosts)
    return Error{Code::kInvalidArgument, origin + ": " + std::to_string(result.size()) +
                                             " hosts, but the limit is " +
                                             std::to_string(kMaxHosts)};
  return result;
}

Error too_long(const std::string& origin) {
  return Error{Code::kInvalidArgument,
               origin + ": longer than " + std::to_string(kMaxHostListBytes) + " bytes"};
}

// Returns the error for contradictory values in a host's name and after it.
Error written_twice(const TextPiece& word, const Origin& origin, const Host& host,
                    const std::string& earlier) {
  return origin.error(
      word.column,
      in_quotes(word.text) + " contradicts " + earlier + ", given earlier for " + host.name,
      "write it only once");
}

Result<void> set_slots(const TextPiece& word, const TextPiece& value, const Origin& origin,
                       std::span<Host> hosts) {
  const int slots = IVY_TRY(parse_slots(value, origin));
  for (Host& host : hosts) {
    if (host.slots.value_or(slots) != slots)
      return written_twice(word, origin, host, "slots=" + std::to_string(*host.slots));
    host.slots = slots;
  }
  return {};
}

Error unknown_key(const TextPiece& word, const Origin& origin, std::string_view key) {
  if (key == "binding" || key == "ifname")
    return origin.error(
        word.column,
        in_quotes(key) + " is a keyword of MPICH's host files that ivyrun does not support",
        key == "binding" ? "leave it out; use --bind-to KIND to bind workers"
                         : "leave it out; use --iface NAME to choose the interface");
  if (key == "addr")
    return origin.error(word.column, "a host cannot have an address in addition to its name",
                        "write the address instead of the name, or define the name's address in "
                        "/etc/hosts or with HostName in ~/.ssh/config");
  return origin.error(word.column, "unknown key " + in_quotes(key),
                      "known keys: slots, gpus, max_slots, port, user");
}

// Parses "slots=4" and similar fields after the name.
Result<void> parse_key(const TextPiece& word, const Origin& origin, std::span<Host> hosts) {
  const std::size_t equals = word.text.find('=');
  const std::string_view key = word.text.substr(0, equals);
  if (to_int(word.text) &&
      std::all_of(hosts.begin(), hosts.end(), [](const Host& host) { return !host.slots; }))
    return set_slots(word, word, origin, hosts);  // LSF writes "host 4" for four slots.
  if (equals == std::string_view::npos)
    return origin.error(word.column, in_quotes(word.text) + " is not key=value",
                        "one host per line: \"name slots=N port=N user=NAME\"");
  const TextPiece value = word.sub(equals + 1);
  if (key == "slots" || key == "gpus") {
    return set_slots(word, value, origin, hosts);
  } else if (key == "port") {
    const std::uint16_t port = IVY_TRY(parse_port(value, origin));
    for (Host& host : hosts) {
      if (host.port != 0 && host.port != port)
        return written_twice(word, origin, host, "port=" + std::to_string(host.port));
      host.port = port;
    }
  } else if (key == "user") {
    if (!is_safe_user_name(value.text))
      return origin.error(value.column, in_quotes(value.text) + " is not a user name");
    for (Host& host : hosts) {
      if (!host.user.empty() && host.user != value.text)
        return written_twice(word, origin, host, "user=" + host.user);
      host.user = value.text;
    }
  } else if (key == "max_slots" || key == "max-slots") {
    const int max_slots = IVY_TRY(parse_slots(value, origin));
    for (Host& host : hosts) host.max_slots = max_slots;
  } else {
    return unknown_key(word, origin, key);
  }
  return {};
}

Result<void> parse_line(TextPiece line, const Origin& origin, std::vector<Host>& hosts) {
  line = trimmed(line.sub(0, line.text.find('#')));
  if (line.text.empty()) return {};
  const std::size_t first_new = hosts.size();
  const std::size_t name_end = std::min(line.text.find_first_of(" \t"), line.text.size());
  IVY_CHECK(parse_entries(line.sub(0, name_end), origin, hosts));
  TextPiece rest = trimmed(line.sub(name_end));
  while (!rest.text.empty()) {
    const std::size_t end = std::min(rest.text.find_first_of(" \t"), rest.text.size());
    IVY_CHECK(parse_key(rest.sub(0, end), origin, std::span(hosts).subspan(first_new)));
    rest = trimmed(rest.sub(end));
  }
  for (const Host& host : std::span(hosts).subspan(first_new))
    if (host.max_slots && host.slots.value_or(0) > *host.max_slots)
      return origin.error(line.column,
                          host.name + ": slots=" + std::to_string(*host.slots) +
                              " is more than max_slots=" + std::to_string(*host.max_slots));
  return {};
}

}  // namespace

Result<std::vector<Host>> parse_host_list(std::string_view text, const std::string& origin) {
  if (text.size() > kMaxHostListBytes) return too_long(origin);
  const Origin position{origin, 0};
  if (trimmed(TextPiece{text}).text.empty()) return position.error(1, "the list of hosts is empty");
  std::vector<Host> hosts;
  IVY_CHECK(parse_entries(TextPiece{text}, position, hosts));
  return merged(hosts, origin);
}

namespace {

// Returns an empty list if no line names a host.
Result<std::vector<Host>> parse_lines(std::string_view content, const std::string& path) {
  if (content.size() > kMaxHostListBytes) return too_long(path);
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (content.starts_with(kByteOrderMark)) content.remove_prefix(kByteOrderMark.size());
  std::vector<Host> hosts;
  for (std::size_t line = 1; !content.empty(); ++line)
    IVY_CHECK(parse_line(TextPiece{take_part(content, '\n')}, Origin{path, line}, hosts));
  return merged(hosts, path);
}

}  // namespace

Result<std::vector<Host>> parse_hostfile(std::string_view content, const std::string& path) {
  std::vector<Host> hosts = IVY_TRY(parse_lines(content, path));
  if (!hosts.empty()) return hosts;
  return Error{Code::kInvalidArgument, path + ": the file lists no hosts",
               "write one host per line, such as \"node01 slots=8\""};
}

Result<std::vector<Host>> parse_command_hosts(std::string_view output) {
  Result<std::vector<Host>> hosts = parse_lines(output, "--hosts-from");
  if (hosts.ok() && !hosts->empty()) return hosts;
  Error error =
      hosts.ok() ? Error{Code::kInvalidArgument, "--hosts-from: the command printed no hosts", {}}
                 : hosts.error();
  if (error.fix.empty())
    error.fix = "let the command print one host per line, such as \"node01 slots=8\"";
  return error;
}

std::vector<Host> fake_hosts(int count) {
  std::vector<Host> hosts;
  for (int number = 0; number < count; ++number) {
    Host host;
    host.name = "fake" + std::to_string(number);
    host.fake = number;
    host.origin = "--fake-hosts";
    hosts.push_back(std::move(host));
  }
  return hosts;
}

std::string hostfile_text(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts) {
    text += host.name.find(':') == std::string::npos ? host.name : "[" + host.name + "]";
    if (host.slots) text += " slots=" + std::to_string(*host.slots);
    if (host.max_slots) text += " max_slots=" + std::to_string(*host.max_slots);
    if (host.port != 0) text += " port=" + std::to_string(host.port);
    if (!host.user.empty()) text += " user=" + host.user;
    text += "\n";
  }
  return text;
}

}  // namespace ivy
