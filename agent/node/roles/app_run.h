// SPDX-License-Identifier: Apache-2.0
// The role `ivy-node app-run`: what one rank runs for --app and --role.
//
//   ivy-node app-run FILE --path PROGRAM -- ARGUMENTS...
//
// FILE is an AppPlan. Its servers start one after the other, each when the one before is ready;
// those of other hosts wait for the first host's. Then comes the client, the program behind `--`,
// whose end is the end of the app on all hosts: servers get TERM, and after a grace KILL. They are
// children in process groups of their own, so the job's containment holds them too.
//
// Ranks meet in the job's store by the keys app/ready, app/end and app/done/RANK.
// Thread: one; AppStore has others.
#pragma once

#include "agent/node/roles/app_keys.h"

namespace ivy {

// Takes the argv after "app-run". Returns the exit code; a client that a signal has killed makes
// this process end by the same signal.
int run_app(int argc, char** argv, AppStore store);

}  // namespace ivy
