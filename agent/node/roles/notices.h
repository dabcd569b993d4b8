// SPDX-License-Identifier: Apache-2.0
// The role "notices": polls the metadata service of the cloud that this machine is in, for the
// supervisor (--watch-notices). Writes a line for each change to standard output:
//
//   notice DEADLINE_NS SOURCE REASON      separated by tabs; the time of the monotonic clock, or 0
//   withdrawn 0 SOURCE REASON
//   note TEXT                             the service does not answer; written once
//
// It runs until its reader, or its parent, exits. Thread: the main thread of its process.
#pragma once

namespace ivy {

// service: "aws", "gcp" or "azure". Returns the exit code: kExitUsage for another name.
int run_notices(const char* service);

}  // namespace ivy
