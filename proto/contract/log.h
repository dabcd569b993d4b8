// SPDX-License-Identifier: Apache-2.0
// Log lines about ivyrun itself, for diagnosis: "ivyrun: ..." on standard error. Messages that
// every user must read are not log lines: see launcher/report/diagnostic.h. spdlog and fmt are
// compiled once, in log.cc, and no other file includes them. Thread: any.
#pragma once

#include <string_view>

namespace ivy::log {

// Sets the first word of each line; "ivyrun" by default.
void set_program(std::string_view program);

// `verbosity` is the number of -v options: 1 shows debug lines, 2 or more also trace lines.
void set_verbosity(int verbosity);

// Returns true if debug() prints anything. Check it before building an expensive line.
bool shows_debug();
// Returns true if trace() prints anything.
bool shows_trace();

// Logs one line, without its newline; control characters become \xNN
// (proto/contract/remote_text.h). Never log a token or a value of a user's environment.
void debug(std::string_view text);
void trace(std::string_view text);

}  // namespace ivy::log
