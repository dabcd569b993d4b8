// SPDX-License-Identifier: Apache-2.0
// The record of a job that outlives its launcher (--detach with --lease): the file with everything
// that a new launcher needs to take the job over. Its modification time lies in the future: it is
// the time at which the hosts will have ended the job unless a launcher renews their leases.
// Thread: any.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/job/control/launcher_directory.h"
#include "launcher/options/options.h"
#include "launcher/plan/plan.h"
#include "proto/contract/status.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {

// Writes the file (0600), and replaces an older one atomically.
Result<void> write_job_record(const LauncherDirectory& directory, const ctl::JobRecord& record);
// FailedPrecondition: another build of ivyrun wrote the record.
Result<ctl::JobRecord> read_job_record(const std::string& path);
// Sets the date of the record. Call when the hosts were just heard: they wait for `timeout` (lease
// and grace) from now on.
void renew_job_record(const LauncherDirectory& directory, std::chrono::milliseconds timeout);

// Returns the time since the workers were started.
std::chrono::milliseconds time_since_start(const ctl::JobRecord& record);

// Adds the hosts and ranks of a plan to the description that ivyctl receives. Pure.
void describe_hosts(const JobPlan& plan, ctl::JobDescription& job);

// Convert to and from the record; pure. Each pair is inverse in everything that a takeover needs.
void record_options(const Options& options, ctl::RecordedOptions& recorded);
Options recorded_options(const ctl::RecordedOptions& recorded);
void record_hosts(const std::vector<Host>& hosts, ctl::JobRecord& record);
std::vector<Host> recorded_hosts(const ctl::JobRecord& record);
void record_plan(const JobPlan& plan, ctl::JobRecord& record);
// Without fields that only a start needs: arguments, rule and warnings.
JobPlan recorded_plan(const ctl::JobRecord& record);

}  // namespace ivy
