// SPDX-License-Identifier: Apache-2.0
// A job as a row of `ps` and as the object of `status`, whether it runs or has ended. Thread: any.
#pragma once

#include <string>

#include "launcher/ctl/ctl_table.h"
#include "launcher/job/ended_jobs.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {

ListRow running_row(const std::string& job_id, const ctl::JobDescription& job);
ListRow ended_row(const EndedJob& ended);
// A job that cannot be asked, and why.
ListRow silent_row(const std::string& job_id, const std::string& why);

}  // namespace ivy
