// SPDX-License-Identifier: Apache-2.0
// The relay: copies bytes between a transport (its standard input and output, opened by sshd or by
// ivyrun on the same host) and the command socket of a job's supervisor, without interpreting them.
//
//   first line of standard input:  IVYOPEN 1 new|reattach JOBID HOST\n
//   new       starts a warden, detached from this session; reattaches if one is running already
//   reattach  connects to the command socket
//
// A failure is reported as one line on standard output: kFailurePrefix (warden.h), a text, a
// newline.
//
// The supervisor learns from its socket how the connection ended:
// - A half-close: standard input ended (standard output may break with it). The supervisor may
//   still send, until it has been silent for 5 s.
// - Both directions close: only standard output broke, or the relay exited.
//
// Thread: the process's only thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/contract/status.h"

namespace ivy {

// Exit codes.
inline constexpr int kRelayNoSuchJob = 3;
inline constexpr int kRelayFailed = 4;
// Limits of the first line.
inline constexpr std::size_t kOpenLineMaxBytes = 128;
inline constexpr int kOpenLineTimeoutMs = 20'000;
// How long the supervisor may be silent after the launcher has closed its side.
inline constexpr int kHalfCloseSilenceMs = 5'000;
// Standard input and output of a dying session break one after the other, not at the same instant.
inline constexpr int kBreakTogetherMs = 200;
inline constexpr std::size_t kRelayBufferBytes = 256u << 10;

enum class OpenVerb { kNew, kReattach };

struct OpenLine {
  OpenVerb verb = OpenVerb::kNew;
  std::string job_id;
  std::uint32_t host = 0;
  pid_t step_task = 0;  // The task of the scheduler's step that runs us. Not part of the line.
};

// Parses the line without its newline. Pure.
Result<OpenLine> parse_open_line(std::string_view line);

// Runs the whole role. Returns the process's exit code: 0, kRelayNoSuchJob or kRelayFailed.
int run_relay();

// Returns a connected command socket of the job. With kNew, starts a warden as our child unless the
// job is already running here. Returns NotFound if kReattach is requested and the job is not
// running here.
Result<int> open_job(const OpenLine& request);

// Copies in both directions until one end closes, as described at the top. `pending` was already
// read from the input and is sent to the socket first. Sets O_NONBLOCK on all three. Returns 0.
int copy_both_directions(int input_fd, int output_fd, int socket_fd, std::string pending);

}  // namespace ivy
