// SPDX-License-Identifier: Apache-2.0
// The sitecustomize of Python workers (sitecustomize.py in this folder): stacks on a signal,
// torch's store and flight record, JAX's start, mpi4py, and frameworks that would otherwise start
// in a world of one rank.
//
// A Python process that is stuck in C code cannot be queried unless it has registered a signal
// handler beforehand. To provide stacks on hosts without a debugger, Python workers find our
// `sitecustomize` at the end of PYTHONPATH. It registers the interpreter's faulthandler for two
// real-time signals, and then runs the sitecustomize that it hides. --no-python-hook disables it.
//
// The build puts it next to the programs and into the bundle (own_hook()): if each job wrote a
// copy, it would wait for the file system twice, and every worker would compile it again.
//
// Nothing is written to the worker's own streams: the dump goes to a file in the job's directory.
//
// The hook also makes torch serve its flight record (agent/node/hang/flight_client.h). It makes
// torch's rank 0 serve the store if a script has set MASTER_PORT itself, or if the ranks are
// processes started by a worker; rank 0 prints one line about it. It does not interfere with
// another launcher that runs in a worker (torchrun, mpirun). Thread: the supervisor's.
#pragma once

#include <sys/types.h>

#include <string>

#include "agent/node/spawn/job_directory.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// The signals for all threads and, with the next number, for the main thread only: glibc's SIGRTMIN
// + 11 and + 12, which no known program uses. They would kill a process without handlers, so they
// are sent only to processes that catch both and hold the file open.
inline constexpr int kStackSignal = 45;

// Appends the hook's folder to PYTHONPATH: `installed` (own_hook()), or, if that is empty, a folder
// in the job's directory to which the hook is written. Returns false if it cannot be written; a job
// also runs without it.
bool add_python_hook(Environment& environment, const std::string& installed,
                     const JobDirectory& directory);

// Writes the hosts' names, each with its number of ranks, for the hook's messages. Without this
// file the messages name only ranks.
void write_rank_hosts(const HostPlan& plan, const JobDirectory& directory);

// Returns the file to which the hook of a worker's process writes; the hook appends ".PID".
std::string stack_file(const JobDirectory& directory, std::uint32_t generation, std::uint32_t rank);
// Returns the socket of torch's worker server for the full name of that file. It exists, with mode
// 0600, from the creation of the worker's first torch process group until its exit.
std::string flight_socket(const std::string& stack_file);

// Adds variables for `ivyctl why`: the size of torch's flight record, unless the user has set it or
// its older name, and a file per process for NCCL's warnings, unless NCCL_DEBUG or NCCL_DEBUG_FILE
// is set.
void add_evidence_variables(Environment& environment, const JobDirectory& directory,
                            std::uint32_t generation);
// Adds this build's NCCL profiler plug-in (comm/nccl_profiler), unless the user has set another one
// or disabled it (IVY_NCCL_PROFILER=off). `plugin`: its path; empty if there is none.
void add_nccl_profiler(Environment& environment, const std::string& plugin);
// Returns the last NCCL warning of that process, at most 300 bytes; empty if there is none.
std::string last_nccl_warning(const Environment& environment, pid_t pid);

}  // namespace ivy
