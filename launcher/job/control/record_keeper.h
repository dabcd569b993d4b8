// SPDX-License-Identifier: Apache-2.0
// Keeps the record of a job that outlives its launcher (job_record.h) in the job's directory, next
// to its socket. Thread: the loop's.
#pragma once

#include <boost/asio/steady_timer.hpp>

#include "launcher/job/control/ctl_service.h"
#include "launcher/job/core/job_context.h"

namespace ivy {

class JobRecordWriter {
 public:
  JobRecordWriter(JobContext& job, CtlService& service)
      : job_(job), service_(service), timer_(job.loop) {}

  // Writes the record, and warns the user if that fails. Does nothing if the job has no socket, and
  // so no directory.
  void write();
  // Like write(), for a caller that cannot continue without the record. Requires a socket.
  Result<void> save();
  // Renews the date of the record every few seconds, so that it expires when the hosts' leases do.
  void keep();
  void stop() { timer_.cancel(); }

 private:
  JobContext& job_;
  CtlService& service_;
  boost::asio::steady_timer timer_;
};

}  // namespace ivy
