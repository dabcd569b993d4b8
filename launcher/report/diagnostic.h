// SPDX-License-Identifier: Apache-2.0
// One message for the user: what, where, why, and what to do. Pure; thread: any.
//
//   ivyrun: error[IVY-H003]: 2 of 32 hosts did not answer in 30 s
//     where: node[07,19], ssh connect
//     cause: Permission denied (publickey)
//     fix:   ssh -o BatchMode=yes node07 true
#pragma once

#include <string>

#include "proto/contract/remote_text.h"

namespace ivy {

enum class Severity { kNote, kWarning, kError };

struct Diagnostic {
  Severity severity = Severity::kError;
  std::string id =
      {};  // "IVY-H003": stable, a row of message_table.cc. Empty: the message has none.
  std::string what = {};   // One sentence without a full stop.
  std::string where = {};  // Host, rank, step; may be empty.
  std::string cause = {};  // Raw text of ssh or the operating system; may have several lines.
  std::string fix = {};    // One to three commands or actions, one per line.
  int exit_code = 0;       // The exit code of ivyrun if this ends the job.
};

// Returns the first line above, without "ivyrun: " and without a newline. Escapes control
// characters.
std::string headline(const Diagnostic& diagnostic);
// Returns the lines above, ending with a newline. Escapes control characters.
std::string render(const Diagnostic& diagnostic);

}  // namespace ivy
