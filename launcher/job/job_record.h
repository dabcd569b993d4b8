// SPDX-License-Identifier: Apache-2.0
// The record of a job that outlives its launcher (--detach with --lease): what a new launcher needs
// to take it over. Its modification time lies in the future: when the hosts will have ended the job
// unless a launcher renews their leases. Thread: any.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/job/job_place.h"
#include "launcher/options/options.h"
#include "launcher/plan/plan.h"
#include "proto/contract/status.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {

// 0600, replaced at once or not at all.
Result<void> write_job_record(const JobPlace& place, const ctl::JobRecord& record);
// FailedPrecondition when another build wrote it.
Result<ctl::JobRecord> read_job_record(const std::string& path);
// Call when the hosts were just heard: they wait `patience` (lease and grace) from now on.
void renew_job_record(const JobPlace& place, std::chrono::milliseconds patience);

// Time since the workers were started.
std::chrono::milliseconds time_since_start(const ctl::JobRecord& record);

// Adds the hosts and ranks of a plan, as ivyctl receives them. Pure.
void describe_hosts(const JobPlan& plan, ctl::JobDescription& job);

// Pure, and each other's inverse as far as a takeover needs it.
void record_options(const Options& options, ctl::RecordedOptions& recorded);
Options recorded_options(const ctl::RecordedOptions& recorded);
void record_hosts(const std::vector<Host>& hosts, ctl::JobRecord& record);
std::vector<Host> recorded_hosts(const ctl::JobRecord& record);
void record_plan(const JobPlan& plan, ctl::JobRecord& record);
// Lacks what only a start needs: arguments, rule and warnings.
JobPlan recorded_plan(const ctl::JobRecord& record);

}  // namespace ivy
