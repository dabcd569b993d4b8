// SPDX-License-Identifier: Apache-2.0
// Parsers of flag values: text to numbers, times and choices. Thread: any. Pure, except that paths
// and descriptors are checked with the system. Errors (InvalidArgument) contain the text and the
// allowed values; the caller adds the flag.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/options/option_types.h"
#include "launcher/options/pattern.h"
#include "proto/contract/status.h"

namespace ivy {

inline Error usage_error(const std::string& message, const std::string& fix = {}) {
  return Error{Code::kInvalidArgument, message, fix};
}

// More than the number of accelerators in the largest machines.
inline constexpr int kMaxWorkers = 1 << 18;
// More than three days of failures at one restart every 30 s.
inline constexpr int kMaxRestarts = 10'000;
// Number of restarts with --on-failure replace if --max-restarts is not given.
inline constexpr int kDefaultReplacements = 3;
// Longest time that a flag may specify, so that a mistyped unit does not overflow a clock.
inline constexpr std::chrono::hours kMaxDuration{24 * 365};

// Quotes a text for a message. Names invisible characters ("2<U+00A0>"), which editors and web
// pages put where a blank was meant.
std::string in_quotes(std::string_view text);

// Parses a decimal number within [low, high].
Result<int> parse_number(std::string_view text, int low, int high);

// Parses "90" (seconds), "1.5s", "250ms", "30m", "12h", "2d", "1h30m", "01:30:00".
Result<std::chrono::milliseconds> parse_duration(std::string_view text);

// Parses "8", "auto", "gpu", "xpu", "cpu".
Result<PerHost> parse_per_host(std::string_view text);

// Parses the number of workers of the job. If the text is valid only as a number per host, such as
// "gpu", the error names the flag for that.
Result<int> parse_num_proc(std::string_view text);

// Parses "host", "nvlink", "switch", and mpirun's "slot", which means "host".
Result<MapChoice> parse_map_by(std::string_view text);

// Parses "none", "core", "l3", "numa", "socket", "auto", and other launchers' names for these.
Result<BindChoice> parse_bind_to(std::string_view text);

// Returns a framework's name in -B: "torch", "jax", "tensorflow"...
std::string profile_name(Profile profile);
// Parses a name in -B; "auto" means torch.
Result<Profile> parse_profile(std::string_view text);

// Parses "all", "first-per-host", "failed", or a list such as "0,8-15".
Result<ShowRanks> parse_show_ranks(std::string_view text);

// Parses the ranks that read standard input: "0", "all", "none".
Result<InputChoice> parse_input(std::string_view text);

// Parses a kind of label (auto, none, rank, host), or a template with known placeholders.
Result<std::string> parse_label(std::string_view text);
// Parses the pattern of the names of ranks' files for --output (launcher/report/placeholders.h).
Result<std::string> parse_output_pattern(std::string_view text);

// Parses torchrun's --redirects and --tee: "0" to "3", or by local rank "0:3,1:2".
Result<StreamChoice> parse_streams(std::string_view text);

// Parses the target of --events: "fd:N" for an open descriptor, or the path of a file, which is
// made absolute.
Result<std::string> parse_event_target(const std::string& text);

// Makes the path of a file that ivyrun will write absolute.
Result<std::string> absolute_log_path(const std::string& text);

// Splits a text at blanks outside quotes, and removes the quotes.
Result<std::vector<std::string>> quoted_words(std::string_view text);
// Splits the text of --wrap like quoted_words(), and rejects unknown placeholders.
Result<std::vector<std::string>> parse_wrap(std::string_view text);
// Parses the Python modules of --preload: "torch,torch.distributed".
Result<std::vector<std::string>> parse_modules(std::string_view text);

// Parses the "NAME=VALUE" of --rlimit, such as "nofile=65536", "stack=unlimited", "memlock=8G".
Result<RequestedLimit> parse_limit(std::string_view text);

// Accepts a text for --name that can be used in a path and in a shell without quotes.
Result<std::string> parse_job_name(const std::string& text);

// Parses a range "A-B", or "A" for a single port.
Result<std::pair<std::uint16_t, std::uint16_t>> parse_port_range(std::string_view text);

// Compiles the pattern of --progress-match, which needs a group for the number.
Result<Pattern> parse_progress_pattern(std::string_view text);

// Parses "500M", "2G", "1.5GiB", "4096": units are powers of 1024.
Result<std::uint64_t> parse_size(std::string_view text);

// Parses the path of --stage-to, which is absolute or starts with "~/".
Result<std::string> parse_stage_target(const std::string& text);
// Parses a mount of --container-mount, such as "/data:/data:ro".
Result<MountChoice> parse_container_mount(std::string_view text);

// Parses "1", "true", "yes", "on" and their opposites.
Result<bool> parse_switch(std::string_view text);

}  // namespace ivy
