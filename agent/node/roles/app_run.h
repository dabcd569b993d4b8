// SPDX-License-Identifier: Apache-2.0
// The role `ivy-node app-run`: runs one rank's processes for --app and --role.
//
//   ivy-node app-run FILE --path PROGRAM -- ARGUMENTS...
//
// FILE is an AppPlan. Its servers start one after the other, each when the previous one is ready;
// servers on other hosts wait for those of the first host. Then the client starts: the program
// after `--`. When it exits, the app ends on all hosts: servers get TERM, and KILL after a grace
// period. All of them have separate process groups, but are children of this process, so the job's
// containment includes them.
//
// The ranks synchronize through the keys app/ready, app/end and app/done/RANK of the job's store.
// Not thread-safe; AppStore has its own threads.
#pragma once

#include "agent/node/roles/app_keys.h"

namespace ivy {

// Takes the argv after "app-run". Returns the exit code. If a signal killed the client, this
// process kills itself with the same signal.
int run_app(int argc, char** argv, AppStore& store);

}  // namespace ivy
