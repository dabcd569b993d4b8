// SPDX-License-Identifier: Apache-2.0
// `ivy-node fetch`: finds the files of --fetch on one host and sends them to the launcher. The
// supervisor starts it (supervisor/host_task.h) and copies its standard input and output from and
// to the launcher; proto/wire/fetch.proto has the messages. It sends parts only within the
// launcher's credit. When everything is sent, it waits for the end of its input.
#pragma once

namespace ivy {

// Returns the exit code.
int run_fetch();

}  // namespace ivy
