// SPDX-License-Identifier: Apache-2.0
// `ivy-node stage`: receives the files of --stage on one host. The supervisor starts it
// (supervisor/host_task.h) and copies its standard input and output from and to the launcher;
// proto/wire/stage.proto has the messages. Blocks arrive from the launcher, or from the host before
// this one in a chain; each is passed on to the next host before it is written. Once the tree is
// complete, the process only holds the tree's lock, until the supervisor exits.
#pragma once

namespace ivy {

// Returns the exit code.
int run_stage();

}  // namespace ivy
