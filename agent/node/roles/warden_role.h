// SPDX-License-Identifier: Apache-2.0
// Runs the role `warden`, starting with its arguments. Thread: the process's only thread.
#pragma once

namespace ivy {

// argv: the program, "warden", the arguments of parse_warden_arguments() (warden.h), and a null
// pointer. Returns the exit code; the process should then call _exit(), since it may be a copy of a
// launcher.
int run_warden_role(int argc, char** argv);

}  // namespace ivy
