// SPDX-License-Identifier: Apache-2.0
// The sitecustomize of Python workers (sitecustomize.py beside this file): stacks on a signal,
// torch's store and flight record, JAX's start, mpi4py, and frameworks that would be alone in a
// world of one.
//
// A Python process that is stuck in C code cannot be asked anything, unless it has registered a
// signal handler beforehand. So that stacks can be had where no debugger is installed, Python
// workers find our `sitecustomize` at the end of PYTHONPATH, which registers the interpreter's own
// faulthandler for two real-time signals and then runs the sitecustomize that it hides.
// --no-python-hook leaves it out.
//
// The build puts it beside the programs and into the bundle (own_hook()): if each job wrote its
// own, it would wait for the file system twice, and every worker would compile it again.
//
// Nothing is written to the worker's own streams: the dump goes to a file in the job's directory.
//
// The hook also lets torch serve its flight record (agent/node/hang/flight_server.h), and lets its
// rank 0 serve the store where a script has set MASTER_PORT itself, or where ranks of a worker's
// own meet; rank 0 says so in one line. A launcher in a worker is left alone. Thread: the
// supervisor's.
#pragma once

#include <sys/types.h>

#include <string>

#include "agent/node/spawn/job_directory.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// The signals for all threads and, with the next number, for the main thread alone: SIGRTMIN + 11
// and + 12 of glibc, which no known program uses. A process that has not registered them would die
// of them, so they are sent only to processes that catch both and hold the file open.
inline constexpr int kStackSignal = 45;

// Appends the folder of the hook to PYTHONPATH: `installed` (own_hook()), or where that is empty
// one in the job's directory, into which the hook is written. False: it could not be written; a job
// without it runs as well.
bool add_python_hook(Environment& environment, const std::string& installed,
                     const JobDirectory& directory);

// Writes the hosts' names, each with its number of ranks, for the hook's messages; without the file
// they name ranks alone.
void write_rank_hosts(const HostPlan& plan, const JobDirectory& directory);

// The file that the hook of a worker's process writes to; the hook appends ".PID" itself.
std::string stack_file(const JobDirectory& directory, std::uint32_t generation, std::uint32_t rank);
// The socket of torch's worker server, from that file's whole name. It is there from the worker's
// first process group of torch's to its end; mode 0600.
std::string flight_socket(const std::string& stack_file);

// Adds variables for `ivyctl why`: the size of torch's flight record, unless the user has set it or
// its older name, and a file per process for NCCL's warnings, unless NCCL_DEBUG or NCCL_DEBUG_FILE
// is set.
void add_evidence_variables(Environment& environment, const JobDirectory& directory,
                            std::uint32_t generation);
// Adds this build's profiler plug-in for NCCL (comm/nccl_profiler), unless the user has one or
// wants none (IVY_NCCL_PROFILER=off). `plugin`: its path; empty: there is none.
void add_nccl_profiler(Environment& environment, const std::string& plugin);
// The last warning of that process's NCCL; empty: none. At most 300 bytes.
std::string last_nccl_warning(const Environment& environment, pid_t pid);

}  // namespace ivy
