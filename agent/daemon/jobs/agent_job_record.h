// SPDX-License-Identifier: Apache-2.0
// The agent's record of a job, which tells the next agent the job's owner, and the audit line at
// its end. Thread: any. Pure: values and texts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/contract/status.h"

namespace ivy {

struct JobRecord {
  std::string job_id;
  std::uint32_t host = 0;
  std::int64_t opened_at = 0;  // In seconds since 1970, for the list.
  std::string machine;         // Name of the host that it runs on; empty in records of 0.1.0.
  std::string boot_id;         // Identifies the boot of the kernel that the job runs under.
  std::string certificate;     // Caller::certificate() of the launcher that opened it.
  std::string from;            // The launcher's address.
  std::string description;     // The received JobDescription in protobuf's encoding.
};

// Longest text that is read back. A description has at most 64 KiB (open_call.cc), which escaping
// can multiply by four.
inline constexpr std::size_t kMaxJobRecordBytes = 1u << 20;

// Writes one "name value" per line, with the values escaped. The last line marks the text as
// complete.
std::string encode_job_record(const JobRecord& record);
// DataLoss: truncated, or not in our format.
Result<JobRecord> parse_job_record(std::string_view text);

// "audit: job=... host=... certificate=... from=... user=... hosts=... command_sha256=...
// opened=... ended=... outcome="..."", with times in UTC. A description that cannot be read leaves
// its parts empty.
std::string audit_line(const JobRecord& record, std::int64_t ended_at, std::string_view outcome);

// Describes a supervisor's exit code (supervisor_start.h, warden.h) in words.
std::string outcome_of(int exit_code);

// Writes blanks, quotes, commas, backslashes and all but printable ASCII as \xNN. A user's bytes
// can then neither end a value nor begin another.
std::string escape_value(std::string_view bytes);
// Fails with DataLoss if an escape is malformed.
Result<std::string> unescape_value(std::string_view text);

}  // namespace ivy
