// SPDX-License-Identifier: Apache-2.0
// `ivy-node progress`: finds the newest file of --progress-file. The supervisor starts it
// (supervisor/host_task.h) and copies its standard input and output from and to the launcher;
// proto/wire/progress.proto has the messages.
//
// Thread: any; blocks for as long as the file systems do.
#pragma once

#include "proto/wire/progress.pb.h"

namespace ivy {

// Answers one question. Patterns match as those of --fetch (fetch_search.h), so a directory stands
// for the files below it.
ProgressAnswer newest_file(const ProgressQuestion& question);

// Returns the exit code.
int run_progress();

}  // namespace ivy
