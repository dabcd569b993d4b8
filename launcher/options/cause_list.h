// SPDX-License-Identifier: Apache-2.0
// The lists of --restart-on, --never-restart and --condemn-on: causes for the end of an attempt.
// Pure; thread: any.
//
//   LIST   CAUSE[,CAUSE...]
//   CAUSE  7 | 1-127     exit code of the rank that failed first (128 + N for signal N)
//          exit          any exit code, without signals
//          signal        any signal
//          SIGSEGV       one signal, also as the exit code of a shell
//          oom           the kernel killed the rank because memory ran out
//          xid | xid:79  an Xid of a GPU of that rank's host, any or this one
//          host-lost, store-lost, stall
//          /REGEX/       a match in the last 64 KiB of the rank's standard error
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/pattern.h"
#include "proto/contract/exit_code.h"

namespace ivy {

enum class CauseKind {
  kCode,
  kAnyExit,
  kAnySignal,
  kSignal,
  kOutOfMemory,
  kXid,
  kHostLost,
  kStoreLost,
  kStall,
  kOutput
};

struct Cause {
  CauseKind kind = CauseKind::kCode;
  int low = 0;  // Exit codes from low to high; the signal; the Xid, or 0 for any.
  int high = 0;
  std::optional<Pattern> output;
  std::string text;  // As typed.
};

// The end of an attempt, as far as a cause can describe it.
struct AttemptCause {
  // Of the rank that failed first; empty if the attempt ended for another reason.
  std::optional<ExitStatus> status = {};
  bool out_of_memory = false;
  std::vector<unsigned> xids = {};    // Of GPUs of that rank's host.
  std::string_view stderr_tail = {};  // The end of that rank's standard error.
  bool host_lost = false;
  bool store_lost = false;
  bool has_stalled = false;
};

// Parses a LIST. InvalidArgument names the CAUSE that is wrong, and the known ones.
Result<std::vector<Cause>> parse_cause_list(std::string_view text);

// The same for --condemn-on, which needs a rank that failed first: rejects host-lost, store-lost
// and stall as well.
Result<std::vector<Cause>> parse_condemning_causes(std::string_view text);

// Returns the text of a list, as typed.
std::string cause_list_text(const std::vector<Cause>& list);

// Returns the first cause in the list that describes the end of the attempt; null: none.
const Cause* find_cause(const std::vector<Cause>& list, const AttemptCause& attempt);

}  // namespace ivy
