// A Python process that is stuck in C code cannot be asked anything, unless it has said beforehand
// what to do on a signal. So that stacks can be had where no debugger is installed, Python workers
// find a `sitecustomize` of ours at the end of PYTHONPATH, which registers the interpreter's own
// faulthandler for two real-time signals and then runs the sitecustomize that it stands in front
// of. --no-python-hook leaves it out.
//
// The build writes it beside the programs and into the bundle (own_hook()): a job that wrote its
// own would wait for the file system twice, and every worker would compile it anew.
//
// Nothing is written to the worker's own streams: the dump goes to a file in the job's directory.
//
// It also lets torch's rank 0 serve where a script has set MASTER_PORT itself, or where ranks of a
// worker's own meet; rank 0 says so in one line. A launcher in a worker is left alone.
// Thread: the supervisor's.
#pragma once

#include <sys/types.h>

#include <string>

#include "agent/node/spawn/job_directory.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// All threads, and with the next number the main thread alone: SIGRTMIN + 11 and + 12 of glibc,
// which nobody is known to use. A process that has not registered them would die of them, so they
// are sent only to those that are seen to catch both and to hold the file open.
inline constexpr int kStackSignal = 45;

// The text of that sitecustomize.py.
std::string python_hook_text();

// Appends the folder of the hook to PYTHONPATH: `installed` (own_hook()), or where that is empty
// one in the job's directory, into which the hook is written. False: it could not be written; a job
// without it runs as well.
bool add_python_hook(Environment& environment, const std::string& installed,
                     const JobDirectory& directory);

// Where the hook lets a worker's process write; it appends ".PID" itself.
std::string stack_file(const JobDirectory& directory, std::uint32_t generation, std::uint32_t rank);

// What lets torch and NCCL leave evidence in the job's directory, each only where the worker's
// environment does not say otherwise. torch's flight recorder: how much it keeps, where it dumps on
// a watchdog's timeout, and the pipe by which it is asked for a dump. Old names of the same are
// respected. (Of two names for one thing torch warns about the older, so that one is only set where
// the warning comes with a dump.) NCCL's warnings, which it keeps to itself unless asked: one file
// for each process; nothing where anything is said of NCCL_DEBUG or NCCL_DEBUG_FILE.
void add_evidence_variables(Environment& environment, const JobDirectory& directory,
                            std::uint32_t generation);
// What that process's NCCL has warned of last; empty: nothing. At most 300 bytes.
std::string last_nccl_warning(const Environment& environment, pid_t pid);

}  // namespace ivy
