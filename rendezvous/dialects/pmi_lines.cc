// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/dialects/pmi_lines.h"

#include <algorithm>

#include "proto/contract/text.h"

namespace ivy::store {
namespace {

constexpr std::string_view kCommand = "cmd=";
constexpr std::string_view kMultiline = "mcmd=";
constexpr std::string_view kEnd = "endcmd";
// Length of the prefix of each PMI-2 message, which holds the message's length.
constexpr std::size_t kPmi2Head = 6;

Error not_pmi(const std::string& what) { return Error{Code::kInvalidArgument, what}; }

bool goes_to_the_end(std::string_view name) {
  return name == "value" || name == "message" || name == "error_msg";
}

bool is_pmi2(std::string_view bytes) {
  return bytes.size() >= kPmi2Head &&
         bytes.substr(0, kPmi2Head).find_first_not_of("0123456789 ") == std::string_view::npos;
}

void read_pairs(std::string_view line, PmiRequest& request) {
  while (!line.empty()) {
    const std::size_t blank = std::min(line.find(' '), line.size());
    const std::size_t equals = line.find('=');
    if (equals >= blank) {  // Ignore words without a value.
      line.remove_prefix(std::min(blank + 1, line.size()));
      continue;
    }
    const std::string_view name = line.substr(0, equals);
    const std::size_t end = goes_to_the_end(name) ? line.size() : blank;
    request.values.emplace(name, line.substr(equals + 1, end - equals - 1));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
}

}  // namespace

std::string_view PmiRequest::value(std::string_view name) const {
  const auto found = values.find(name);
  return found == values.end() ? std::string_view() : std::string_view(found->second);
}

std::optional<int> PmiRequest::number(std::string_view name) const {
  return to_number<int>(value(name));
}

Result<PmiRequest> parse_pmi_line(std::string_view line) {
  PmiRequest request;
  request.is_multiline = line.starts_with(kMultiline);
  const std::string_view head = request.is_multiline ? kMultiline : kCommand;
  if (!line.starts_with(head) || line.find('\0') != std::string_view::npos)
    return not_pmi("a line that is not PMI-1");
  line.remove_prefix(head.size());
  const std::size_t end = std::min(line.find(' '), line.size());
  request.command = line.substr(0, end);
  if (request.command.empty()) return not_pmi("a line without a command");
  read_pairs(line.substr(std::min(end + 1, line.size())), request);
  return request;
}

Result<std::optional<std::string>> PmiReader::next_line() {
  const std::size_t end = bytes_.find('\n');
  if (std::min(end, bytes_.size()) > kMaxPmiLine)
    return not_pmi("a line of more than " + std::to_string(kMaxPmiLine) + " bytes");
  if (end == std::string::npos) return std::optional<std::string>();
  std::string line = bytes_.substr(0, end);
  bytes_.erase(0, end + 1);
  return std::optional(std::move(line));
}

Result<std::optional<PmiRequest>> PmiReader::next() {
  while (true) {
    if (!spawn_ && is_pmi2(bytes_)) return Error{Code::kFailedPrecondition, "PMI-2 framing"};
    const std::optional<std::string> line = IVY_TRY(next_line());
    if (!line) return std::optional<PmiRequest>();
    if (spawn_) {
      std::optional<PmiRequest> done = IVY_TRY(add_to_spawn(*line));
      if (done) return done;
      continue;
    }
    PmiRequest request = IVY_TRY(parse_pmi_line(*line));
    if (!request.is_multiline) return std::optional(std::move(request));
    spawn_ = std::move(request);
    spawn_bytes_ = 0;
  }
}

Result<std::optional<PmiRequest>> PmiReader::add_to_spawn(const std::string& line) {
  spawn_bytes_ += line.size() + 1;
  if (spawn_bytes_ > kMaxPmiSpawn)
    return not_pmi("a command of more than " + std::to_string(kMaxPmiSpawn) + " bytes");
  if (line != kEnd) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos)
      spawn_->values.insert_or_assign(line.substr(0, equals), line.substr(equals + 1));
    return std::optional<PmiRequest>();
  }
  std::optional<PmiRequest> done = std::move(spawn_);
  spawn_.reset();
  return done;
}

}  // namespace ivy::store
