// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/kernel_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "agent/devices/found_devices.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// A read() returns one record, of at most 8 KiB.
constexpr std::size_t kRecordBytes = 8u << 10;
// More than the kernel keeps by default; a bound in case records are written as fast as they are
// read.
constexpr std::size_t kMaxRecords = 1u << 16;

// Returns the text between `name` and the next comma; empty if `name` is missing or the driver does
// not know the value.
std::string_view value_of(std::string_view text, std::string_view name) {
  const std::size_t at = text.find(name);
  if (at == std::string_view::npos) return {};
  std::string_view value = text.substr(at + name.size());
  value = value.substr(0, value.find(','));
  while (value.starts_with('\'')) value.remove_prefix(1);
  while (value.ends_with('\'')) value.remove_suffix(1);
  return value.starts_with('<') ? std::string_view{} : value;
}

}  // namespace

std::optional<XidRecord> parse_xid_record(std::string_view record) {
  std::string_view text = record;
  const std::string_view header = take_part(text, ';');
  std::string_view fields = header;
  take_part(fields, ',');
  take_part(fields, ',');
  const std::optional<std::uint64_t> micros = to_number<std::uint64_t>(take_part(fields, ','));
  const std::size_t at = text.find("Xid (PCI:");
  if (!micros || at == std::string_view::npos) return std::nullopt;
  XidRecord xid;
  xid.is_switch = at > 0 && text[at - 1] == 'S';
  if (!xid.is_switch && !text.starts_with("NVRM:")) return std::nullopt;
  text.remove_prefix(at + std::string_view("Xid (PCI:").size());
  const std::size_t end = text.find("): ");
  if (end == std::string_view::npos) return std::nullopt;
  xid.bdf = normal_bdf(std::string(text.substr(0, end)));
  text.remove_prefix(end + 3);
  const std::optional<unsigned> number = to_number<unsigned>(take_part(text, ','));
  if (!number) return std::nullopt;
  xid.number = *number;
  xid.at_ns = *micros * 1'000;
  const std::string pid(value_of(text, "pid="));
  const std::string name(value_of(text, "name="));
  if (!pid.empty()) xid.process = "pid " + pid + (name.empty() ? "" : " (" + name + ")");
  return xid;
}

KernelLog::KernelLog(const std::string& root)
    : file_(open((root + "/dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  skip();
}

void KernelLog::skip() {
  if (file_) lseek(file_.get(), 0, SEEK_END);
}

std::vector<XidRecord> KernelLog::read_new() {
  std::vector<XidRecord> records;
  std::array<char, kRecordBytes> piece;
  std::string text;  // An incomplete line; only a test's file ends in one.
  for (std::size_t count = 0; file_ && count < kMaxRecords; ++count) {
    const ssize_t bytes = read(file_.get(), piece.data(), piece.size());
    // EPIPE: the kernel has overwritten unread records; the next read() continues after them.
    if (bytes < 0 && (errno == EPIPE || errno == EINTR)) continue;
    if (bytes <= 0) break;
    text.append(piece.data(), static_cast<std::size_t>(bytes));
    std::string_view left = text;
    while (left.find('\n') != std::string_view::npos)
      if (std::optional<XidRecord> xid = parse_xid_record(take_part(left, '\n')))
        records.push_back(*std::move(xid));
    text = left;
  }
  return records;
}

}  // namespace ivy
