// SPDX-License-Identifier: Apache-2.0
// The supervisor's answer to Hello: facts about this host and the user's program, and reserved
// ports.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "agent/node/spawn/containment.h"
#include "agent/node/spawn/job_directory.h"
#include "agent/node/supervisor/supervisor_context.h"
#include "agent/node/workers/lease.h"
#include "proto/contract/status.h"
#include "proto/os/blocking.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Returns how long to look for a missing program on a network file system.
std::chrono::milliseconds retry_time(LinkPeer peer);

// Writes the token's bytes to a new 0400 file. Does nothing if the file exists.
Result<void> write_token_file(const std::string& path, const std::string& token);

// Reads files of the user and of the host, whose file systems may not respond: call it on a pool
// thread. Takes well under a millisecond plus the time to hash the script. On hosts other than the
// launcher's it waits some seconds for a script that a network file system does not show yet.
HostFacts inspect_host(const Hello& hello, LinkPeer peer, const BlockingPool::Label& label);

// Returns the part of the answer that does not depend on the host's files. Reserves the requested
// ports in `ports`; ports that it already holds are returned again. Thread: the loop's.
HelloOk begin_answer(const Hello& hello, const Containment& containment,
                     const JobDirectory& directory, JobPorts& ports);
// Adds the facts, and reserves ports for the requested number of workers, by default as many as the
// host has cores or accelerators. Thread: the loop's.
void add_facts(const Hello& hello, HostFacts found, JobPorts& ports, HelloOk& answer);

}  // namespace ivy
