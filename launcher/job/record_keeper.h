// SPDX-License-Identifier: Apache-2.0
// Keeps the record of a job that outlives its launcher: what the next launcher needs to take the
// job over (job_record.h), in the job's directory beside the socket. Thread: the loop's.
#pragma once

#include <boost/asio/steady_timer.hpp>

#include "launcher/job/ctl_service.h"
#include "launcher/job/job_context.h"

namespace ivy {

class RecordKeeper {
 public:
  RecordKeeper(JobContext& job, CtlService& service)
      : job_(job), service_(service), timer_(job.loop) {}

  // Writes the record, and warns the user if that fails. Does nothing without a job socket.
  void write();
  // The same, for a caller that cannot go on without it. Requires a job socket.
  Result<void> save();
  // Renews the date of the record every few seconds: it expires when the hosts' leases do.
  void keep();
  void stop() { timer_.cancel(); }

 private:
  JobContext& job_;
  CtlService& service_;
  boost::asio::steady_timer timer_;
};

}  // namespace ivy
