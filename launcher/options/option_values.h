// SPDX-License-Identifier: Apache-2.0
// The values of flags: text to numbers, times and choices. Thread: any. Pure, except that --events
// is asked of the system. Errors (InvalidArgument) name the text and what is allowed; the caller
// adds the flag.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/options/option_types.h"
#include "proto/contract/status.h"

namespace ivy {

inline Error usage_error(const std::string& message, const std::string& fix = {}) {
  return Error{Code::kInvalidArgument, message, fix};
}

// Workers in one job: more than the largest machines have accelerators.
inline constexpr int kMaxWorkers = 1 << 18;
// At one restart every 30 s more than three days of failures.
inline constexpr int kMaxRestarts = 10'000;
// How often --on-failure replace starts a worker again without --max-restarts.
inline constexpr int kDefaultReplacements = 3;
// Longest time that a flag may ask for: a mistyped unit should not overflow a clock.
inline constexpr std::chrono::hours kMaxDuration{24 * 365};

// A decimal number within [low, high].
Result<int> parse_number(std::string_view text, int low, int high);

// "90" (seconds), "1.5s", "250ms", "30m", "12h", "2d".
Result<std::chrono::milliseconds> parse_duration(std::string_view text);

// "8", "auto", "gpu", "xpu", "cpu".
Result<PerHost> parse_per_host(std::string_view text);

// The workers of the job, a number; a word for those of a host is told its own flag.
Result<int> parse_num_proc(std::string_view text);

// "host", "nvlink", "switch"; "slot" is mpirun's word for the first.
Result<MapChoice> parse_map_by(std::string_view text);

// "none", "core", "l3", "numa", "socket", "auto", and what torchrun and srun call these.
Result<BindChoice> parse_bind_to(std::string_view text);

// "torch", "jax"...; "auto" is torch's.
// "tensorflow" for kTensorflow: the word of -B.
std::string profile_name(Profile profile);
Result<Profile> parse_profile(std::string_view text);

// The text is "all", "first-per-host", "failed", or a list such as "0,8-15".
Result<ShowRanks> parse_show_ranks(std::string_view text);

// A kind of label (auto, none, rank, host), or a template whose placeholders are all known.
Result<std::string> parse_label(std::string_view text);
// --output: what the files of ranks are called (launcher/report/placeholders.h).
Result<std::string> parse_output_pattern(std::string_view text);

// torchrun's --redirects and --tee: "0" to "3", or for local ranks "0:3,1:2".
Result<StreamChoice> parse_streams(std::string_view text);

// --events: "fd:N" of a descriptor that is open, or the path of a file, made absolute.
Result<std::string> parse_event_place(const std::string& text);

// The path of a file that ivyrun writes, made absolute.
Result<std::string> parse_file_place(const std::string& text);

// Words at blanks that stand in no quotes, without the quotes.
Result<std::vector<std::string>> quoted_words(std::string_view text);
// --wrap: words as a shell cuts them, also at quotes, whose placeholders are all known.
Result<std::vector<std::string>> parse_wrap(std::string_view text);

// --name: what fits into a path and a shell without quotes.
Result<std::string> parse_job_name(const std::string& text);

// Reads a range "A-B", or "A" for a single port.
Result<std::pair<std::uint16_t, std::uint16_t>> parse_port_range(std::string_view text);

// "1", "true", "yes", "on" and their opposites.
Result<bool> parse_switch(std::string_view text);

}  // namespace ivy
