// SPDX-License-Identifier: Apache-2.0
// The role `warden` from its arguments to its end. Thread: the process's only thread.
#pragma once

namespace ivy {

// argv: the program, "warden", and what parse_warden_arguments() (warden.h) takes; a null behind
// the last. Returns the exit code; the process should then _exit, since it may be a copy of a
// launcher.
int run_warden_role(int argc, char** argv);

}  // namespace ivy
