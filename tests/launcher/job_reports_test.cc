// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/core/job_reports.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ivy {
namespace {

TEST(JobEventsTest, DoesNotBlameEventsForAnAttemptFile) {
  boost::asio::io_context loop;
  const JobRequest request;
  JobReports reports(loop, request);
  events.write_attempt_file("/nonexistent/0", {});
  events.finish();
  EXPECT_EQ(events.write_errors(),
            std::vector<std::string>{"attempt.json of --log-dir: No such file or directory"});
}

TEST(JobEventsTest, ReportsEventsThatCouldNotBeWritten) {
  boost::asio::io_context loop;
  JobRequest request;
  request.options.events = "/nonexistent/events";
  JobReports reports(loop, request);
  events.started(0, 1, 0);
  events.finish();
  EXPECT_EQ(events.write_errors(),
            std::vector<std::string>{"--events /nonexistent/events: No such file or directory; "
                                     "some events were not written"});
}

}  // namespace
}  // namespace ivy
