// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/jobs/agent_job_record.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>

#include "agent/node/roles/warden.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/os/user_directories.h"
#include "proto/wire/agent.pb.h"

namespace ivy {
namespace {

constexpr std::string_view kFirstLine = "ivy-agent job 1";
constexpr std::string_view kLastLine = "end";
constexpr std::size_t kEscapeLength = 4;  // Bytes are escaped as "\xNN".

Error damaged(const std::string& what) {
  return Error{Code::kDataLoss, "invalid job record: " + what};
}

std::string utc(std::int64_t unix_s) {
  const std::time_t time = static_cast<std::time_t>(unix_s);
  std::tm parts{};
  char text[32];
  if (gmtime_r(&time, &parts) == nullptr) return std::to_string(unix_s);
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return std::string(text, length);
}

// Quoted, so blanks and commas may stay.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char byte : text) {
    if (byte == ' ' || byte == ',')
      out += byte;
    else
      out += escape_value(std::string_view(&byte, 1));
  }
  return out + "\"";
}

std::string joined_hosts(const agent::v1::JobDescription& job) {
  std::string hosts;
  for (const std::string& host : job.hosts()) {
    if (!hosts.empty()) hosts += ',';
    hosts += escape_value(host);
  }
  const std::int64_t unnamed = std::int64_t{job.host_count()} - job.hosts_size();
  if (unnamed > 0) hosts += ",+" + std::to_string(unnamed);
  return hosts;
}

using Fields = std::map<std::string, std::string, std::less<>>;

Result<Fields> fields_of(std::string_view text) {
  Fields fields;
  bool is_first = true;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return damaged("the last line is incomplete");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (is_first && line != kFirstLine) return damaged("the first line is wrong");
    if (line == kLastLine) {
      if (!text.empty()) return damaged("text follows the last line");
      return fields;
    }
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos) return damaged("it has a line without a value");
    if (!is_first)
      fields[std::string(line.substr(0, blank))] = IVY_TRY(unescape_value(line.substr(blank + 1)));
    is_first = false;
  }
  return damaged("it is incomplete");
}

}  // namespace

std::string escape_value(std::string_view bytes) {
  constexpr std::string_view kSpecial = " \"\\,";
  std::string text;
  text.reserve(bytes.size());
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    if (value > 0x20 && value < 0x7f && kSpecial.find(byte) == std::string_view::npos) {
      text += byte;
      continue;
    }
    text += "\\x" + hexadecimal({&byte, 1});
  }
  return text;
}

Result<std::string> unescape_value(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\\') {
      bytes += text[at];
      continue;
    }
    const std::string_view escape = text.substr(at, kEscapeLength);
    const std::string_view digits = escape.substr(std::min<std::size_t>(escape.size(), 2));
    if (escape.size() != kEscapeLength || escape[1] != 'x' || !is_hexadecimal(digits))
      return damaged("it has an invalid escape sequence");
    bytes += from_hexadecimal(digits);
    at += kEscapeLength - 1;
  }
  return bytes;
}

std::string encode_job_record(const JobRecord& record) {
  std::string text(kFirstLine);
  text += '\n';
  const auto line = [&text](std::string_view name, std::string_view value) {
    text += name;
    text += ' ';
    text += escape_value(value);
    text += '\n';
  };
  line("job", record.job_id);
  line("host", std::to_string(record.host));
  line("opened", std::to_string(record.opened_at));
  line("machine", record.machine);
  line("boot", record.boot_id);
  line("certificate", record.certificate);
  line("from", record.from);
  line("description", record.description);
  text += kLastLine;
  text += '\n';
  return text;
}

Result<JobRecord> parse_job_record(std::string_view text) {
  if (text.size() > kMaxJobRecordBytes) return damaged("it is too long");
  const Fields fields = IVY_TRY(fields_of(text));
  const auto value = [&fields](std::string_view name) {
    const auto found = fields.find(name);
    return found == fields.end() ? std::string() : found->second;
  };
  const auto host = to_number<std::uint32_t>(value("host"));
  const auto opened_at = to_number<std::int64_t>(value("opened"));
  JobRecord record{.job_id = value("job"),
                   .machine = value("machine"),
                   .boot_id = value("boot"),
                   .certificate = value("certificate"),
                   .from = value("from"),
                   .description = value("description")};
  if (!is_job_id(record.job_id) || !host || !opened_at)
    return damaged("the job, host or time is invalid");
  record.host = *host;
  record.opened_at = *opened_at;
  return record;
}

std::string audit_line(const JobRecord& record, std::int64_t ended_at, std::string_view outcome) {
  agent::v1::JobDescription job;
  if (!job.ParseFromString(record.description)) job.Clear();
  return "audit: job=" + record.job_id + " host=" + std::to_string(record.host) +
         " certificate=" + escape_value(record.certificate) + " from=" + escape_value(record.from) +
         " user=" + escape_value(job.user()) + " hosts=" + joined_hosts(job) +
         " command_sha256=" + escape_value(job.command_sha256()) +
         " opened=" + utc(record.opened_at) + " ended=" + utc(ended_at) +
         " outcome=" + quoted(outcome);
}

std::string outcome_of(int exit_code) {
  switch (exit_code) {
    case kSupervisorOk:
      return "all workers succeeded";
    case kSupervisorLeftovers:
      return "processes are left that cannot be ended";
    case kWardenFailed:
      return "the supervisor could not start";
    case kSupervisorWorkerFailed:
      return "a worker failed";
    case kSupervisorStopped:
      return "stopped before its workers had ended";
    case kSupervisorLauncherLost:
      return "ended because the launcher was lost";
    case kSupervisorNothingRan:
      return "no worker was started";
    default:
      break;
  }
  if (exit_code > 128) return "the supervisor was killed by " + signal_name(exit_code - 128);
  return "the supervisor failed with " + std::to_string(exit_code);
}

}  // namespace ivy
