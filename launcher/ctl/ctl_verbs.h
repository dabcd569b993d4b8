// SPDX-License-Identifier: Apache-2.0
// The verbs of ivyctl, one function each. Each returns the exit code: 0 done, 1 failed, 2 invalid
// command line, 130 interrupted, 141 the reader of the output closed it; attach: the job's.
#pragma once

#include <optional>
#include <string>

#include "proto/contract/status.h"

namespace ivy {

struct CtlOptions;

inline constexpr int kCtlFailed = 1;

int ctl_ps(const CtlOptions& options);
int ctl_ps_hosts(const CtlOptions& options);  // `ps` with -H or --all-hosts.
int ctl_logs(const CtlOptions& options);
int ctl_signal(const CtlOptions& options);
int ctl_stop(const CtlOptions& options);
int ctl_stop_on_hosts(const CtlOptions& options);  // `stop -H`: the hosts' agents stop the job.
// Stops a job that has no launcher on this host. Returns std::nullopt if this host has no such job.
std::optional<int> ctl_stop_on_this_host(const CtlOptions& options);
int ctl_attach(const CtlOptions& options);
int ctl_why(const CtlOptions& options);
int ctl_stack(const CtlOptions& options);
int ctl_config(const CtlOptions& options);
int ctl_explain(const CtlOptions& options);
int ctl_status(const CtlOptions& options);
int ctl_top(const CtlOptions& options);
// Executes `ivyrun --doctor`, which reaches hosts in the same way as a job.
int ctl_doctor(const CtlOptions& options);

// Prints one line from ivyctl to standard error.
void ctl_note(const std::string& text);
// Prints "ivyctl: error: ..." with the fix to standard error. Returns the exit code.
int ctl_fail(const Error& error, int exit_code = kCtlFailed);
// Prints a text from other hosts to standard output, or the error. Returns the exit code.
int ctl_print(const Result<std::string>& text);

}  // namespace ivy
