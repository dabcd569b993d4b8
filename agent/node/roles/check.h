// SPDX-License-Identifier: Apache-2.0
// `ivy-node check`: checks one host before a start or a restart. The supervisor starts it
// (supervisor/host_task.h) and copies its standard input and output from and to the launcher;
// proto/wire/check.proto has the messages. The checks run one after the other. When its input ends,
// it kills whatever is left of them, and exits.
#pragma once

namespace ivy {

// Returns the exit code.
int run_check();

}  // namespace ivy
