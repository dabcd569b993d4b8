// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/core/job_reports.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ivy {
namespace {

TEST(JobReportsTest, DoesNotBlameEventsForAnAttemptFile) {
  boost::asio::io_context loop;
  const JobRequest request;
  JobReports reports(loop, request);
  reports.write_attempt_file("/nonexistent/0", {});
  reports.finish();
  EXPECT_EQ(reports.write_errors(),
            std::vector<std::string>{"attempt.json of --log-dir: No such file or directory"});
}

TEST(JobReportsTest, ReportsEventsThatCouldNotBeWritten) {
  boost::asio::io_context loop;
  JobRequest request;
  request.options.events = "/nonexistent/events";
  JobReports reports(loop, request);
  reports.started(0, 1, 0);
  reports.finish();
  EXPECT_EQ(reports.write_errors(),
            std::vector<std::string>{"--events /nonexistent/events: No such file or directory; "
                                     "some events were not written"});
}

}  // namespace
}  // namespace ivy
